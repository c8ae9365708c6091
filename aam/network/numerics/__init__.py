"""Numerics of a stack (GPU, driver, PyTorch): attention check, precision, rounding.

    probes + faults ──► check ──► report ──► backends
    device ───────────────┘

It imports the attention of `aam.network.model` and nothing of data or training.
"""
