"""A study to spoil, for tests of errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

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
        """The run folder."""
        return self.work / "run"

    def table(self, counts: pd.DataFrame, name: str = "table.tsv") -> Path:
        """Write a feature table."""
        counts.to_csv(self.work / name, sep="\t", index_label="#OTU ID")
        return self.work / name

    def text(self, name: str, text: str) -> Path:
        """Write a file."""
        (self.work / name).write_text(text)
        return self.work / name

    def metadata(self, rows: list[list[str]]) -> Path:
        """Write metadata."""
        return self.text("metadata.tsv", "".join("\t".join(row) + "\n" for row in rows))

    def column(self, values: list[str]) -> list[str | Path]:
        """Write metadata with a column x; returns the arguments that name it."""
        header, *rows = self.rows
        longer = [[*row, value] for row, value in zip(rows, values, strict=True)]
        path = self.metadata([[*header, "x"], *longer])
        return ["--metadata", path, "--metadata-column", "x"]

    def pretrain(self, *args: object, tree: bool = True) -> int:
        """Run `aam pretrain`; later arguments win."""
        given = ("--tree", self.good / "tree.nwk") if tree else ()
        return pretrain(self.good, self.out, *merged(given, args))

    def train(self, *args: object) -> int:
        """Run `aam train`; later arguments win."""
        return train(self.good, self.out, *args)


Refused = Callable[..., str]
