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
from aam.evaluation.folds import Folds, training_rows
from aam.evaluation.intervals import COMPARED, NO_SKILL, TITLES, Score
from aam.evaluation.metrics import FEW_VALUES, ScoredPredictions, value_of

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
"""Columns that `leading` returns at most, besides the sequencing depth, and a sentence names."""

_RARE = 5
"""Held-out samples of a class, below which it does not decide whether a column is another form."""

_WORTH_NAMING = 0.05
"""Score above a guess from which `leading` returns a column."""

_NEAR = 0.05
"""Columns further below the ensemble than this are not compared with it."""


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
    """Predict the target by each column and by the sequencing depth, the best first.

    Columns that are `skipped`, do not vary or have no score are left out; a target of more than
    `_MAX_CLASSES` classes has none. The score is the metric of `COMPARED` for the type of the
    target.
    """
    tested: dict[str, npt.NDArray[Any]] = {}
    if study.table.quantity == "reads":
        tested[DEPTH] = np.log(study.reads)
    names = [name for name in metadata.columns if name not in skipped]
    if len(names) > _MAX_COLUMNS:
        warn(
            f"The metadata has {len(names)} columns; the first {_MAX_COLUMNS} are tested for "
            "confounding. Give fewer columns, those that may matter first, to test all."
        )
    for name in names[:_MAX_COLUMNS]:
        tested[name] = _values(name, metadata, study.table.sample_ids)
    labels = folds.labels
    if len(labels.classes) > _MAX_CLASSES:
        warn(
            f"The target has {len(labels.classes)} classes; columns are tested for confounding "
            f"with up to {_MAX_CLASSES}."
        )
        return []
    metric, function = COMPARED[labels.type]
    columns = []
    for name, values_N in tested.items():
        scored = [
            (value, predictions_MC)
            for predictions_MC in _predictions(values_N, folds)
            if not math.isnan(value := value_of(function, folds.scored(predictions_MC)))
        ]
        if not scored:
            continue
        value, predictions_MC = max(scored, key=lambda pair: pair[0])
        same = False
        if labels.type != "regression":
            # Of a class of a few samples no column predicts anything: stray labels would hide a
            # leak in the mean over the classes.
            frequent = value_of(function, _without_rare(folds.scored(predictions_MC)))
            same = frequent >= _SAME
            value = frequent if same else value
        if labels.type == "regression" and values_N.dtype.kind == "f":
            present = np.isfinite(values_N)
            if len(np.unique(values_N[present])) > 2:
                ranks = spearmanr(values_N[present], labels.values[present])
                same = bool(abs(ranks.statistic) >= _SAME)
        # The depth is never the target in other words, however well it predicts.
        columns.append(Association(name, metric, value, predictions_MC, same and name != DEPTH))
    return sorted(columns, key=lambda association: -association.value)


def _values(name: str, metadata: Metadata, sample_ids: Sequence[str]) -> npt.NDArray[Any]:
    """Return the numbers of a column, or the texts of one with others; NaN or "" where missing."""
    texts = metadata.values(name, sample_ids)
    values_N = as_numbers(texts.tolist())
    if (np.isnan(values_N) & (texts != "")).any():
        return texts
    # Infinite numbers and those that overflow in a decision tree are missing.
    return np.where(np.abs(values_N) <= LARGEST_NUMBER, values_N, np.nan)


