"""Numerics of a stack (GPU, driver, PyTorch): attention check, precision, rounding.

    device ──► probes ──► report ──► backends

It imports the attention of `aam.network.model` and nothing of data or training.
"""
