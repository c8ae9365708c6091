"""NumPy arrays as tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.contract import schema


def to_tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    """Convert a state for a checkpoint."""
    return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}


def to_arrays(stored: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """Convert the state of `name` in a checkpoint.

    Raises:
        Mismatch: it is not a dictionary of tensors.
    """
    tensors = schema.parse(dict[str, Tensor], stored, name)
    return {key: tensor.numpy() for key, tensor in tensors.items()}
