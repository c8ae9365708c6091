"""Content of a run folder for the report: predictions, scores, curves, colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aam import run_record
from aam.arrays import F64, Rows
from aam.contract import run_files
from aam.contract.errors import DataError, MissingInput, UsageError
from aam.contract.options import flat
from aam.contract.options.groups import TRANSFORMER, listed
from aam.contract.records import EDITED
from aam.contract.run_files import PREDICTIONS, RECORD, REPEATS, fold_folders
from aam.data.distances import DistanceMatrix, read_distances, read_embeddings, read_ordination
from aam.data.formats.text import numbers, read_rows
from aam.data.joined_metadata import relabelled
from aam.data.metadata import ID_HEADER, as_numbers, read_metadata
from aam.evaluation.intervals import Score
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import FEW_VALUES, ScoredPredictions
from aam.evaluation.prediction_files import (
    class_predictions,
    numeric_column,
    numeric_predictions,
    read_predictions,
)
from aam.evaluation.scores import Scores
from aam.evaluation.splits import read_assignments
from aam.members.importance import FOLD_RANK
from aam.number_format import significant
from aam.report.figures import Colour

if TYPE_CHECKING:
    import pandas as pd


OFFERED = 5  # columns to choose from without --color-by

NETWORK_EFFECT = f"{TRANSFORMER}_effect"
"""First part of the names of transformer effects in importance.tsv."""

# File -> kind, required columns, starts of columns of numbers, starts of such that may lack some:
# ASVs outside the training study have no depth, studies with few samples of a feature have no z.
_TABLES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "importance.tsv": (
        "table of `aam importance`", ("feature-id", "prevalence"),
        ("prevalence", "effect", NETWORK_EFFECT, "q_", FOLD_RANK), ("depth_",),
    ),
    "associations.tsv": (
        "table of associations",
        ("feature", "kind", "studies", "agreeing", "z", "p", "q", "rank"),
        (), ("studies", "agreeing", "z", "p", "q", "rank"),
    ),
    "explanations.tsv": (
        "table of explanations", ("sample", "feature", "kind", "effect", "unit", "group"),
        ("effect",), (),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Content of a run folder; None for absent files."""

    folder: Path
    files: tuple[str, ...]  # names, below the folder
    facts: dict[str, Any]  # content of run.json
    curves: dict[str, dict[str, F64]]  # fold ("" without) -> column of metrics.csv -> [epochs]
    embedded_ids: tuple[str, ...]  # N samples with an embedding
    embeddings: F64 | None  # [N, D]
    # ids, principal coordinates [N, 2] of the kernel, their fractions of the variance
    ordination: tuple[tuple[str, ...], F64, F64] | None
    groups: dict[str, str]  # sample -> group in splits.tsv
    unifrac: DistanceMatrix | None
    scores: Scores | None
    importance: tuple[dict[str, str], ...]  # rows of importance.tsv, the most important ASV first
    associations: tuple[dict[str, str], ...]
    explanations: tuple[dict[str, str], ...] | None
    partitions: ScoredPredictions | None = None  # of all repeats; the scores are means over repeats
    partition_ids: tuple[str, ...] = ()  # samples of `partitions`
    limits: F64 | None = None  # [n, 2], the prediction interval of each number
    split: str = ""  # scored samples: "test" or "validation"; "" if unknown

    @cached_property
    def scored(self) -> ScoredPredictions | None:
        """Predictions with labels, of the first repeat: figures show a sample once."""
        return None if self.partitions is None else self.partitions.first

    @cached_property
    def first_rows(self) -> Rows:
        """Rows of the first repeat in `partitions`."""
        if self.partitions is not None and self.partitions.repeats:
            return self.partitions.partitions[0][0]
        return np.arange(len(self.partition_ids))

    @cached_property
    def sample_ids(self) -> tuple[str, ...]:
        """Samples of `scored`."""
        return tuple(self.partition_ids[row] for row in self.first_rows.tolist())

    @property
    def is_better(self) -> bool:
        """Whether the model is shown to be better than the baseline, or has no verdict."""
        return self.scores is None or self.scores.is_better

    @property
    def repeat(self) -> str:
        """Addition to the title of what shows the first of several repeats (`scored`)."""
        repeated = self.partitions is not None and self.partitions.repeats
        return ", first repeat" if repeated else ""

    @property
    def is_external(self) -> bool:
        """Whether the predictions are for another study than the training."""
        return self.scores is not None and self.scores.external is not None

    @property
    def described_ids(self) -> tuple[str, ...]:
        """Samples whose metadata the report shows: with an embedding or a prediction."""
        if self.embedded_ids or self.ordination is None:
            return self.embedded_ids or self.sample_ids
        return self.ordination[0]

    @property
    def members(self) -> tuple[str, ...]:
        """Members of the model."""
        return tuple(self.facts.get("members") or (TRANSFORMER,))

    @property
    def target(self) -> str | None:
        """Name of the predicted column; None for pretraining."""
        column = self.option("metadata_column")
        return None if column is None else str(column)

    def input_path(self, flag: str) -> str:
        """Return the path of an input; "" if it is not recorded."""
        return str(self.facts.get("inputs", {}).get(flag, {}).get("path", ""))

    def option(self, name: str) -> Any:
        """Return the value of an option by field; None if it is not recorded."""
        return flat(self.facts.get("options", {})).get(name)


