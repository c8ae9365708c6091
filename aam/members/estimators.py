"""Registry of the estimators."""

from __future__ import annotations

from typing import Any

from aam.members.base import Estimator
from aam.members.forest import Forest
from aam.members.kernel import Kernel

KERNEL = "kernel"

ESTIMATORS: dict[str, Estimator[Any]] = {KERNEL: Kernel(), "forest": Forest()}
"""To add an estimator, add a module, an entry, and its name to `MemberName` of the options."""
