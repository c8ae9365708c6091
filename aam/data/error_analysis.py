"""Error analysis: metrics of predictions for each value of a metadata column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aam.data.metadata import as_numbers
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
        named = {name: np.flatnonzero(labels == name) for name in sorted(set(labels.tolist()))}
        return {name: compute_metrics(scored.take(chosen)) for name, chosen in named.items()}
    rows = quantile_bins(numbers, BINS)
    if len(unknown := np.flatnonzero(~np.isfinite(numbers))):
        rows[UNKNOWN] = unknown
    return {name: compute_metrics(scored.take(chosen)) for name, chosen in rows.items()}


def quantile_bins(values: npt.NDArray[np.float64], number: int) -> dict[str, npt.NDArray[np.int64]]:
    """Divide values at their quantiles into bins of about equal size.

    Args:
        values: float64 [N], at least one of them finite.
        number: largest number of bins; equal quantiles make fewer.

    Returns:
        The rows of each bin by its range, with four significant digits, or more where four do not
        tell the ranges apart; values that are not finite are in none.

    >>> {name: rows.tolist() for name, rows in quantile_bins(np.arange(4.0), 2).items()}
    {'0 to 1.5': [0, 1], '1.5 to 3': [2, 3]}
    """
    known = np.isfinite(values)
    edges = np.unique(np.quantile(values[known], np.linspace(0, 1, number + 1)))
    bins = np.where(known, np.searchsorted(edges[1:-1], values, side="right"), -1)
    formatted = ([f"{edge:.{digits}g}" for edge in edges] for digits in (4, 8, 12, 17))
    names = next(one for one in formatted if len(set(one)) == len(edges))  # 17 digits are exact
    return {
        f"{low} to {high}": np.flatnonzero(bins == bin_number)
        for bin_number, (low, high) in enumerate(pairwise(names))
    }


def _numbers(texts: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Return the values as numbers, NaN where missing; None unless they are many numbers."""
    if len({*texts} - {""}) <= FEW_VALUES:
        return None
    values = as_numbers(texts)
    return values if np.isnan(values).sum() == list(texts).count("") else None