def read_adjustment(
    columns: Sequence[str], metadata: Metadata, sample_ids: Sequence[str]
) -> Covariates | None:
    """Read the columns of --adjust-for; None without any.

    Those of words, of few different numbers and of the type categorical are categories.
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
            f"{' or '.join(adjustment.columns)}: the adjusted test leaves them out (--adjust-for)."
        )
    return adjustment


def _without_rare(scored: ScoredPredictions) -> ScoredPredictions:
    """Return the samples of classes of at least `_RARE`, or all where fewer than two are left."""
    counts = np.bincount(scored.first.actual.astype(np.int64))
    if (counts >= _RARE).sum() < 2:
        return scored
    return scored.take(np.flatnonzero(counts[scored.actual.astype(np.int64)] >= _RARE))


def leading(columns: Sequence[Association], folds: Folds) -> list[Association]:
    """Return the first columns that predict the target clearly better than a guess.

    Their score is ahead of the guess by at least `_WORTH_NAMING`, and significantly. The sequencing
    depth is the first of them: it is no property of the samples.
    """
    guess = folds.drawn(folds.dummy_MC)
    least = guess.whole[COMPARED[folds.labels.type][0]] + _WORTH_NAMING
    # Other forms of the target need no interval, which few groups do not have.
    named = [
        column
        for place, column in enumerate(columns)
        if column.value >= least
        and (place < _LEADING or column.column == DEPTH)
        and (
            column.other_form
            or folds.drawn(column.predictions_MC).paired_difference(guess)[1].beyond_noise
        )
    ]
    return sorted(named, key=lambda column: column.column != DEPTH)


def confounders(columns: Sequence[Association], folds: Folds, ensemble_MC: F64) -> list[Confounder]:
    """Return the columns that the ensemble is not significantly ahead of, the depth first."""
    metric, _ = COMPARED[folds.labels.type]
    model = folds.drawn(ensemble_MC)
    dummy = folds.drawn(folds.dummy_MC)
    best = model.whole[metric]
    predictive = []
    for association in columns:
        value = association.value
        # A column without skill (R² or kappa below 0, AUC below 0.5) is none, however bad the guess
        # of these folds is. `not >=` also skips all where the ensemble's score is NaN.
        if value <= NO_SKILL[metric] or not value >= best - _NEAR:
            continue
        column = folds.drawn(association.predictions_MC)
        _, ahead = model.paired_difference(column)
        _, informative = column.paired_difference(dummy)
        lower = informative.lower
        # Another form of the target is a leak without any interval: of a few groups there is none.
        beyond_dummy = association.other_form or (lower is not None and lower > 0)
        if not beyond_dummy or (ahead.beyond_noise and value < best):
            continue
        score = column.score()[metric]
        limits = (score.lower, score.upper)
        if score.value is None or value > score.value:  # without rare classes
            limits = (None, None)
        predictive.append(
            Confounder(association.column, metric, value, *limits, association.other_form)
        )
    return sorted(predictive, key=lambda column: column.column != DEPTH)


def confounding_sentences(
    confounding: Sequence[Confounder], better: bool, at_equal_depth: str | None
) -> list[str]:
    """Return a sentence about the sequencing depth, and one about all other columns.

    Other forms of the target are left out, since the training warns of them. `at_equal_depth` is
    the sentence about the score at equal depth.
    """
    claim = "alone predict{s} the target as well as the table does"
    if not better:
        claim = "alone predict{s} the target, which the table is not shown to do"
    sentences, columns = [], [column for column in confounding if not column.other_form]
    for depth in (True, False):
        named = [column for column in columns if (column.column == DEPTH) == depth]
        if not named:
            continue
        title = TITLES.get(named[0].metric, named[0].metric)  # a file may have been edited
        intervals = (Score(column.value, column.lower, column.upper) for column in named)
        scores = [score.estimate(named[0].metric) for score in intervals]
        if depth:
            text = f"The {DEPTH} {claim.format(s='s')} ({title} {scores[0]})"
        elif len(named) == 1:
            text = f"'{named[0].column}' {claim.format(s='s')} ({title} {scores[0]})"
        else:
            shown = zip(named[:_LEADING], scores, strict=False)
            listed = ", ".join(f"'{column.column}' {score}" for column, score in shown)
            more = f" and {len(named) - _LEADING} more" if len(named) > _LEADING else ""
            text = f"{len(named)} columns {claim.format(s='')} ({title}): {listed}{more}"
        if better:
            text += "; what the model reads may be that"
        remedy = f" {at_equal_depth}." if depth and at_equal_depth else ""
        sentences.append(f"{text}.{remedy}")
    return sentences


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