def read_run(folder: Path) -> Run:
    """Read a run folder; files other than run.json may be missing."""
    if not (folder / RECORD).is_file():
        raise MissingInput(
            "Not a run folder",
            f"'{folder}' has no run.json",
            "name the --output-dir of `aam pretrain` or `aam train`",
        )
    facts = run_record.read(folder / RECORD)
    files = tuple(run_files.files_of(folder))

    # Files of an earlier run or of a user are not results of this run.
    def there(name: str) -> Path | None:
        return folder / name if name in files else None

    def rows_of(name: str) -> tuple[dict[str, str], ...] | None:
        """Read a table; its numbers are checked here, for the line of the file."""
        if (path := there(name)) is None:
            return None
        kind, columns, numeric, optional = _TABLES[name]
        header, rows = read_rows(path, kind, columns)
        for column in header:
            if column.startswith((*numeric, *optional)):
                numbers(rows, column, path, kind, optional=column.startswith(optional))
        return tuple(rows)

    path = there("embeddings.tsv")
    embedded_ids, embeddings = read_embeddings(path) if path else ((), None)
    groups = {}
    if path := there("splits.tsv"):
        groups = {sample: group for _, sample, _, _, group, _ in read_assignments(path) if group}
    metrics = {fold.name.removeprefix("fold-"): fold.name for fold in fold_folders(folder)}
    curve_files = {fold: there(f"{name}/metrics.csv") for fold, name in metrics.items()}
    curve_files[""] = there("metrics.csv")
    predictions = there(REPEATS) or there(PREDICTIONS)
    return Run(
        folder=folder,
        files=files,
        facts=facts,
        curves=_read_curves({fold: file for fold, file in curve_files.items() if file}),
        **(_scored_fields(predictions, facts) if predictions else {}),
        embedded_ids=embedded_ids,
        embeddings=embeddings,
        ordination=read_ordination(path) if (path := there("ordination.txt")) else None,
        groups=groups,
        unifrac=read_distances(path) if (path := there("unifrac.tsv")) else None,
        scores=Scores.read(path) if (path := there("scores.json")) else None,
        importance=rows_of("importance.tsv") or (),
        associations=rows_of("associations.tsv") or (),
        explanations=rows_of("explanations.tsv"),
    )


def _read_curves(metrics: Mapping[str, Path]) -> dict[str, dict[str, F64]]:
    curves, kind = {}, "metrics file"
    for fold, file in metrics.items():
        header, rows = read_rows(file, kind, ("epoch",), delimiter=",")
        if rows:
            curves[fold] = {
                name: np.array(numbers(rows, name, file, kind, optional=True), dtype=np.float64)
                for name in ("epoch", *header)
            }
    return curves


