"""Numerics of a stack (GPU, driver, PyTorch): attention check, precision, compilation.

    probes + faults ──► check ──► check report ──► backend_selection
    stack_identity ───────────────┘

It depends on the attention of `aam.model`, not on data or training.
"""
