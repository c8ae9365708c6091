"""Data of a report: the run, its scores beside those of other models, colours, abundances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.contract.errors import DataError, UsageError
from aam.data.metadata import as_numbers, read_metadata
from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.members.scores import Score, resample_groups, resample_metrics
from aam.number_format import significant
from aam.report.figures import Colour
from aam.report.run import Run

FEW_VALUES = 6
"""A column with no more distinct numbers than this is shown as categories."""

OFFERED = 5
"""Columns to choose from without --color-by."""


@dataclass(frozen=True)
class Abundances:
    """Relative abundances of the leading ASVs of a run.

    Attributes:
        sample_ids: N names.
        feature_ids: A names, the most important first.
        values: float64 [N, A].
    """

    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReportInput:
    """Data of a report.

    Attributes:
        run: content of the run folder.
        colours: metadata columns of the embedded samples; empty for none.
        unit: unit of a numeric target; "" if unknown.
        abundances: abundances of the leading ASVs; None without importance.tsv or the table.
    """

    run: Run
    colours: tuple[Colour, ...] = ()
    unit: str = ""
    abundances: Abundances | None = None

    @cached_property
    def models(self) -> Mapping[str, Mapping[str, Score]]:
        """Model -> metric -> value with its interval; the model of the run first.

        Raises:
            DataError: scores.json and predictions.tsv contradict each other.
        """
        return {} if self.run.scored is None else _scores_of_models(self.run, self.run.scored)

    @property
    def target(self) -> str:
        """Name of the target, with its unit."""
        return self.with_unit(self.run.target or "the target")

    def with_unit(self, title: str) -> str:
        """Add the unit of the target, if it is known, to a title."""
        return f"{title} ({self.unit})" if self.unit else title

    def measured(self, value: float, signed: bool = False) -> str:
        """Format an error in the unit of the target, ranks if it is ordinal, with three digits."""
        scored = self.run.scored
        unit = "ranks" if scored is not None and scored.type == "ordinal" else self.unit
        return f"{significant(value, signed)} {unit}".rstrip()


def _scores_of_models(run: Run, scored: ScoredPredictions) -> dict[str, Mapping[str, Score]]:
    """Return the scores of scores.json; without it, those of the predictions."""
    plain = compute_metrics(scored)
    if run.scores is None:
        found = {name: Score(value, None, None) for name, value in plain.items()}
        del found["samples"]
        # The intervals of classes need probabilities, as the AUC does.
        if scored.type != "classification" or scored.probabilities is not None:
            names = [run.groups.get(name, name) for name in run.sample_ids]
            draws = resample_groups(np.array(names))
            found |= resample_metrics(scored, draws).score()
        return {"ensemble": found}
    models = run.scores["models"]
    # A page must not show the metrics of one file beside the predictions of another: either may
    # have been edited.
    stored = {name: one["value"] for name, one in models["ensemble"]["metrics"].items()}
    stored["samples"] = run.scores["samples"]
    for name, value in plain.items():
        if name not in stored:
            continue
        other = stored[name]
        alike = other is value
        if other is not None and value is not None:
            alike = math.isclose(other, value, rel_tol=1e-3, abs_tol=1e-3)
        if not alike:
            raise DataError(
                "The files scores.json and predictions.tsv contradict each other",
                f"'{run.folder}', {name}: {other} and {value}",
                "restore the file that was edited, or remove scores.json: the report is then "
                "computed from predictions.tsv",
            )
    members = [name for name in models if name not in ("ensemble", "dummy")]
    titles = {name: name for name in models}
    if len(members) == 1:  # the ensemble is its only member
        titles["ensemble"] = titles.pop(members[0])
    return {
        title: {
            metric: Score(one.get("value"), one.get("lower"), one.get("upper"))
            for metric, one in models[name]["metrics"].items()
        }
        for name, title in titles.items()
    }


def choose_colours(
    run: Run, metadata: Path | None, columns: Sequence[str], categories: Sequence[str]
) -> tuple[Colour, ...]:
    """Return the colours of the samples of `run.described_ids`."""
    recorded = run.facts.get("inputs", {}).get("--metadata", {}).get("path")
    path = metadata or (Path(recorded) if recorded else None)
    if not run.described_ids:
        return ()
    if path is None and columns:
        given = f"--color-by {' '.join(columns)}"
        raise UsageError("No metadata to colour by", given, "give --metadata")
    if path is None or (metadata is None and not columns and not path.exists()):
        return ()
    table = read_metadata(path)
    group = run.option("split", "group_column")
    is_category = run.option("target", "classifier") or run.option("target", "ordinal")
    named = {*categories, group} | ({run.target} if is_category else set())
    chosen = list(columns)
    if run.target is not None and run.target not in chosen:
        chosen.insert(0, run.target)
    if not columns:
        chosen += [group] * bool(group and group in table.columns)
        offered = []
        # Columns with two to six values, known for most samples, the completest first.
        for name in table.columns:
            texts = [text for text in table.values(name, run.described_ids).tolist() if text]
            if 2 * len(texts) > len(run.described_ids) and 2 <= len(set(texts)) <= FEW_VALUES:
                offered.append((-len(texts), name))
        offered.sort(key=lambda pair: pair[0])
        chosen += [name for _, name in offered if name not in chosen]
        chosen = chosen[:OFFERED]
    return tuple(
        as_colour(name, table.values(name, run.described_ids).tolist(), name in named)
        for name in chosen
    )


def as_colour(column: str, texts: Sequence[str], category: bool = False) -> Colour:
    """Convert texts ("" where unknown) to numbers if all are and many differ, else to labels."""
    known = [text for text in texts if text]
    if not category and len(set(known)) > FEW_VALUES:
        values = as_numbers(texts)
        if np.isfinite(values).sum() == len(known):
            return Colour(column, tuple(texts), values=values)
    return Colour(column, tuple(texts), labels=tuple(texts))
