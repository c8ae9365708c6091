"""Check reports of a stack, for tests of what the launcher makes of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from aam import __version__
from aam.contract.check_report import CheckReport, StackKey
from aam.model.attention import TORCH, Backend
from aam.numerics.check import CheckPlan as Check
from aam.numerics.check import conclude, measure

CPU = torch.device("cpu")
KEY = StackKey("sha256:1", "gfx942", "6.10.5", __version__)


def report(*wrong: Backend, key: StackKey = KEY) -> CheckReport:
    """The report of `aam check` with some backends replaced by faulty ones."""
    names = {backend.name: backend for backend in wrong}
    backends = tuple(names.get(backend.name, backend) for backend in TORCH)
    plan = Check(True, ("fp32", "bf16"), recomputed=True)
    return replace(conclude(measure(backends, plan, CPU), quick=True), key=key)
