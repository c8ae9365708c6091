"""Permutation test of a table: does it predict the target better than shuffled labels?

The whole cross-validation is repeated for every shuffling: predictions of a kernel ridge regression
are linear in the labels, so that the choice of the kernel and of the penalty by left-out groups,
and the fit to the training samples of each fold, are products of smoother matrices with all
shuffled labels at once. A null that kept the predictions would miss that models of different folds
share training samples.

The statistic is by how much the squared errors of the held-out samples, of numbers, ranks or
indicators of the classes, are below those of the dummy.

N samples, n training samples of a split, B shufflings, C outputs, G groups of equal size, of m
samples each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from aam.arrays import F32, F64, Rows
from aam.evaluation.folds import Folds, training_rows

SHUFFLINGS = 1000
MAX_SAMPLES = 4000
"""Samples up to which the kernel is exact; of more, intervals are narrow and there is no test."""

_MAX_COLUMNS = 3000
"""Shufflings times outputs; many classes have fewer shufflings."""

_PENALTIES = np.logspace(-5, 1, 7)


@dataclass(frozen=True)
class PermutationTest:
    """Result of a permutation test."""

    # part of the shufflings, with the labels as they are, that reach the statistic of these
    p: float
    shufflings: int  # number of shufflings


def permutation_test(kernels: Sequence[F32], folds: Folds) -> PermutationTest | None:
    """Test whether the table predicts the target of the held-out samples better than by chance.

    Labels are shuffled among the samples of a fold, with groups among its groups: a group receives
    the labels of another one in random order, repeated where that has fewer samples. With few
    groups in a fold they are shuffled among all folds. There is no test of more than `MAX_SAMPLES`
    samples, or where all labels are equal. Of the `kernels` [N, N] of the samples the best is
    chosen for each shuffling.
    """
    if (standard_NC := standard_outputs(folds)) is None:
        return None
    number = max(199, min(SHUFFLINGS, _MAX_COLUMNS // standard_NC.shape[1]))
    # float32 halves the time of the products; labels near 0 keep its digits.
    labels_NBC = standard_NC.astype(np.float32)[shuffled_rows(folds, number).T]
    gains_B = np.zeros(number + 1)
    for split in folds.splits:
        train, held_out = training_rows(split), split.held_out[1]
        gains_B += _gains(
            kernels, train, held_out, folds.labels.groups[train], labels_NBC[train],
            labels_NBC[held_out],
        )  # fmt: skip
    # Shufflings that restore the labels reach the statistic despite the rounding of float32.
    reached = int((gains_B[1:] >= gains_B[0] - 1e-4 * (1 + abs(gains_B[0]))).sum())
    # The labels as they are count as a shuffling: p is never 0 (Phipson and Smyth 2010).
    return PermutationTest((reached + 1) / (number + 1), number)


def standard_outputs(folds: Folds) -> F64 | None:
    """Return transformed numbers or indicators of classes, of mean 0 and standard deviation 1.

    None with more than `MAX_SAMPLES`, or where all labels are equal.
    """
    labels, outputs_NC = folds.labels, folds.labels.outputs_NC
    if len(outputs_NC) > MAX_SAMPLES:
        return None
    # One indicator has all of two classes.
    outputs_NC = outputs_NC[:, -1:] if outputs_NC.shape[1] == 2 else outputs_NC
    outputs_NC = outputs_NC if labels.classes else folds.scale.forward(outputs_NC)
    std = outputs_NC.std()
    return None if std == 0 else (outputs_NC - outputs_NC.mean(axis=0)) / std


def _gains(
    kernels: Sequence[F32],
    train: Rows,
    held_out: Rows,
    groups: Rows,
    labels_nBC: F32,
    held_out_MBC: F32,
) -> F64:
    """Return the squared errors of the dummy less those of the kernel ridge of a split, [B]."""
    n, shape = len(train), (len(held_out), *labels_nBC.shape[1:])
    columns = labels_nBC.reshape(n, -1)
    centred_MBC = held_out_MBC - labels_nBC.mean(axis=0)
    least_B = np.full(shape[1], np.inf)
    gains_B = np.zeros(shape[1])
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) == 1:  # a single group is left out by sample
        group_of, sizes = np.arange(n), np.ones(n, dtype=np.int64)
    order, starts = np.argsort(group_of, kind="stable"), np.cumsum(sizes) - sizes
    for kernel_NN in kernels:
        kernel_nn = kernel_NN[np.ix_(train, train)].astype(np.float64)
        mean_n, mean = kernel_nn.mean(axis=0), kernel_nn.mean()
        values, vectors = np.linalg.eigh(kernel_nn - mean_n - mean_n[:, None] + mean)
        kept = values > max(values[-1] * 1e-10, 0)
        values, U = values[kept], vectors[:, kept]
        rows_Mn = kernel_NN[np.ix_(held_out, train)] - mean_n
        projected_MK = (rows_Mn - rows_Mn.mean(axis=1, keepdims=True)) @ U
        for penalty in _PENALTIES:
            shrunk_K = values / (values + penalty * values.sum())
            residual_nn = np.eye(n) * (1 + 1e-9) - 1 / n - (U * shrunk_K) @ U.T
            left_out_nn = np.empty((n, n), dtype=np.float32)
            # Residuals without the own group, see `kernel_ridge.leave_groups_out`, for all groups
            # of one size at once.
            for size in np.unique(sizes):
                rows_Gm = order[starts[sizes == size][:, None] + np.arange(size)]
                own_Gmm = residual_nn[rows_Gm[:, :, None], rows_Gm[:, None, :]]
                left_out_nn[rows_Gm] = np.linalg.solve(own_Gmm, residual_nn[rows_Gm])
            error_B = np.square(left_out_nn @ columns).reshape(n, *shape[1:]).sum(axis=(0, 2))
            fit_Mn = ((projected_MK * (shrunk_K / values)) @ U.T).astype(np.float32)
            fitted_MBC = (fit_Mn @ columns).reshape(shape)
            # (y - mean)² - (y - mean - fitted)²
            gain_B = (fitted_MBC * (2 * centred_MBC - fitted_MBC)).sum(axis=(0, 2))
            better_B = error_B < least_B
            gains_B = np.where(better_B, gain_B, gains_B)
            least_B = np.where(better_B, error_B, least_B)
    return gains_B


def shuffled_rows(folds: Folds, number: int) -> Rows:
    """Return the rows whose labels every sample receives, int64 [number + 1, N], at first its own.

    Folds that are stratified have as many samples of a class each. Shuffling within them keeps
    that, as the distribution of labels given the folds requires.
    """
    labels = folds.labels
    groups, group_N = np.unique(labels.groups, return_inverse=True)
    rng, samples = np.random.default_rng(folds.seed), len(group_N)
    parts_NK = np.zeros((samples, len(folds.splits)), dtype=np.int64)
    for k, split in enumerate(folds.splits):
        parts_NK[training_rows(split), k] = 1
        parts_NK[split.held_out[1], k] = 2
    first_I = np.unique(group_N, return_index=True)[1]
    stratum_I = np.unique(parts_NK[first_I], axis=0, return_inverse=True)[1].reshape(-1)
    mean_I = np.bincount(group_N, labels.values) / np.bincount(group_N)
    # The logarithm of the number of different orders of labels within the strata.
    both = np.stack([stratum_I, np.unique(mean_I, return_inverse=True)[1]])
    equal = np.unique(both, axis=1, return_counts=True)[1]
    orders = gammaln(np.bincount(stratum_I) + 1).sum() - gammaln(equal + 1).sum()
    if orders < np.log(number):
        stratum_I = np.zeros(len(groups), dtype=np.int64)
    size_I = np.bincount(group_N)
    start_I, target_N = np.cumsum(size_I) - size_I, np.argsort(group_N, kind="stable")
    place_N = np.arange(samples) - np.repeat(start_I, size_I)
    within_strata = np.argsort(stratum_I, kind="stable")
    sources_BN = np.tile(np.arange(samples), (number + 1, 1))
    for source_N in sources_BN[1:]:
        source_I = np.empty(len(groups), dtype=np.int64)
        source_I[within_strata] = np.lexsort((rng.random(len(groups)), stratum_I))
        shuffled_N = np.lexsort((rng.random(samples), group_N))
        source = np.repeat(source_I, size_I)
        source_N[target_N] = shuffled_N[start_I[source] + place_N % size_I[source]]
    return sources_BN
