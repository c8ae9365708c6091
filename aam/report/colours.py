"""Colours of an embedding: a metadata column as numbers or as categories, by sample id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.contract.errors import UsageError
from aam.data.metadata import read_metadata
from aam.report.run import Run

FEW_VALUES = 6  # a column with no more distinct numbers than this is shown as categories


@dataclass(frozen=True)
class Colour:
    """Metadata column of N samples, as numbers or as labels; the other is None.

    Attributes:
        column: its name.
        values: float64 [N], NaN where unknown.
        labels: N categories, "" where unknown.
    """

    column: str
    values: npt.NDArray[np.float64] | None = None
    labels: tuple[str, ...] | None = None


def choose_colour(run: Run, metadata: Path | None, column: str | None) -> tuple[Colour | None, str]:
    """Return the colours of the samples of `run.embedded_ids`, or None and the reason.

    Args:
        run: the run; its metadata file and target are the defaults.
        metadata: --metadata.
        column: --color-by.

    Raises:
        UsageError: --color-by without metadata.
        MissingInput, DataError: see `read_metadata`.
    """
    recorded = run.facts.get("inputs", {}).get("--metadata", {}).get("path")
    path = metadata or (Path(recorded) if recorded else None)
    chosen = column or run.target
    if run.embeddings is None:
        return None, ""
    if path is None and column is not None:
        raise UsageError("No metadata to colour by", f"--color-by {column}", "give --metadata")
    if chosen is None:
        return None, "Colour it with --color-by and --metadata."
    if path is None or (metadata is None and column is None and not path.exists()):
        return None, "It has no colours: the metadata file is no longer where it was."
    texts = read_metadata(path).values(chosen, run.embedded_ids).tolist()
    classifier = chosen == run.target and bool(run.option("target", "classifier"))
    return as_colour(chosen, texts, classifier), ""


def as_colour(column: str, texts: Sequence[str], category: bool = False) -> Colour:
    """Convert texts ("" where unknown) to numbers if all are and many differ, else to labels."""
    known = [text for text in texts if text]
    if not category and len(set(known)) > FEW_VALUES:
        try:
            values = np.array([float(text) if text else np.nan for text in texts])
        except ValueError:
            values = np.array([])
        if len(values) and np.isfinite([float(text) for text in known]).all():
            return Colour(column, values=values)
    return Colour(column, labels=tuple(texts))
