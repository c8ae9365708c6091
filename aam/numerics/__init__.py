"""Numerics of a stack (GPU, driver, PyTorch): attention check, precision, compilation.

    probes + faults ──► check ──► report ──► guard ──► the backends of a run
    identity ─────────────────────┘

It depends on the attention of `aam.model`, not on data or training.
"""
