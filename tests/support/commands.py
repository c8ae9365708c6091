"""Runs of the command line in this process, for tests: small networks, few epochs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from aam.cli import main

TINY = (
    *("--embedding-dim", "8", "--attention-heads", "2", "--attention-layers", "1"),
    *("--epochs", "1", "--batch-size", "8", "--device", "cpu"),
)


def aam(*arguments: object) -> int:
    """Run `aam` and return its exit status."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)


def pretrain(study_dir: Path, folder: Path, *arguments: object) -> int:
    """Run `aam pretrain` with a tiny network; later arguments win."""
    return aam(
        "pretrain", *TINY, "--table", study_dir / "table.biom", "--output-dir", folder, *arguments
    )


def train(study_dir: Path, folder: Path, *arguments: object, column: str = "ph") -> int:
    """Run `aam train --members transformer` with a tiny network; later arguments win."""
    return aam(
        "train", *TINY, "--members", "transformer", "--table", study_dir / "table.biom",
        "--output-dir", folder, "--metadata", study_dir / "metadata.tsv",
        "--metadata-column", column, *arguments,
    )  # fmt: skip


def read(path: Path) -> pd.DataFrame:
    """Read a table of a run folder; ids and classes stay text."""
    separator = "," if path.suffix == ".csv" else "\t"
    return pd.read_csv(path, sep=separator, dtype={"sample-id": str, "group": str})
