"""Reader of a run folder for the report; missing files leave empty fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.contract import run_record
from aam.contract.errors import MissingInput
from aam.contract.options.study import ordered_levels
from aam.contract.schema import read_json
from aam.data.distances import DistanceMatrix, read_distances
from aam.data.embeddings import read_embeddings
from aam.data.formats.text import numbers, read_rows
from aam.data.metadata import ID_HEADER
from aam.data.metrics import ScoredPredictions
from aam.data.ordination import read_ordination
from aam.data.predictions import (
    class_predictions,
    numeric_column,
    numeric_predictions,
    read_predictions,
)
from aam.members.importance import FOLD_RANK

F64 = npt.NDArray[np.float64]

NETWORK_EFFECT = "transformer_effect"
"""Start of the columns of the effects of a transformer in importance.tsv."""

_SCORE = {"value": float | None, "lower?": float | None, "upper?": float | None}
_INTERVAL = {"value": float | None, "lower": float | None, "upper": float | None}
_POINT = {"units": int, **_INTERVAL}
_MODEL = {"metrics": {str: _SCORE}}
_SENTENCE = {"sentence": str}
SCORES = {
    "verdict": {"outcome?": str, **_SENTENCE},
    "kind?": str,
    "repeated_samples?": (None, _SENTENCE),
    "samples": int,
    "models": {"ensemble": _MODEL, "dummy": _MODEL, str: _MODEL},
    "differences": [{"model": str, **_SENTENCE}],
    "interval?": (None, {"coverage": float, "half_width": float, "covered": float}),
    "inputs?": (
        None,
        {
            "columns": list[str],
            "models": {str: {str: _INTERVAL}},
            "differences": [_SENTENCE],
            "conclusion": str,
        },
    ),
    "learning_curve?": (
        None,
        {"model": str, "metric": str, "units": str, "points": [_POINT], **_SENTENCE},
    ),
    "confounders?": [{"column": str, "metric": str, **_INTERVAL}],
}
"""Schema of scores.json as far as the report reads it, see `aam.members.evaluation`."""


@dataclass(frozen=True)
class Ordination:
    """Principal coordinates of ordination.txt: ids of N samples, [N, 2], and parts of variance."""

    ids: tuple[str, ...]
    coordinates: F64
    explained: F64


@dataclass(frozen=True)
class Run:
    """Content of a run folder.

    Attributes:
        folder: its path.
        facts: content of run.json.
        curves: fold -> column of metrics.csv -> [epochs]; the fold is "" without folds.
        sample_ids: samples of the predictions, n names.
        scored: predictions with labels; None where there are none.
        limits: float64 [n, 2], the prediction interval of each number; None where there are none.
        part: scored samples: "test" or "validation"; "" if unknown.
        embedded_ids: N samples with an embedding.
        embeddings: float64 [N, D]; None where there are none.
        ordination: principal coordinates of the kernel, in ordination.txt; None without the file.
        groups: sample -> group in splits.tsv; empty without groups.
        unifrac: distances of unifrac.tsv; None without the file.
        scores: scores.json, the ensemble and its members; None without the file.
        importance: rows of importance.tsv, the most important ASV first; empty without the file.
    """

    folder: Path
    facts: dict[str, Any]
    curves: dict[str, dict[str, F64]]
    sample_ids: tuple[str, ...]
    scored: ScoredPredictions | None
    limits: F64 | None
    part: str
    embedded_ids: tuple[str, ...]
    embeddings: F64 | None
    ordination: Ordination | None
    groups: dict[str, str]
    unifrac: DistanceMatrix | None
    scores: dict[str, Any] | None
    importance: tuple[dict[str, str], ...]

    @property
    def described_ids(self) -> tuple[str, ...]:
        """Samples whose metadata the report shows: those with an embedding, or a prediction."""
        if self.embedded_ids or self.ordination is None:
            return self.embedded_ids or self.sample_ids
        return self.ordination.ids

    @property
    def has_ordination(self) -> bool:
        """Whether samples can be drawn as points of a plane."""
        return self.embeddings is not None or self.ordination is not None

    @property
    def target(self) -> str | None:
        """Name of the predicted column; None for pretraining."""
        column = self.option("target", "metadata_column")
        return None if column is None else str(column)

    def option(self, *path: str) -> Any:
        """Return the value of an option by its group and name; None if it is not recorded."""
        found: Any = self.facts.get("options", {})
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Args:
        folder: folder of `aam train` or `aam pretrain`, with run.json; other files may be missing.

    Raises:
        MissingInput: the folder does not exist or has no run.json.
        DataError: a file of it is damaged or has another format.
    """
    if not folder.is_dir():
        raise MissingInput("No run folder", f"'{folder}'", "name the --output-dir of a run")
    if not (folder / "run.json").is_file():
        raise MissingInput(
            "Not a run folder",
            f"'{folder}' has no run.json",
            "name the --output-dir of `aam pretrain` or `aam train`",
        )
    facts = run_record.read(folder / "run.json")
    # By length first, so that fold-10 comes after fold-9.
    folds = sorted(folder.glob("fold-*/metrics.csv"), key=lambda path: (len(str(path)), path))
    curves = {path.parent.name.removeprefix("fold-"): _read_curves(path) for path in folds}
    if (folder / "metrics.csv").is_file():
        curves[""] = _read_curves(folder / "metrics.csv")
    curves = {fold: columns for fold, columns in curves.items() if len(columns["epoch"])}
    sample_ids, scored, part, limits = _read_scored(folder / "predictions.tsv", facts)
    embedded = folder / "embeddings.tsv"
    embeddings = read_embeddings(embedded) if embedded.is_file() else None
    unifrac, scores = folder / "unifrac.tsv", folder / "scores.json"
    return Run(
        folder,
        facts,
        curves,
        sample_ids,
        scored,
        limits,
        part,
        () if embeddings is None else tuple(embeddings.ids.tolist()),
        None if embeddings is None else embeddings.values.astype(np.float64),
        _read_ordination(folder / "ordination.txt"),
        _read_groups(folder / "splits.tsv"),
        read_distances(unifrac) if unifrac.is_file() else None,
        read_json(scores, SCORES, "scores of the run") if scores.is_file() else None,
        _read_importance(folder / "importance.tsv"),
    )


