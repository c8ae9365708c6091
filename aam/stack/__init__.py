"""Whether this stack (GPU, driver, PyTorch) computes attention right, and what to use where not.

    probes + faults ──► check ──► report ──► guard ──► the backends of a run
    identity ─────────────────────┘

Knows the attention of `aam.model` and nothing of studies or of learning.
"""
