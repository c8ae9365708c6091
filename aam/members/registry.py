"""Members by name: each is imported where it is used, so that a kernel needs no PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

from aam.contract.options.members import MEMBERS
from aam.members.member import Estimator, Reader


def reader(name: str) -> Reader[Any]:
    """Return the reader of the member that `MEMBERS` lists under a name."""
    found: Reader[Any] = importlib.import_module(MEMBERS[name].module).MEMBER
    return found


def estimator(name: str) -> Estimator[Any]:
    """Return the estimator that `MEMBERS` lists under a name."""
    found: Estimator[Any] = importlib.import_module(MEMBERS[name].module).MEMBER
    return found