def _read_curves(path: Path) -> dict[str, F64]:
    what = "metrics file"
    header, rows = read_rows(path, what, ("epoch",), delimiter=",")
    return {
        name: np.array(numbers(rows, name, path, what, optional=True), dtype=np.float64)
        for name in ("epoch", *header)
    }


def _read_scored(
    path: Path, facts: dict[str, Any]
) -> tuple[tuple[str, ...], ScoredPredictions | None, str, F64 | None]:
    """Return samples, predictions, the part that they are from, and prediction intervals."""
    if not path.is_file():
        return (), None, "", None
    frame = read_predictions(path)
    if "actual" not in frame.columns:
        return (), None, "", None
    limits = None
    target = facts["options"].get("target") or {}
    levels = ordered_levels(target.get("ordinal") or ())
    if target.get("classifier") or levels:
        scored = class_predictions(frame, frame["actual"].tolist(), levels)
    else:
        scored = numeric_predictions(frame, numeric_column(frame, "actual"))
        if {"lower", "upper"} <= set(frame.columns):
            ends = [numeric_column(frame, name) for name in ("lower", "upper")]
            limits = np.column_stack(ends)
    part = str(frame["split"].iloc[0]) if "split" in frame.columns else ""
    return tuple(frame[ID_HEADER]), scored, part, limits


def _read_importance(path: Path) -> tuple[dict[str, str], ...]:
    if not path.is_file():
        return ()
    what = "table of `aam importance`"
    header, rows = read_rows(path, what, ("feature-id", "prevalence"))
    measured = ("prevalence", "effect", NETWORK_EFFECT, FOLD_RANK)
    for name in header:
        if name.startswith(measured):
            numbers(rows, name, path, what)
    return tuple(rows)


def _read_ordination(path: Path) -> Ordination | None:
    """Read the file of `aam.data.ordination.write_ordination`."""
    return Ordination(*read_ordination(path)) if path.is_file() else None


def _read_groups(path: Path) -> dict[str, str]:
    """Return the group of each sample in splits.tsv; empty without groups."""
    if not path.is_file():
        return {}
    _, rows = read_rows(path, "splits file", (ID_HEADER,))
    return {row[ID_HEADER]: row["group"] for row in rows if row.get("group")}
