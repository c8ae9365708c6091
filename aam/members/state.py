"""Validation of the arrays of an estimator's state, without PyTorch (`aam baseline` needs none)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.covariates import CovariateEncoder
from aam.members.base import F64, Arrays, Rows
from aam.serialization import schema
from aam.serialization.schema import Mismatch

_ENCODER = "covariates"


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
    found = arrays.get(name)
    if found is None:
        raise Mismatch(f"the array '{name}' is missing")
    wrong = len(found.shape) != len(shape) or any(
        expected not in (None, size) for expected, size in zip(shape, found.shape, strict=True)
    )
    if wrong:
        raise Mismatch(f"the array '{name}' has the shape {found.shape}")
    return found
