"""Writing of .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_npy(path: Path, array: NDArray[Any]) -> None:
    """Write an array as an .npy file.

    `numpy.save` writes with `ndarray.tofile`, whose OSError has no errno: a quota or a limit of the
    file size could not be told from a fault.
    """
    contiguous = np.ascontiguousarray(array)
    description = np.lib.format.header_data_from_array_1_0(contiguous)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, description)
        stream.write(contiguous.data)
