"""Runs of the command line in this process, for tests: small networks, few epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from aam.cli import main

TINY = (
    *("--embedding-dim", "8", "--attention-heads", "2", "--attention-layers", "1"),
    *("--epochs", "1", "--batch-size", "8", "--device", "cpu"),
)


def aam(*arguments: object) -> int:
    """Run `aam` and return its exit status; `train` with one partition into folds, for time."""
    words = [str(argument) for argument in arguments]
    if words[:1] == ["train"] and not {"--repeats", "--study-column"} & {*words}:
        words += ["--repeats", "1"]
    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def merged(defaults: Sequence[object], arguments: Sequence[object]) -> list[object]:
    """Return the arguments after those of the default options that are not among them."""
    given = {str(one).partition("=")[0] for one in arguments if str(one).startswith("--")}
    kept: list[object] = []
    for one in defaults:
        if str(one).startswith("--"):
            is_kept = str(one) not in given
        if is_kept:
            kept.append(one)
    return [*kept, *arguments]


def pretrain(study_dir: Path, folder: Path, *arguments: object) -> int:
    """Run `aam pretrain` with a tiny network; later arguments win."""
    defaults = (*TINY, "--table", study_dir / "table.biom", "--output-dir", folder)
    return aam("pretrain", *merged(defaults, arguments))


def train(study_dir: Path, folder: Path, *arguments: object, column: str = "ph") -> int:
    """Run `aam train --members transformer` with a tiny network; later arguments win."""
    defaults = (
        *TINY, "--members", "transformer", "--table", study_dir / "table.biom",
        "--output-dir", folder, "--metadata", study_dir / "metadata.tsv",
        "--metadata-column", column,
    )  # fmt: skip
    return aam("train", *merged(defaults, arguments))


def read(path: Path) -> pd.DataFrame:
    """Read a table of a run folder; ids and classes stay text."""
    separator = "," if path.suffix == ".csv" else "\t"
    return pd.read_csv(path, sep=separator, dtype={"sample-id": str, "group": str})
