"""A study of three samples as text, and the check of a refusal, for tests of hostile input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
USAGE, DATA, NO_INPUT, CANNOT_CREATE = 64, 65, 66, 73
TABLE = "#OTU ID\ts1\ts2\ts3\nACGT\t5\t0\t1\nACCA\t1\t2\t0\nGGTT\t0\t3\t4\n"
TREE = "((ACGT:1,ACCA:2):1,GGTT:3);"
METADATA = "sample-id\tx\ns1\t1\ns2\t2\ns3\t3\n"
Make = Callable[[Path], Any]


def biom_file(path: Path, **changed: Any) -> None:
    """Write BIOM 2.1 of 3 samples x 3 features; `changed` replaces arrays of the sample's matrix.

    A shape in the place of an array makes a dataset that is declared and never written.
    """
    arrays = {"data": np.array([5.0, 1, 2, 3, 1, 4]), "indices": np.array([0, 1, 1, 2, 0, 2]),
              "indptr": np.array([0, 2, 4, 6])}  # fmt: skip
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        file.create_dataset("sample/ids", data=["s1", "s2", "s3"], dtype=text)
        file.create_dataset("observation/ids", data=["ACGT", "ACCA", "GGTT"], dtype=text)
        for name, array in (arrays | changed).items():
            if isinstance(array, tuple):
                options = {"chunks": (1 << 20,), "compression": "gzip"}
                file.create_dataset(f"sample/matrix/{name}", array, "i8", **options)
            else:
                file.create_dataset(f"sample/matrix/{name}", data=array)


def check_refusal(
    capsys: pytest.CaptureFixture[str], status: int, expected: int, message: str
) -> None:
    """Check the status, and that the last line is a sentence which holds `message`."""
    shown = capsys.readouterr().err
    assert status == expected, shown
    *_, sentence = shown.splitlines()
    assert sentence.startswith("aam: "), shown
    assert sentence.endswith((".", "?"))
    assert message in sentence
    assert "Traceback" not in shown
