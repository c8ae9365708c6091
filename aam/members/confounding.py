"""Confounding: metadata columns, and the sequencing depth, that predict the target by themselves.

A number that rises or falls with the target nearly without exception is the target in other units
(an age in days and in months), not a confounder; it is named as that.

A site, a batch or a season that predicts as well as the table does may be what the model reads. The
prediction of a sample by a category is the mean target of the training samples of the category,
shrunk to the mean of all; by a number, a small decision tree. Both are tested on the held-out
samples of the same splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.metadata import Metadata
from aam.data.metrics import ScoredPredictions
from aam.data.splits import Split
from aam.members.base import F64, Labels
from aam.members.cross_validation import HeldOut, training_rows
from aam.members.scores import SCORED, TITLES, draw_groups, draw_metrics

DEPTH = "sequencing depth"
"""Name of the column that is the number of reads of each sample."""

_SHRINKAGE = 2.0
"""Samples of the mean of all that are added to each category."""

_LEAF = 10
"""Samples in a leaf of the decision tree, at least."""

_MOST_CATEGORIES = 0.5
"""Categories of a column, relative to its samples; more are names."""

_SAME = 0.99
"""Absolute rank correlation from which a column is the target in other units."""

_NEAR = 0.05
"""Columns further below the ensemble than this are not compared with it."""


def confounders(
    metadata: Metadata,
    skipped: Sequence[str | None],
    sample_ids: Sequence[str],
    reads_N: npt.NDArray[np.int64],
    labels: Labels,
    splits: Sequence[Split],
    held: HeldOut,
    ensemble: ScoredPredictions,
    seed: int,
) -> list[dict[str, Any]]:
    """Return the columns that the ensemble is not ahead of beyond noise, the best first.

    Args:
        metadata: of the samples.
        skipped: columns that are not tested: the target and the groups.
        sample_ids: N ids.
        reads_N: reads of each sample.
        labels: of all N samples.
        splits: one, or one per fold.
        held: their held-out samples.
        ensemble: its predictions of the held-out samples.
        seed: of the bootstrap.
    """
    tested: dict[str, npt.NDArray[Any]] = {DEPTH: np.log(reads_N)}
    tested |= {
        name: _as_numbers(metadata.values(name, sample_ids))
        for name in metadata.columns
        if name not in skipped
    }
    metric, function = next(iter(SCORED[labels.type].items()))
    draws = draw_groups(labels.groups[held.rows], seed)
    constant = held.scored(_predict(np.zeros(len(reads_N)), labels, splits), labels)
    model, guess = draw_metrics(ensemble, draws), draw_metrics(constant, draws)
    best = model.whole[metric]
    found = []
    for name, values_N in tested.items():
        if not _may_predict(values_N):
            continue
        alone = held.scored(_predict(values_N, labels, splits), labels)
        if not function(alone) >= best - _NEAR:
            continue
        own = draw_metrics(alone, draws)
        _, ahead = model.ahead_of(own)
        _, informative = own.ahead_of(guess)
        lower = informative.lower
        if lower is None or lower <= 0 or (ahead.beyond_noise and function(alone) < best):
            continue
        same = not labels.classes and _is_monotone(values_N, labels.values)
        score = asdict(own.score()[metric])
        found.append({"column": name, "metric": metric, **score, "other_units": same})
    return sorted(found, key=lambda one: -one["value"])


def warning(confounder: Mapping[str, Any]) -> str:
    """Return the sentence about a confounder."""
    title = TITLES[confounder["metric"]]
    if confounder.get("other_units"):
        return (
            f"'{confounder['column']}' is the target in other units (it rises or falls with it, "
            f"{title} {confounder['value']:.3f}): it is no confounder; do not give it to the model."
        )
    return (
        f"'{confounder['column']}' alone predicts the target as well as the table does "
        f"({title} {confounder['value']:.3f}): what the model reads may be that."
    )


def _is_monotone(values_N: npt.NDArray[Any], target_N: F64) -> bool:
    """Return whether numbers have a rank correlation of at least `_SAME` with the target."""
    from scipy.stats import spearmanr

    if values_N.dtype.kind != "f":
        return False
    present = np.isfinite(values_N)
    if len(np.unique(values_N[present])) < 3:
        return False
    return bool(abs(spearmanr(values_N[present], target_N[present]).statistic) >= _SAME)


def _as_numbers(texts: npt.NDArray[np.str_]) -> npt.NDArray[Any]:
    """Convert a column to numbers, "" to NaN, if all of its values are numbers."""
    try:
        return np.array([float(text) if text else np.nan for text in texts])
    except ValueError:
        return texts


def _may_predict(values_N: npt.NDArray[Any]) -> bool:
    """Return whether a column varies and is no list of names."""
    categories = len(np.unique(values_N))
    numeric = values_N.dtype.kind == "f"
    return categories > 1 and (numeric or categories <= _MOST_CATEGORIES * len(values_N))


def _predict(values_N: npt.NDArray[Any], labels: Labels, splits: Sequence[Split]) -> F64:
    """Return predictions [M, C] of the held-out samples from one column."""
    from sklearn.tree import DecisionTreeRegressor

    outputs_NC = labels.outputs_NC
    found = []
    for split in splits:
        fitted, predicted = training_rows(split), split.held_out[1]
        if values_N.dtype.kind == "f":
            column = np.where(np.isfinite(values_N), values_N, np.nanmin(values_N) - 1)[:, None]
            leaf = max(_LEAF, len(fitted) // 20)
            tree = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0)
            tree.fit(column[fitted], outputs_NC[fitted])
            found.append(tree.predict(column[predicted]).reshape(len(predicted), -1))
            continue
        mean_C = outputs_NC[fitted].mean(axis=0)
        of_fold = np.tile(mean_C, (len(predicted), 1))
        for value in np.unique(values_N[predicted]):
            same = fitted[values_N[fitted] == value]
            total_C = outputs_NC[same].sum(axis=0) + _SHRINKAGE * mean_C
            of_fold[values_N[predicted] == value] = total_C / (len(same) + _SHRINKAGE)
        found.append(of_fold)
    return np.concatenate(found)
