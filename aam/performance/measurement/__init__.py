"""Measurement of a workload in child processes: benchmarks, parity of losses, tuning."""
