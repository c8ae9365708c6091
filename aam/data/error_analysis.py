"""Error analysis: metrics of predictions for each value of a metadata column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aam.data.metrics import Metrics, ScoredPredictions, compute_metrics

FEW_VALUES = 6
"""A column with no more distinct numbers than this is not binned."""

BINS = 4
UNKNOWN = "(missing)"


def metrics_by(scored: ScoredPredictions, texts: Sequence[str]) -> dict[str, Metrics]:
    """Return the metrics of the samples of each value, in the order of the values.

    Args:
        scored: n samples.
        texts: value of each sample, "" where it is missing. More than `FEW_VALUES` different
            numbers are put into `BINS` bins of about equal numbers of samples.
    """
    numbers = _numbers(texts)
    if numbers is None:
        labels = np.array([text or UNKNOWN for text in texts])
        return {name: _of(scored, labels == name) for name in sorted(set(labels.tolist()))}
    known = np.isfinite(numbers)
    edges = np.unique(np.quantile(numbers[known], np.linspace(0, 1, BINS + 1)))
    bins = np.where(known, np.searchsorted(edges[1:-1], numbers, side="right"), -1)
    found = {
        f"{low:.4g} to {high:.4g}": _of(scored, bins == number)
        for number, (low, high) in enumerate(pairwise(edges))
    }
    if not known.all():
        found[UNKNOWN] = _of(scored, ~known)
    return found


def _of(scored: ScoredPredictions, chosen: npt.NDArray[np.bool_]) -> Metrics:
    return compute_metrics(scored.take(np.flatnonzero(chosen)))


def _numbers(texts: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Return the values as numbers, NaN where missing; None unless they are many numbers."""
    if len({*texts} - {""}) <= FEW_VALUES:
        return None
    try:
        values = np.array([float(text) if text else np.nan for text in texts])
    except ValueError:
        return None
    return values
