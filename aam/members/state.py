"""Validation of the arrays of an estimator's state, without PyTorch (`aam baseline` needs none)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aam.members.base import F64, Arrays, Rows
from aam.serialization.schema import Mismatch


def numbers(arrays: Arrays, name: str, *shape: int | None) -> F64:
    """Return an array of finite numbers as float64; None in `shape` for any length.

    Raises:
        Mismatch: it is missing, of another type or shape, or not finite.
    """
    found = _of_shape(arrays, name, shape)
    if found.dtype.kind != "f" or not np.isfinite(found).all():
        raise Mismatch(f"the array '{name}' does not hold finite numbers")
    return found.astype(np.float64)


def indices(arrays: Arrays, name: str, below: int, *shape: int | None) -> Rows:
    """Return an array of indices from 0 to `below` - 1 as int64.

    Raises:
        Mismatch: it is missing, of another type or shape, or out of range.
    """
    found = _of_shape(arrays, name, shape)
    if found.dtype.kind != "i" or (found.size and not 0 <= found.min() <= found.max() < below):
        raise Mismatch(f"the array '{name}' does not hold indices from 0 to {below - 1}")
    return found.astype(np.int64)


def _of_shape(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    found = arrays.get(name)
    if found is None:
        raise Mismatch(f"the array '{name}' is missing")
    wrong = len(found.shape) != len(shape) or any(
        expected not in (None, size) for expected, size in zip(shape, found.shape, strict=True)
    )
    if wrong:
        raise Mismatch(f"the array '{name}' has the shape {found.shape}")
    return found
