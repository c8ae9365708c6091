"""Array types by the meaning of their numbers; a suffix of a name gives the shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
"""Positions of samples, ASVs or other rows, from 0."""

Codes = npt.NDArray[np.int64]
"""Codes of classes, groups or folds."""

Tokens = npt.NDArray[np.uint8]
"""Nucleotides, encoded by `aam.data.sequences`."""

Arrays = Mapping[str, npt.NDArray[Any]]
"""Arrays of the state of a model, by name."""
