"""Studies to spoil, and the check of a refusal, for tests of errors and hostile input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from tests.support.commands import merged, pretrain, train

USAGE, DATA, NO_INPUT, UNAVAILABLE, CANNOT_CREATE = 64, 65, 66, 69, 73


@dataclass(frozen=True)
class Bench:
    """A study to spoil, a folder for what is spoilt, and a run that must not be written.

    Attributes:
        good: folder of the study.
        work: where spoilt files go.
        counts: features x samples.
        rows: lines of the metadata as cells, header first.
        newick: the tree.
    """

    good: Path
    work: Path
    counts: pd.DataFrame
    rows: list[list[str]]
    newick: str

    @property
    def out(self) -> Path:
        return self.work / "run"

    def table(self, counts: pd.DataFrame, name: str = "table.tsv") -> Path:
        counts.to_csv(self.work / name, sep="\t", index_label="#OTU ID")
        return self.work / name

    def text(self, name: str, text: str) -> Path:
        (self.work / name).write_text(text)
        return self.work / name

    def metadata(self, rows: list[list[str]]) -> Path:
        return self.text("metadata.tsv", "".join("\t".join(row) + "\n" for row in rows))

    def column(self, values: list[str]) -> list[str | Path]:
        """Write metadata with a column x; returns the arguments that name it."""
        header, *rows = self.rows
        longer = [[*row, value] for row, value in zip(rows, values, strict=True)]
        path = self.metadata([[*header, "x"], *longer])
        return ["--metadata", path, "--metadata-column", "x"]

    def pretrain(self, *args: object, tree: bool = True) -> int:
        given = ("--tree", self.good / "tree.nwk") if tree else ()
        return pretrain(self.good, self.out, *merged(given, args))

    def train(self, *args: object) -> int:
        return train(self.good, self.out, *args)


Refused = Callable[..., str]


ROOT = Path(__file__).parents[2]
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
    capsys: pytest.CaptureFixture[str], status: int, expected: int, *phrases: str
) -> str:
    """Check the status, and that the last line alone is a sentence, with all phrases; return it."""
    shown = capsys.readouterr().err
    assert status == expected, shown
    [sentence] = [line for line in shown.splitlines() if line.startswith("aam: ")]
    assert sentence == shown.splitlines()[-1]
    assert sentence.endswith((".", "?"))
    for phrase in phrases:
        assert phrase in sentence
    assert "Traceback" not in shown
    return sentence
