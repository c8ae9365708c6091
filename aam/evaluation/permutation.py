"""Permutation test of held-out predictions: is their score that of shuffled labels?

The statistic is the score that the verdict states, of the predictions that it is about, whatever
made them: labels are shuffled among the held-out samples, predictions stay. No model is fitted
again, so that the test costs the same for a kernel, a forest and a network.

The predictions of a fold do not depend on its labels, so for a single split this test is exact. The
score of several folds has a wider distribution than such shuffles: each label is shuffled where it
is predicted, but it also trained the models of the other folds, and both have the same sign. For
predictions that are linear in the training labels, y_k' A_kl y_l, the terms of the folds k and l
add up in pairs, and with labels at random (mean 0, variance 1, independent of the samples)

    var(sum_kl y_k' A_kl y_l) = sum_k<l |A_kl + A_lk'|² <= 2 sum_kl |A_kl|²,

twice the variance of the shuffles, with equality for the symmetric A of a kernel. The shuffles are
spread by the square root of 2 therefore. They exchange labels of all folds, since a fold may have
few groups: that a fold's mean prediction moves against its labels makes no score better. Forests
and networks are linear only nearly, so that 2 is no bound for them; `benchmarks/random_labels.py`
measures the level, `docs/experiments/intervals.md` has what is measured so far.

M held-out samples, I groups of them, B shufflings.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from aam.arrays import F64, Codes, Rows
from aam.evaluation.folds import Folds, training_rows
from aam.evaluation.intervals import scored_metrics
from aam.evaluation.metrics import value_of

SHUFFLINGS = 999

EXACT_KERNEL = 4000
"""Samples up to which a kernel is exact, and what needs an exact one is computed."""

_LABELS = 4_000_000
"""Shufflings times samples and classes that are scored at most, about 2 CPU-seconds."""

_MIN_ORDERS = 100
"""Different orders of the labels, with fewer of which there is no test."""


@dataclass(frozen=True)
class PermutationTest:
    """Result of a permutation test."""

    # part of the shufflings, with the labels as they are, that reach the score of these
    p: float
    shufflings: int  # number of shufflings
    # part of them that are as far below their mean as the score of these is below that of the guess
    p_worse: float


def permutation_test(folds: Folds, predictions_MC: F64) -> PermutationTest | None:
    """Test whether predictions of held-out samples, which these did not train, beat chance.

    A group receives the labels of another one in random order, repeated where that has fewer
    samples; of several studies one of its own study, so that what differs between studies stays as
    it is. There is no test where that gives fewer than 100 different orders.
    """
    scored = folds.scored(predictions_MC)
    # A sample that is held out in several folds, as of several partitions, has one label in all.
    rows_n, first_n, place_M = np.unique(folds.rows_M, return_index=True, return_inverse=True)
    held_out = folds.labels.take(rows_n)
    study_n = np.zeros_like(rows_n) if held_out.studies is None else held_out.studies
    # A subject of two studies is exchanged within each.
    (stratum_I, _), group_n = np.unique(
        np.stack([study_n, held_out.groups]), axis=1, return_inverse=True
    )
    group_n = group_n.reshape(-1)
    if _log_orders(group_n, stratum_I, held_out.values) < np.log(_MIN_ORDERS):
        return None
    metric = next(iter(scored_metrics(scored).values()))
    observed = value_of(metric, scored)
    number = max(199, min(SHUFFLINGS, _LABELS // (len(place_M) * max(1, len(scored.classes)))))
    rng = np.random.default_rng(folds.seed)
    values_B = np.empty(number)
    for b in range(number):
        actual_M = scored.actual[first_n[_shuffled(group_n, stratum_I, rng)]][place_M]
        values_B[b] = value_of(metric, dataclasses.replace(scored, actual=actual_M))
    defined_B = values_B[~np.isnan(values_B)]
    if np.isnan(observed) or not len(defined_B):
        return None
    spread = np.sqrt(2) if len(folds.splits) > 1 else 1.0
    chance = defined_B.mean()
    deviation_B = spread * (defined_B - chance)
    reached = int((deviation_B >= observed - chance - 1e-12).sum())
    # Chance is no guess: errors of unrelated predictions are larger than those of the guess.
    guess = value_of(metric, folds.scored(folds.dummy_MC))
    as_low = int((deviation_B <= observed - (chance if np.isnan(guess) else guess) + 1e-12).sum())
    # The labels as they are count as a shuffling: p is never 0 (Phipson and Smyth 2010).
    number = len(defined_B)
    return PermutationTest((reached + 1) / (number + 1), number, (as_low + 1) / (number + 1))


def standard_outputs(folds: Folds) -> F64 | None:
    """Return labels of mean 0 and standard deviation 1; None of many or equal labels."""
    labels, outputs_NC = folds.labels, folds.labels.outputs_NC
    if len(outputs_NC) > EXACT_KERNEL:
        return None
    # One indicator has all of two classes.
    outputs_NC = outputs_NC[:, -1:] if outputs_NC.shape[1] == 2 else outputs_NC
    outputs_NC = outputs_NC if labels.classes else folds.scale.forward(outputs_NC)
    std = outputs_NC.std()
    return None if std == 0 else (outputs_NC - outputs_NC.mean(axis=0)) / std


def shuffled_rows(folds: Folds, number: int) -> Rows:
    """Return the rows whose labels every sample receives, int64 [number + 1, N], at first its own.

    Folds that are stratified have as many samples of a class each. Shuffling within them keeps
    that, as the distribution of labels given the folds requires. With few groups in a fold labels
    are shuffled among all folds, but never among studies.
    """
    labels = folds.labels
    group_N = np.unique(labels.groups, return_inverse=True)[1]
    # Strata of all partitions would be of a few samples each.
    splits = folds.first.splits
    parts_NK = np.zeros((len(group_N), len(splits)), dtype=np.int64)
    for k, split in enumerate(splits):
        parts_NK[training_rows(split), k] = 1
        parts_NK[split.held_out[1], k] = 2
    first_I = np.unique(group_N, return_index=True)[1]
    stratum_I = np.unique(parts_NK[first_I], axis=0, return_inverse=True)[1].reshape(-1)
    few = _log_orders(group_N, stratum_I, labels.values) < np.log(number)
    if few and labels.studies is None:
        stratum_I = np.zeros_like(stratum_I)
    rng = np.random.default_rng(folds.seed)
    shuffled = (_shuffled(group_N, stratum_I, rng) for _ in range(number))
    return np.stack([np.arange(len(group_N)), *shuffled])


def _shuffled(group_M: Codes, stratum_I: Codes, rng: np.random.Generator) -> Rows:
    """Return the row whose label each sample receives, int64 [M].

    Groups exchange their labels within a stratum. A group receives those of another one in random
    order, repeated where that has fewer samples.
    """
    size_I = np.bincount(group_M)
    start_I = np.cumsum(size_I) - size_I
    target_M = np.argsort(group_M, kind="stable")  # rows by group
    place_M = np.arange(len(group_M)) - np.repeat(start_I, size_I)  # place within the group
    source_I = np.empty(len(size_I), dtype=np.int64)
    source_I[np.argsort(stratum_I, kind="stable")] = np.lexsort(
        (rng.random(len(size_I)), stratum_I)
    )
    shuffled_M = np.lexsort((rng.random(len(group_M)), group_M))
    source_M = np.repeat(source_I, size_I)
    rows_M = np.empty(len(group_M), dtype=np.int64)
    rows_M[target_M] = shuffled_M[start_I[source_M] + place_M % size_I[source_M]]
    return rows_M


def _log_orders(group_M: Codes, stratum_I: Codes, values_M: F64) -> float:
    """Return the logarithm of the number of different orders of the groups' labels."""
    mean_I = np.bincount(group_M, values_M) / np.bincount(group_M)
    both = np.stack([stratum_I, np.unique(mean_I, return_inverse=True)[1]])
    equal = np.unique(both, axis=1, return_counts=True)[1]
    return float(gammaln(np.bincount(stratum_I) + 1).sum() - gammaln(equal + 1).sum())
