"""Check reports of a stack, for tests of their cache and of what the launcher shows."""

from __future__ import annotations

from dataclasses import replace

import torch

from aam.contract.version import __version__
from aam.network.model.attention import TORCH, Backend
from aam.network.numerics.backends import CheckPlan as Check
from aam.network.numerics.backends import check_attention
from aam.network.numerics.report import CheckReport, StackKey

CPU = torch.device("cpu")
KEY = StackKey("sha256:1", "gfx942", "6.10.5", __version__, "4 x 32")


def report(*wrong: Backend, key: StackKey = KEY) -> CheckReport:
    """The report of `aam check` with some backends replaced by faulty ones."""
    names = {backend.name: backend for backend in wrong}
    backends = tuple(names.get(backend.name, backend) for backend in TORCH)
    plan = Check(True, ("fp32", "bf16"), recomputed=True)
    return replace(check_attention(backends, plan, CPU), key=key)
