"""Validation of the arrays of an estimator's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aam.contract.schema import Mismatch
from aam.members.base import F64, Arrays, Rows


def numbers(arrays: Arrays, name: str, *shape: int | None) -> F64:
    """Return an array of finite numbers as float64; None in `shape` for any length.

    Raises:
        Mismatch: it is missing, of another type or shape, or not finite.
    """
    array = _of_shape(arrays, name, shape)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise Mismatch(f"the array '{name}' does not hold finite numbers")
    return array.astype(np.float64)


def indices(arrays: Arrays, name: str, below: int, *shape: int | None) -> Rows:
    """Return an array of indices from 0 to `below` - 1 as int64.

    Raises:
        Mismatch: it is missing, of another type or shape, or out of range.
    """
    array = _of_shape(arrays, name, shape)
    if array.dtype.kind != "i" or (array.size and not 0 <= array.min() <= array.max() < below):
        raise Mismatch(f"the array '{name}' does not hold indices from 0 to {below - 1}")
    return array.astype(np.int64)


def _of_shape(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    array = arrays.get(name)
    if array is None:
        raise Mismatch(f"the array '{name}' is missing")
    wrong = len(array.shape) != len(shape) or any(
        expected not in (None, size) for expected, size in zip(shape, array.shape, strict=True)
    )
    if wrong:
        raise Mismatch(f"the array '{name}' has the shape {array.shape}")
    return array
