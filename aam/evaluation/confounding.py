"""Confounding: metadata columns, and the sequencing depth, that alone predict the target.

If a site, a batch or a season predicts the target as well as the microbiome does, the model may
only be picking up this column. A category predicts the mean target of its training samples, shrunk
to the mean of all training samples. A number predicts by a small decision tree, or as a category if
this is better, because plates and batches may have numbers. All are scored on the held-out samples
of the same splits.

A column that determines the target almost without exception is called another form of the target
(an age in days and in months, a score and its categories). It is a leak, not a confounder, or the
study cannot separate it from the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr
from sklearn.tree import DecisionTreeRegressor

from aam.arrays import F64
from aam.console import info, warn
from aam.data.covariates import Covariates
from aam.data.metadata import LARGEST_NUMBER, Metadata, as_numbers
from aam.data.study import Study
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import COMPARED, NO_SKILL, TITLES, Score
from aam.evaluation.metrics import FEW_VALUES, ScoredPredictions

DEPTH = "sequencing depth"
"""Name of the number of reads of each sample among the columns."""

_SHRINKAGE = 2.0
"""Weight, in samples, of the overall mean in the mean of each category."""

_LEAF = 10
"""Fewest samples in a leaf of the decision tree."""

_MAX_CATEGORIES = 0.5
"""Most categories of a column, relative to its samples; columns with more hold names."""

_SAME = 0.99
"""A column with this absolute rank correlation with a number, AUC of classes, or weighted kappa of
ordered categories is another form of the target."""

_MAX_COLUMNS = 1000
"""Most columns that are tested; each takes about 5 ms of CPU time per split."""

_MAX_CLASSES = 100
"""Most classes of a target that is tested; the AUC of each class sorts all samples."""

_LEADING = 5
"""Most columns that `leading` returns besides the sequencing depth, and that a sentence names."""

_RARE = 5
"""A class with fewer held-out samples does not decide whether a column is another form."""

_WORTH_NAMING = 0.05
"""Score above the baseline from which `leading` returns a column."""

_NEAR = 0.05
"""A column that scores further below the ensemble is not compared with it."""


@dataclass(frozen=True)
class Confounder:
    """Column that alone predicts the target as well as the ensemble does."""

    column: str  # its name, or `DEPTH`
    metric: str
    value: float
    lower: float | None = None
    upper: float | None = None
    other_form: bool = False  # whether the column determines the target


@dataclass(frozen=True)
class Association:
    """Prediction of the target by one column."""

    column: str  # name of the column, or `DEPTH`
    metric: str  # name of the metric that compares models, see `COMPARED`
    value: float  # metric of the predictions of the held-out samples
    predictions_MC: F64  # predictions of the held-out samples
    other_form: bool  # whether the column determines the target nearly without exception


def associations(
    metadata: Metadata, skipped: Sequence[str | None], study: Study, folds: Folds
) -> list[Association]:
    """Predict the target by each metadata column and by the sequencing depth, the best first.

    Columns that are `skipped`, do not vary or have no score are left out. A target with more than
    `_MAX_CLASSES` classes is not tested. The score is the metric of `COMPARED`.
    """
    tested: dict[str, npt.NDArray[Any]] = {}
    if study.table.quantity == "reads":
        tested[DEPTH] = np.log(study.reads)
    names = [name for name in metadata.columns if name not in skipped]
    if len(names) > _MAX_COLUMNS:
        warn(
            f"Only the first {_MAX_COLUMNS} of {len(names)} metadata columns are tested for "
            "confounding. Put the columns that may matter first, or remove others."
        )
    for name in names[:_MAX_COLUMNS]:
        tested[name] = _values(name, metadata, study.table.sample_ids)
    labels = folds.labels
    if len(labels.classes) > _MAX_CLASSES:
        warn(
            "Metadata columns are not tested for confounding: the target has "
            f"{len(labels.classes)} classes, more than {_MAX_CLASSES}."
        )
        return []
    metric, function = COMPARED[labels.type]
    columns = []
    for name, values_N in tested.items():
        scored = [
            (value, predictions_MC)
            for predictions_MC in _predictions(values_N, folds)
            if not math.isnan(value := folds.scored(predictions_MC).value(function))
        ]
        if not scored:
            continue
        value, predictions_MC = max(scored, key=lambda pair: pair[0])
        same = False
        if labels.type != "regression":
            # No column predicts a class of a few samples; in the mean over classes these stray
            # labels would hide a leak.
            frequent = _without_rare(folds.scored(predictions_MC)).value(function)
            same = frequent >= _SAME
            value = frequent if same else value
        if labels.type == "regression" and values_N.dtype.kind == "f":
            present = np.isfinite(values_N)
            if len(np.unique(values_N[present])) > 2:
                ranks = spearmanr(values_N[present], labels.values[present])
                same = bool(abs(ranks.statistic) >= _SAME)
        # The depth is never another form of the target.
        columns.append(Association(name, metric, value, predictions_MC, same and name != DEPTH))
    return sorted(columns, key=lambda association: -association.value)


def _values(name: str, metadata: Metadata, sample_ids: Sequence[str]) -> npt.NDArray[Any]:
    """Return a column as numbers, or as texts if some are not numbers; NaN or "" if missing."""
    texts = metadata.values(name, sample_ids)
    values_N = as_numbers(texts.tolist())
    if (np.isnan(values_N) & (texts != "")).any():
        return texts
    # Infinite numbers, and numbers that overflow in a decision tree, count as missing.
    return np.where(np.abs(values_N) <= LARGEST_NUMBER, values_N, np.nan)


def read_adjustment(
    columns: Sequence[str], metadata: Metadata, sample_ids: Sequence[str]
) -> Covariates | None:
    """Read the columns of --adjust-for; None without the option.

    Columns with words, with few different numbers, or of the type categorical are categories.
    """
    categories: dict[str, npt.NDArray[np.str_]] = {}
    numbers: dict[str, F64] = {}
    for name in metadata.listed(columns):
        values_N = _values(name, metadata, sample_ids)
        few = len(np.unique(values_N)) <= FEW_VALUES or name in metadata.categorical
        if few or values_N.dtype.kind != "f":
            categories[name] = metadata.values(name, sample_ids)
        else:
            numbers[name] = values_N
    if not (categories or numbers):
        return None
    adjustment = Covariates(categories, numbers)
    if missing := int((~adjustment.complete).sum()):
        info(
            f"{missing} of {len(sample_ids)} samples have no value of "
            f"{' or '.join(adjustment.columns)} (--adjust-for): the adjusted test leaves them out."
        )
    return adjustment


def _without_rare(scored: ScoredPredictions) -> ScoredPredictions:
    """Leave out samples of rare classes, unless fewer than two classes would remain."""
    counts = np.bincount(scored.first.actual.astype(np.int64))
    if (counts >= _RARE).sum() < 2:
        return scored
    return scored.take(np.flatnonzero(counts[scored.actual.astype(np.int64)] >= _RARE))


def leading(columns: Sequence[Association], folds: Folds) -> list[Association]:
    """Return the best columns that predict the target clearly better than the baseline.

    Their score is significantly above the baseline, and by at least `_WORTH_NAMING`. The sequencing
    depth comes first, because it is not a property of the samples.
    """
    baseline = folds.resampled(folds.baseline_MC)
    least = baseline.values[COMPARED[folds.labels.type][0]] + _WORTH_NAMING
    # Other forms of the target need no interval: few groups have none.
    best = [
        column
        for rank, column in enumerate(columns)
        if column.value >= least
        and (rank < _LEADING or column.column == DEPTH)
        and (
            column.other_form
            or folds.resampled(column.predictions_MC).paired_difference(baseline)[1].excludes_zero
        )
    ]
    return sorted(best, key=lambda column: column.column != DEPTH)


def confounders(columns: Sequence[Association], folds: Folds, ensemble_MC: F64) -> list[Confounder]:
    """Return the columns that the ensemble does not significantly exceed, the depth first."""
    metric, _ = COMPARED[folds.labels.type]
    model, baseline = (folds.resampled(each_MC) for each_MC in (ensemble_MC, folds.baseline_MC))
    best = model.values[metric]
    predictive = []
    for association in columns:
        value = association.value
        # A column without skill (R² or kappa below 0, AUC below 0.5) is no confounder, however bad
        # the baseline of these folds is. `not >=` also skips all columns if `best` is NaN.
        if value <= NO_SKILL[metric] or not value >= best - _NEAR:
            continue
        column = folds.resampled(association.predictions_MC)
        _, ahead = model.paired_difference(column)
        lower = column.paired_difference(baseline)[1].lower
        # Another form of the target is a leak without an interval: few groups have none.
        informative = association.other_form or (lower is not None and lower > 0)
        if not informative or (ahead.excludes_zero and value < best):
            continue
        score = column.score()[metric]
        limits = (score.lower, score.upper)
        if score.value is None or value > score.value:  # a score without rare classes
            limits = (None, None)
        predictive.append(
            Confounder(association.column, metric, value, *limits, association.other_form)
        )
    return sorted(predictive, key=lambda column: column.column != DEPTH)


def confounding_sentences(
    confounding: Sequence[Confounder], better: bool, at_equal_depth: str | None
) -> list[str]:
    """Return a sentence about the sequencing depth, and one about all other columns.

    Other forms of the target are left out, since training warns of them. `at_equal_depth` is the
    sentence about the score at equal depth.
    """
    sentences = []
    for is_depth in (True, False):
        columns = [
            column
            for column in confounding
            if not column.other_form and (column.column == DEPTH) == is_depth
        ]
        if not columns:
            continue
        metric = columns[0].metric
        title = TITLES.get(metric, metric)  # a file may have been edited
        subject, verb, suspect = f"{len(columns)} metadata columns", "each predict", "one of them"
        estimates = [
            (f"'{column.column}'", Score(column.value, column.lower, column.upper).estimate(metric))
            for column in columns
        ]
        evidence = f"{title}: {', '.join(map(' '.join, estimates[:_LEADING]))}"
        evidence += f" and {len(columns) - _LEADING} more" * (len(columns) > _LEADING)
        if len(columns) == 1:
            name, estimate = estimates[0]
            subject, verb, suspect = f"The {DEPTH}" if is_depth else name, "alone predicts", "this"
            evidence = f"{title} {estimate}"
        text = f"{subject} {verb} the target ({evidence}); the microbiome is not shown to."
        if better:
            text = f"{subject} {verb} the target as well as the microbiome does ({evidence}): the "
            text += f"model may only be picking up {suspect}."
        sentences.append(text + (f" {at_equal_depth}." if is_depth and at_equal_depth else ""))
    return sentences


def _predictions(values_N: npt.NDArray[Any], folds: Folds) -> Iterator[F64]:
    """Yield predictions [M, C] of the held-out samples from one column, by each suitable model.

    A column that does not vary, or that is a list of names, has none.
    """
    numeric = values_N.dtype.kind == "f"
    if numeric:
        # Missing values are placed below all numbers, so one split of the tree separates them: a
        # missing value may itself predict the target.
        values_N = np.where(np.isfinite(values_N), values_N, -np.inf)
    # Ranks, because the tree uses float32, which cannot tell apart long run numbers or times.
    categories, code_N = np.unique(values_N, return_inverse=True)
    if len(categories) < 2:
        return
    predicted_NC = folds.labels.predicted_NC
    # scikit-learn splits no node with a variance below 2.2e-16, whatever the unit is.
    mean_C, std_C = predicted_NC.mean(axis=0), predicted_NC.std(axis=0)
    scale_C = np.where(std_C > 0, std_C, 1.0)
    by_tree, by_category = [], []
    for split in folds.splits:
        fitted, predicted = split.training_rows, split.held_out[1]
        if numeric:
            # At most about 20 leaves, so that the tree of a large study does not memorize samples.
            leaf = max(_LEAF, len(fitted) // 20)
            tree = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0)
            tree.fit(code_N[fitted, None], (predicted_NC[fitted] - mean_C) / scale_C)
            leaves_MC = tree.predict(code_N[predicted, None]).reshape(len(predicted), -1)
            by_tree.append(leaves_MC * scale_C + mean_C)
        # Shrunken target encoding (Micci-Barreca 2001): without shrinkage, a category with one
        # training sample would predict its label.
        total_VC = np.tile(_SHRINKAGE * predicted_NC[fitted].mean(axis=0), (len(categories), 1))
        np.add.at(total_VC, code_N[fitted], predicted_NC[fitted])
        count_V = np.bincount(code_N[fitted], minlength=len(categories))
        by_category.append((total_VC / (count_V + _SHRINKAGE)[:, None])[code_N[predicted]])
    if numeric:
        yield np.concatenate(by_tree)
    if len(categories) <= _MAX_CATEGORIES * len(values_N):
        yield np.concatenate(by_category)