def _scored_fields(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read the predictions of a run as fields of `Run`; empty without labels."""
    frame = read_predictions(path)
    if "actual" not in frame.columns:
        return {}
    options, limits = flat(facts["options"]), None
    levels = listed(options.get("ordinal") or ())
    if options.get("classifier") or levels:
        partitions = class_predictions(frame, frame["actual"].tolist(), levels)
    else:
        partitions = numeric_predictions(frame, numeric_column(frame, "actual"))
        if {"lower", "upper"} <= set(frame.columns):
            limits = np.column_stack([numeric_column(frame, name) for name in ("lower", "upper")])
    return {
        "partitions": partitions,
        "partition_ids": tuple(frame[ID_HEADER]),
        "limits": limits,
        "split": str(frame["split"].iloc[0]) if "split" in frame.columns else "",
    }


@dataclass(frozen=True)
class ReportInput:
    """Data of a report."""

    run: Run
    colours: tuple[Colour, ...] = ()  # metadata columns of the described samples
    unit: str = ""  # of a numeric target
    # relative abundances of the leading ASVs, the most important first (samples x ASVs)
    abundances: pd.DataFrame | None = None

    @classmethod
    def of(
        cls,
        run: Run,
        metadata: Path | None = None,
        color_by: Sequence[str] = (),
        categories: Sequence[str] = (),
        unit: str = "",
        abundances: pd.DataFrame | None = None,
    ) -> ReportInput:
        """Read the colours of the samples, by default from the metadata of the run."""
        return cls(run, choose_colours(run, metadata, color_by, categories), unit, abundances)

    @cached_property
    def models(self) -> Mapping[str, Mapping[str, Score]]:
        """Model -> metric -> value with interval; the ensemble first.

        Scores are from scores.json, which must agree with predictions.tsv; without it, they are
        computed from the predictions.
        """
        run = self.run
        if run.partitions is None:
            return {}
        scored = run.partitions.first
        plain = (scored if run.scores is None else run.partitions).metrics()
        if run.scores is None:
            del plain["samples"]
            scores = {name: Score(value, None, None) for name, value in plain.items()}
            # Intervals of classes need probabilities, as the AUC does.
            if scored.type != "classification" or scored.probabilities is not None:
                names = [run.groups.get(name, name) for name in run.sample_ids]
                scores |= resample(scored, np.array(names)).score()
            return {"ensemble": scores}
        models = run.scores.models
        if absent := {"ensemble", "guess"} - models.keys():
            evidence = f"'{run.folder / 'scores.json'}' has no model '{min(absent)}'"
            raise DataError("The scores of the run are damaged", evidence, EDITED)
        # Either file may have been edited: the page must not mix scores and predictions.
        stored = {name: score.value for name, score in models["ensemble"].metrics.items()}
        pairs = [(stored | {"samples": run.scores.samples}, plain)]
        file = REPEATS if REPEATS in run.files else PREDICTIONS
        if (studies := run.scores.studies) is not None:
            # The scores of the model are summaries.
            by_study = scored.by_study
            pairs = [
                (
                    {name: score.value for name, score in study.metrics.items()},
                    by_study[study.study][1].metrics() if study.study in by_study else {},
                )
                for study in studies.studies
            ]
        for other_of, own_of in pairs:
            for name, computed in own_of.items():
                recorded = other_of.get(name, computed)
                alike = recorded is computed
                if recorded is not None and computed is not None:
                    alike = math.isclose(recorded, computed, rel_tol=1e-3, abs_tol=1e-3)
                if not alike:
                    raise DataError(
                        f"The files scores.json and {file} disagree",
                        f"'{run.folder}', {name}: {recorded} and {computed}",
                        "restore the file that was edited, or remove scores.json: the report is "
                        f"then computed from {file}",
                    )
        titles = {name: name for name in models}
        if len(members := run.scores.members) == 1:  # the ensemble is its only member
            titles["ensemble"] = titles.pop(members[0])
        return {title: models[name].metrics for name, title in titles.items()}

    @property
    def target(self) -> str:
        """Name of the target, with its unit."""
        return self.with_unit(self.run.target or "the target")

    @property
    def target_colour(self) -> Colour:
        """True values of the scored samples as colours."""
        scored = self.run.scored
        assert scored is not None
        texts: Sequence[str] = [f"{value:g}" for value in scored.actual.tolist()]
        if scored.classes:
            texts = [scored.classes[code] for code in scored.actual.tolist()]
        return as_colour(self.run.target or "target", texts, bool(scored.classes))

    def with_unit(self, title: str) -> str:
        """Add the unit of the target, if any, to a title."""
        return f"{title} ({self.unit})" if self.unit else title

    def measured(self, value: float, signed: bool = False) -> str:
        """Format an error in the unit of the target (ranks if ordinal)."""
        scored = self.run.scored
        unit = "ranks" if scored is not None and scored.type == "ordinal" else self.unit
        return f"{significant(value, signed)} {unit}".rstrip()


def choose_colours(
    run: Run, metadata: Path | None, columns: Sequence[str], categories: Sequence[str]
) -> tuple[Colour, ...]:
    """Return the colours of the samples of `run.described_ids`."""
    recorded = run.input_path("--metadata")
    path = metadata or (Path(recorded) if recorded else None)
    if not run.described_ids:
        return ()
    if path is None and columns:
        evidence = f"--color-by {' '.join(columns)}"
        raise UsageError("No metadata to colour by", evidence, "give --metadata")
    if path is None or (metadata is None and not columns and not path.exists()):
        return ()
    table = read_metadata(path)
    if metadata is None:
        file = run.input_path("--relabel-file")
        (table,) = relabelled([table], run.option("relabel") or (), Path(file) if file else None)
    group = run.option("group_column")
    is_category = run.option("classifier") or run.option("ordinal")
    columns = table.listed(columns)
    categorical = {*table.listed(categories), group} | ({run.target} if is_category else set())
    chosen = list(columns)
    if run.target is not None and run.target not in chosen:
        chosen.insert(0, run.target)
    if not columns:
        # Groups, confounders, then columns with two to six values in most samples.
        filled = {}
        for name in table.columns:
            texts = [text for text in table.values(name, run.described_ids).tolist() if text]
            if 2 * len(texts) > len(run.described_ids) and 2 <= len(set(texts)) <= FEW_VALUES:
                filled[name] = len(texts)
        chosen += [group] * (group in table.columns)
        if run.scores is not None:
            chosen += [c.column for c in run.scores.confounders if c.column in table.columns]
        chosen += sorted(filled, key=filled.__getitem__, reverse=True)
        chosen = list(dict.fromkeys(chosen))[:OFFERED]
    return tuple(
        as_colour(name, table.values(name, run.described_ids).tolist(), name in categorical)
        for name in chosen
    )


def as_colour(column: str, texts: Sequence[str], category: bool = False) -> Colour:
    """Convert texts ("" if unknown) to numbers if all are and many differ, else to labels."""
    filled = [text for text in texts if text]
    if not category and len(set(filled)) > FEW_VALUES:
        values = as_numbers(texts)
        if np.isfinite(values).sum() == len(filled):
            return Colour(column, tuple(texts), values=values)
    return Colour(column, tuple(texts), labels=tuple(texts))
