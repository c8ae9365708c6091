"""Confounding: metadata columns, and the sequencing depth, that predict the target by themselves.

A column that determines the target nearly without exception is named apart: it is another form of
the target (an age in days and in months, a score and its categories), which is no confounder but a
leak, or it is confounded with the target so completely that the study cannot tell the two apart.

A site, a batch or a season that predicts as well as the table does may be what the model reads. The
prediction of a sample by a category is the mean target of the training samples of the category,
shrunk to the mean of all; by a number, a small decision tree, or that of categories if it predicts
better: plates and batches may have numbers. They are tested on the held-out samples of the same
splits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr
from sklearn.tree import DecisionTreeRegressor

from aam.arrays import F64
from aam.console import warn
from aam.data.metadata import LARGEST_NUMBER, Metadata, as_numbers
from aam.data.study import Study
from aam.evaluation.folds import Folds, training_rows
from aam.evaluation.intervals import SCORED, TITLES
from aam.evaluation.metrics import value_of

DEPTH = "sequencing depth"
"""Name of the column that is the number of reads of each sample."""

_SHRINKAGE = 2.0
"""Samples of the mean of all that are added to each category."""

_LEAF = 10
"""Samples in a leaf of the decision tree, at least."""

_MAX_CATEGORIES = 0.5
"""Categories of a column, relative to its samples; more are names."""

_SAME = 0.99
"""Absolute rank correlation with a number, AUC of classes, or weighted kappa of ordered ones, from
which a column is another form of the target."""

_MAX_COLUMNS = 1000
"""Columns that are tested; each takes about 5 ms of CPU time and a split."""

_MAX_CLASSES = 100
"""Classes of a target for which columns are tested; an AUC of each sorts all samples."""

_LEADING = 5
"""Columns that `leading` returns at most."""

_WORTH_NAMING = 0.05
"""Score above a guess from which `leading` returns a column."""

NO_SKILL = {"r2": 0.0, "auc": 0.5, "weighted_kappa": 0.0}
"""Scores of predictions that say nothing about the target."""

_NEAR = 0.05
"""Columns further below the ensemble than this are not compared with it."""


@dataclass(frozen=True)
class Association:
    """Prediction of the target by one column."""

    column: str  # name of the column, or `DEPTH`
    metric: str  # name of the metric that compares models, see `SCORED`
    value: float  # metric of the predictions of the held-out samples
    predictions_MC: F64  # predictions of the held-out samples
    other_form: bool  # whether the column determines the target nearly without exception


def associations(
    metadata: Metadata, skipped: Sequence[str | None], study: Study, folds: Folds
) -> list[Association]:
    """Predict the target by each column and by the sequencing depth, the best first.

    Args:
        metadata: metadata of the samples of the study.
        skipped: columns that are not tested: the target, the groups, the inputs of the model.
        study: the N samples, with their reads.
        folds: labels and splits of the same samples.

    Returns:
        An entry for each column that varies and has a score, by descending score; none for a target
        of more than `_MAX_CLASSES` classes. The score is the
        first metric of `SCORED` for the type of the target: R², AUC or weighted kappa.
    """
    tested: dict[str, npt.NDArray[Any]] = {DEPTH: np.log(study.reads)}
    names = [name for name in metadata.columns if name not in skipped]
    if len(names) > _MAX_COLUMNS:
        warn(
            f"The metadata has {len(names)} columns; the first {_MAX_COLUMNS} are tested for "
            "confounding. Give fewer columns, those that may matter first, to test all."
        )
    for name in names[:_MAX_COLUMNS]:
        texts = metadata.values(name, study.table.sample_ids)
        values_N = as_numbers(texts.tolist())
        if (np.isnan(values_N) & (texts != "")).any():
            tested[name] = texts
        else:
            # Infinite numbers and those that overflow in a decision tree are missing.
            tested[name] = np.where(np.abs(values_N) <= LARGEST_NUMBER, values_N, np.nan)
    labels = folds.labels
    if len(labels.classes) > _MAX_CLASSES:
        warn(
            f"The target has {len(labels.classes)} classes; columns are tested for confounding "
            f"with up to {_MAX_CLASSES}."
        )
        return []
    metric, function = next(iter(SCORED[labels.type].items()))
    found = []
    for name, values_N in tested.items():
        scored = [
            (value, predictions_MC)
            for predictions_MC in _predictions(values_N, folds)
            if not math.isnan(value := value_of(function, folds.scored(predictions_MC)))
        ]
        if not scored:
            continue
        value, predictions_MC = max(scored, key=lambda one: one[0])
        same = labels.type != "regression" and value >= _SAME
        if labels.type == "regression" and values_N.dtype.kind == "f":
            present = np.isfinite(values_N)
            if len(np.unique(values_N[present])) > 2:
                ranks = spearmanr(values_N[present], labels.values[present])
                same = bool(abs(ranks.statistic) >= _SAME)
        found.append(Association(name, metric, value, predictions_MC, same))
    return sorted(found, key=lambda one: -one.value)


def leading(found: Sequence[Association], folds: Folds) -> list[Association]:
    """Return the first columns that predict the target clearly better than a guess.

    Their score is ahead of that of a guess by at least `_WORTH_NAMING`, and beyond noise.

    Args:
        found: result of `associations`, the best first.
        folds: labels and splits.
    """
    guess = folds.drawn(folds.dummy_MC)
    least = next(iter(guess.whole.values())) + _WORTH_NAMING
    return [
        column
        for column in found[:_LEADING]
        if column.value >= least
        and folds.drawn(column.predictions_MC).paired_difference(guess)[1].beyond_noise
    ]


def confounders(
    found: Sequence[Association], folds: Folds, ensemble_MC: F64
) -> list[dict[str, Any]]:
    """Return the columns that the ensemble is not ahead of beyond noise, the best first.

    Args:
        found: result of `associations`, the best first.
        folds: labels and splits.
        ensemble_MC: its predictions of the held-out samples.
    """
    metric = next(iter(SCORED[folds.labels.type]))
    model = folds.drawn(ensemble_MC)
    dummy = folds.drawn(folds.dummy_MC)
    best = model.whole[metric]
    predictive = []
    for one in found:
        # A column without skill (R² or kappa below 0, AUC below 0.5) is none, however bad the dummy
        # of these folds is. `not >=` also skips all where the ensemble's score is NaN.
        if one.value <= NO_SKILL[metric] or not one.value >= best - _NEAR:
            continue
        column = folds.drawn(one.predictions_MC)
        _, ahead = model.paired_difference(column)
        _, informative = column.paired_difference(dummy)
        lower = informative.lower
        if lower is None or lower <= 0 or (ahead.beyond_noise and one.value < best):
            continue
        score = asdict(column.score()[metric])
        predictive.append(
            {"column": one.column, "metric": metric, **score, "other_form": one.other_form}
        )
    return predictive


def warning(confounder: Mapping[str, Any]) -> str:
    """Return the sentence about a column that predicts the target by itself."""
    column, score = confounder["column"], f"{confounder['value']:.3f}"
    title = TITLES[confounder["metric"]]
    if confounder["other_form"]:
        return (
            f"'{column}' determines the target nearly without exception ({title} {score}): it is "
            "another form of the target (in other units, a score and its categories) or completely "
            "confounded with it; do not give it to the model."
        )
    return (
        f"'{column}' alone predicts the target as well as the table does ({title} {score}): what "
        "the model reads may be that."
    )


def _predictions(values_N: npt.NDArray[Any], folds: Folds) -> Iterator[F64]:
    """Yield predictions [M, C] of the held-out samples from one column, by each suitable model.

    There is none for a column that does not vary, and for a list of names.
    """
    numeric = values_N.dtype.kind == "f"
    if numeric:
        # Missing values lie below all numbers, where one split of the tree separates them: that a
        # value is missing may itself predict the target.
        values_N = np.where(np.isfinite(values_N), values_N, -np.inf)
    # Ranks: the tree reads float32, in which the numbers of runs and times may be equal.
    categories, code_N = np.unique(values_N, return_inverse=True)
    if len(categories) < 2:
        return
    predicted_NC = folds.labels.predicted_NC
    # scikit-learn splits no node with a variance below 2.2e-16, whatever the unit is.
    mean_C, std_C = predicted_NC.mean(axis=0), predicted_NC.std(axis=0)
    scale_C = np.where(std_C > 0, std_C, 1.0)
    by_tree, by_category = [], []
    for split in folds.splits:
        fitted, predicted = training_rows(split), split.held_out[1]
        if numeric:
            # At most about 20 leaves, so that the tree of a large study does not store its samples.
            leaf = max(_LEAF, len(fitted) // 20)
            tree = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0)
            tree.fit(code_N[fitted, None], (predicted_NC[fitted] - mean_C) / scale_C)
            leaves_MC = tree.predict(code_N[predicted, None]).reshape(len(predicted), -1)
            by_tree.append(leaves_MC * scale_C + mean_C)
        # Shrunken target encoding (Micci-Barreca 2001): the mean of a category with one training
        # sample would be the label of that sample.
        total_VC = np.tile(_SHRINKAGE * predicted_NC[fitted].mean(axis=0), (len(categories), 1))
        np.add.at(total_VC, code_N[fitted], predicted_NC[fitted])
        count_V = np.bincount(code_N[fitted], minlength=len(categories))
        by_category.append((total_VC / (count_V + _SHRINKAGE)[:, None])[code_N[predicted]])
    if numeric:
        yield np.concatenate(by_tree)
    if len(categories) <= _MAX_CATEGORIES * len(values_N):
        yield np.concatenate(by_category)
