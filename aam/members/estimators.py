"""Estimators by name."""

from __future__ import annotations

from typing import Any

from aam.members.member import Estimator, estimators
from aam.members.registry import estimator

KERNEL = "kernel"

ESTIMATORS: dict[str, Estimator[Any]] = {name: estimator(name) for name in estimators()}
