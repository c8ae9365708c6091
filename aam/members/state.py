"""Validation of the arrays of an estimator's state, without PyTorch (`aam baseline` needs none)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.contract import schema
from aam.contract.schema import Mismatch
from aam.data.covariates import CovariateEncoder
from aam.members.base import F64, Arrays, Rows

_ENCODER = "covariates"


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


def encoder_arrays(encoder: CovariateEncoder | None) -> Arrays:
    """Return the state of an encoder of covariates: its JSON as bytes; nothing without one."""
    if encoder is None:
        return {}
    return {_ENCODER: np.frombuffer(encoder.to_json().encode(), dtype=np.uint8).copy()}


def restore_encoder(arrays: Arrays) -> CovariateEncoder | None:
    """Return the encoder of covariates; None if the model reads the counts alone.

    Raises:
        Mismatch: its state is damaged.
    """
    if _ENCODER not in arrays:
        return None
    try:
        content = json.loads(bytes(_of_shape(arrays, _ENCODER, (None,)).astype(np.uint8)))
    except ValueError as error:
        raise Mismatch(f"the array '{_ENCODER}' is not JSON") from error
    encoder: CovariateEncoder = schema.parse(CovariateEncoder, content, _ENCODER)
    return encoder


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
