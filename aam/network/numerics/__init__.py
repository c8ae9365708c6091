"""Numerics of a stack (GPU, driver, PyTorch): attention check, precision, rounding.

    probes + faults ──► check ──► report ──► backends
    device ──► stack ─────┘

It depends on the attention of `aam.network.model`, not on data or training.
"""
