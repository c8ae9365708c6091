"""Permutation test of held-out predictions, without fitting a model again.

The statistic is the score in the verdict. Labels are permuted among the held-out samples, and the
predictions stay as they are, so the test costs the same for a kernel, a forest and a network.

The predictions of a fold do not depend on its labels, so the test is exact for a single split. With
several folds, the score varies more than under these permutations: a label is permuted in its own
fold, but it also trained the models of the other folds, and both effects have the same sign. For
predictions that are linear in the training labels, y_k' A_kl y_l, the terms of the folds k and l
add up in pairs, and for random labels (mean 0, variance 1, independent of the samples)

    var(sum_kl y_k' A_kl y_l) = sum_k<l |A_kl + A_lk'|² <= 2 sum_kl |A_kl|²,

twice the variance under permutation, with equality for the symmetric A of a kernel. Deviations of
the permuted scores are therefore multiplied by the square root of 2. Labels are permuted across all
folds, because a fold may have few groups; mean predictions that run against the labels of a fold
improve no score. Forests and networks are only nearly linear, so 2 is not a bound for them:
`benchmarks/random_labels.py` measures the level, with results in `docs/experiments/intervals.md`.

M held-out samples, I groups, B permutations.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from aam.arrays import F64, Codes, Rows
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import scored_metrics

PERMUTATIONS = 999

EXACT_KERNEL = 4000
"""Most samples for an exact kernel, and for results that need one."""

_LABELS = 4_000_000
"""Most permutations times samples and classes that are scored, about 2 CPU-seconds."""

_MIN_ORDERS = 100
"""Fewest different orders of the labels for a test."""


@dataclass(frozen=True)
class PermutationTest:
    """Result of a permutation test."""

    p: float  # share of the permutations, the original order included, with at least this score
    shufflings: int  # number of permutations
    # share that is as far below the mean of the permutations as the score is below the baseline
    p_worse: float


def permutation_test(folds: Folds, predictions_MC: F64) -> PermutationTest | None:
    """Test by permutation whether the score of held-out predictions is better than by chance.

    A group receives the labels of another group in random order, repeated if that group has fewer
    samples. With several studies both groups are of one study, so differences between studies stay
    as they are. None with fewer than 100 different orders.
    """
    scored = folds.scored(predictions_MC)
    # A sample that is held out in several folds, as with several repeats, has one label in all.
    rows_n, first_n, index_M = np.unique(folds.rows_M, return_index=True, return_inverse=True)
    held_out = folds.labels.take(rows_n)
    study_n = np.zeros_like(rows_n) if held_out.studies is None else held_out.studies
    # A subject in two studies is a group in each.
    (stratum_I, _), group_n = np.unique(
        np.stack([study_n, held_out.groups]), axis=1, return_inverse=True
    )
    group_n = group_n.reshape(-1)
    if _log_orders(group_n, stratum_I, held_out.values) < np.log(_MIN_ORDERS):
        return None
    metric = next(iter(scored_metrics(scored).values()))
    observed = scored.value(metric)
    number = max(199, min(PERMUTATIONS, _LABELS // (len(index_M) * max(1, len(scored.classes)))))
    rng = np.random.default_rng(folds.seed)
    values_B = np.empty(number)
    for b in range(number):
        actual_M = scored.actual[first_n[_permuted(group_n, stratum_I, rng)]][index_M]
        values_B[b] = dataclasses.replace(scored, actual=actual_M).value(metric)
    defined_B = values_B[~np.isnan(values_B)]
    if np.isnan(observed) or not len(defined_B):
        return None
    spread = np.sqrt(2) if len(folds.splits) > 1 else 1.0
    chance = defined_B.mean()
    deviation_B = spread * (defined_B - chance)
    reached = int((deviation_B >= observed - chance - 1e-12).sum())
    # The lower tail starts from the baseline: unrelated predictions have larger errors than it.
    baseline = folds.scored(folds.baseline_MC).value(metric)
    shortfall = observed - (chance if np.isnan(baseline) else baseline)
    as_low = int((deviation_B <= shortfall + 1e-12).sum())
    # The original order counts as a permutation, so p is never 0 (Phipson and Smyth 2010).
    number = len(defined_B)
    return PermutationTest((reached + 1) / (number + 1), number, (as_low + 1) / (number + 1))


def standard_outputs(folds: Folds) -> F64 | None:
    """Return labels of mean 0 and standard deviation 1; None for many or equal labels."""
    labels, outputs_NC = folds.labels, folds.labels.outputs_NC
    if len(outputs_NC) > EXACT_KERNEL:
        return None
    # One indicator describes two classes.
    outputs_NC = outputs_NC[:, -1:] if outputs_NC.shape[1] == 2 else outputs_NC
    outputs_NC = outputs_NC if labels.classes else folds.scale.forward(outputs_NC)
    std = outputs_NC.std()
    return None if std == 0 else (outputs_NC - outputs_NC.mean(axis=0)) / std


def permuted_rows(folds: Folds, number: int) -> Rows:
    """Return permutations: rows whose labels the samples receive, int64 [number + 1, N].

    The first is the original order. Groups are permuted within folds, because stratified folds have
    equal numbers of each class. With few groups in a fold they are permuted among all folds, but
    never among studies.
    """
    labels = folds.labels
    group_N = np.unique(labels.groups, return_inverse=True)[1]
    # Strata of all repeats would have a few samples each.
    splits = folds.first.splits
    roles_NK = np.zeros((len(group_N), len(splits)), dtype=np.int64)
    for k, split in enumerate(splits):
        roles_NK[split.training_rows, k] = 1
        roles_NK[split.held_out[1], k] = 2
    first_I = np.unique(group_N, return_index=True)[1]
    stratum_I = np.unique(roles_NK[first_I], axis=0, return_inverse=True)[1].reshape(-1)
    few = _log_orders(group_N, stratum_I, labels.values) < np.log(number)
    if few and labels.studies is None:
        stratum_I = np.zeros_like(stratum_I)
    rng = np.random.default_rng(folds.seed)
    permuted = (_permuted(group_N, stratum_I, rng) for _ in range(number))
    return np.stack([np.arange(len(group_N)), *permuted])


def _permuted(group_M: Codes, stratum_I: Codes, rng: np.random.Generator) -> Rows:
    """Return the row whose label each sample receives if groups of a stratum exchange them, [M]."""
    size_I = np.bincount(group_M)
    start_I = np.cumsum(size_I) - size_I
    target_M = np.argsort(group_M, kind="stable")  # rows by group
    offset_M = np.arange(len(group_M)) - np.repeat(start_I, size_I)  # position within the group
    source_I = np.empty(len(size_I), dtype=np.int64)
    source_I[np.argsort(stratum_I, kind="stable")] = np.lexsort(
        (rng.random(len(size_I)), stratum_I)
    )
    permuted_M = np.lexsort((rng.random(len(group_M)), group_M))
    source_M = np.repeat(source_I, size_I)
    rows_M = np.empty(len(group_M), dtype=np.int64)
    rows_M[target_M] = permuted_M[start_I[source_M] + offset_M % size_I[source_M]]
    return rows_M


def _log_orders(group_M: Codes, stratum_I: Codes, values_M: F64) -> float:
    """Return the logarithm of the number of different orders of the groups' labels."""
    mean_I = np.bincount(group_M, values_M) / np.bincount(group_M)
    pairs = np.stack([stratum_I, np.unique(mean_I, return_inverse=True)[1]])
    equal = np.unique(pairs, axis=1, return_counts=True)[1]
    return float(gammaln(np.bincount(stratum_I) + 1).sum() - gammaln(equal + 1).sum())
