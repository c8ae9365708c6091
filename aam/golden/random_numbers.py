"""Pseudo-random numbers that are the same on every machine, version and device.

SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of a counter, started from a name: each number of a
tensor depends on the tensor's name and on its place there alone.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _bits(name: str, number: int) -> npt.NDArray[np.uint64]:
    """Return `number` words of 64 bits."""
    start = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    z = np.arange(1, number + 1, dtype=np.uint64) * _GAMMA + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name: str, *shape: int) -> Tensor:
    """Return a float32 tensor in [-1, 1); each value is a multiple of 2^-23 and so exact.

    Args:
        name: name of the tensor; another name gives other numbers.
        shape: sizes of its axes.

    >>> bool((uniform("x", 3) == uniform("x", 3)).all()), bool((uniform("y", 3) < 1).all())
    (True, True)
    """
    # 24 bits, the precision of float32: division and subtraction are then exact everywhere.
    words = _bits(name, math.prod(shape)) >> np.uint64(40)
    return torch.from_numpy((words.astype(np.float32) / np.float32(2**23) - 1).reshape(shape))


def integers(name: str, low: int, high: int, *shape: int) -> Tensor:
    """Return an int64 tensor of numbers in [low, high).

    >>> integers("x", 1, 5, 2, 3).shape
    torch.Size([2, 3])
    """
    words = _bits(name, math.prod(shape)) >> np.uint64(33)
    return torch.from_numpy((words.astype(np.int64) % (high - low) + low).reshape(shape))


def permutation(name: str, number: int) -> Tensor:
    """Return an int64 permutation of `number` indices.

    >>> permutation("x", 4).sort().values
    tensor([0, 1, 2, 3])
    """
    # A stable sort, whose result does not depend on the version of NumPy.
    return torch.from_numpy(np.argsort(_bits(name, number), kind="stable"))
