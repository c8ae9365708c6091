"""Ridge regression on a kernel, with the penalty of the least error for left-out groups.

One eigendecomposition of the kernel gives the predictions of every left-out group for every
penalty in closed form. Classes are regressed as indicators; a logistic regression on the left-out
predictions, as deviations from the mean label of the fit of each, turns them into probabilities.
R landmarks; further shape suffixes: see `samples`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from aam.arrays import F64, Rows
from aam.evaluation.labels import Labels

PENALTIES = np.logspace(-5, 1, 25)
"""Penalties of the ridge regression, relative to the trace of the centred kernel."""

_INVERSE_PENALTY = 100.0
"""Inverse of the L2 penalty of the slope of classes; it matters for separable data alone."""

_NEVER = -1e9  # log probability of a class without training samples


@dataclass(frozen=True)
class Ridge:
    """Fitted ridge regression."""

    error: float  # mean squared error of the left-out predictions, weighted as in the fit
    left_out_NC: F64  # prediction of each sample without its group
    # the same, moved from the mean label of the other groups to the mean of all labels, see
    # `Labels.means_without_group`
    aligned_NC: F64
    dual_RC: F64  # coefficients of the landmarks
    offset_C: F64  # intercepts


def fit_ridge(
    kernel_NR: F64, landmarks: Rows, labels: Labels, weights_N: F64 | None = None
) -> Ridge:
    """Fit the ridge regression with the penalty of the least left-out error.

    `weights_N` are factors of the weights of the labels.

    The centred kernel, or its Nyström approximation from the landmarks, with rows and columns
    multiplied by the square roots of the weights, is U diag(values) U^T.
    """
    y_NC = labels.outputs_NC
    samples = len(y_NC)
    weights_N = labels.weights_N if weights_N is None else labels.weights_N * weights_N
    weights_N = weights_N / weights_N.mean()
    roots_N1 = np.sqrt(weights_N)[:, None]
    mean_C, means_R = weights_N @ y_NC / samples, weights_N @ kernel_NR / samples
    if len(landmarks) == samples:
        centred_NN = kernel_NR - means_R
        centred_NN += weights_N @ means_R / samples - means_R[:, None]
        # In place: each further copy of the kernel of all pairs would take 8 bytes a pair.
        centred_NN *= roots_N1
        centred_NN *= roots_N1.T
        values, vectors = np.linalg.eigh(centred_NN)
        positive = values > values[-1] * 1e-10
        values, U = values[positive], vectors[:, positive]
        to_dual = roots_N1 * U / values
    else:
        values, vectors = np.linalg.eigh(kernel_NR[landmarks])
        # Nyström approximation (Williams and Seeger 2001): whitened features whose inner products
        # are the kernel of the landmarks. Directions of rounding errors are left out, since the
        # whitening divides by the root of their eigenvalue.
        positive = values > values[-1] * 1e-8
        whitening = vectors[:, positive] / np.sqrt(values[positive])
        features = kernel_NR @ whitening
        features -= weights_N @ features / samples
        features *= roots_N1
        values, vectors = np.linalg.eigh(features.T @ features)
        positive = values > values[-1] * 1e-10
        values, vectors = values[positive], vectors[:, positive]
        U = features @ (vectors / np.sqrt(values))
        to_dual = whitening @ (vectors / np.sqrt(values))
    projected = U.T @ (roots_N1 * (y_NC - mean_C))
    shrunk_PK = values / (values + PENALTIES[:, None] * values.sum())
    sizes = np.unique(labels.groups, return_counts=True)[1]
    if len(landmarks) < samples and len(sizes) > 1 and 2 * sizes.mean() > len(values):
        left_out_PNC = leave_large_groups_out(U, values, y_NC, labels.groups, weights_N)
    else:
        left_out_PNC = leave_groups_out(U, shrunk_PK, projected, y_NC, labels.groups, weights_N)
    # The error belongs to one fit, so these predictions keep the mean of their fit.
    errors_P = (weights_N @ (left_out_PNC - y_NC) ** 2).mean(axis=1) / samples
    best = int(errors_P.argmin())
    dual_RC = to_dual @ (shrunk_PK[best, :, None] * projected)
    if len(landmarks) == samples:
        # The coefficients of a centred kernel add up to 0. Rounding of a kernel in float32 mixes
        # the constant vector into eigenvectors of the least eigenvalues, and the mean of the
        # kernel, far larger than its variance, would multiply what is left of it.
        dual_RC -= weights_N[:, None] * dual_RC.sum(axis=0) / samples
    left_out_NC = left_out_PNC[best]
    aligned_NC = left_out_NC + (mean_C - labels.means_without_group(weights_N))
    offset_C = mean_C - means_R @ dual_RC
    return Ridge(float(errors_P[best]), left_out_NC, aligned_NC, dual_RC, offset_C)


def leave_groups_out(
    U: F64, shrunk_PK: F64, projected: F64, y_NC: F64, groups: Rows, weights_N: F64
) -> F64:
    """Predict each group by the regression on all other groups, [P, N, C].

    The regression is the linear smoother H = S 1 1^T S / N + U diag(shrunk) U^T of the labels
    multiplied by S, the square roots of the weights, whose mean is 1. Leaving out a group whose
    residuals are r leaves the residuals (I - H of the group)^-1 r (Cook and Weisberg 1982,
    Residuals and Influence in Regression). P penalties, K eigenvectors.
    """
    samples, roots_N1 = len(y_NC), np.sqrt(weights_N)[:, None]
    mean_C = weights_N @ y_NC / samples
    residuals_PNC = roots_N1 * (y_NC - mean_C) - U @ (shrunk_PK[:, :, None] * projected)
    names, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    # A single group cannot be left out, since nothing would remain to fit.
    if len(names) in (1, samples):
        hat_PN = weights_N / samples + shrunk_PK @ (U**2).T
        # A sample that alone determines its fit has a leverage of 1 and would divide by 0.
        left_out_PNC = residuals_PNC / (1 - hat_PN).clip(min=1e-9)[:, :, None]
    else:
        left_out_PNC = np.empty_like(residuals_PNC)
        for rows in np.split(np.argsort(group_of, kind="stable"), np.cumsum(sizes)[:-1]):
            # A group at a time: the hat matrices of all penalties would be P times as large.
            U_rows, mean = U[rows], roots_N1[rows] * roots_N1[rows].T / samples
            unit = np.eye(len(rows)) * (1 + 1e-9) - mean  # it stays regular without penalty
            for left_out_NC, residuals_NC, shrunk in zip(
                left_out_PNC, residuals_PNC, shrunk_PK, strict=True
            ):
                remaining = unit - (U_rows * shrunk) @ U_rows.T
                left_out_NC[rows] = np.linalg.solve(remaining, residuals_NC[rows])
    predicted_PNC: F64 = y_NC - left_out_PNC / roots_N1
    return predicted_PNC


def leave_large_groups_out(U: F64, values: F64, y_NC: F64, groups: Rows, weights_N: F64) -> F64:
    """Predict as `leave_groups_out`, in less time for groups of more than K / 2 samples.

    The regression on U multiplied by the roots of its eigenvalues, without the group, takes one
    eigendecomposition [K, K] for all penalties.
    """
    roots_N1, penalties_P11 = np.sqrt(weights_N)[:, None], (PENALTIES * values.sum())[:, None, None]
    mean_C = weights_N @ y_NC / len(y_NC)
    features_NK, scaled_NC = U * np.sqrt(values), roots_N1 * (y_NC - mean_C)
    predicted_PNC = np.empty((len(PENALTIES), *y_NC.shape))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        features_nK, roots_n1, scaled_nC = features_NK[rows], roots_N1[rows], scaled_NC[rows]
        # Means of the other samples: features and labels have the weighted mean 0 over all samples.
        others = len(y_NC) - weights_N[rows].sum()
        mean_1K, mean_1C = (-roots_n1.T @ array / others for array in (features_nK, scaled_nC))
        gram_KK = np.diag(values) - features_nK.T @ features_nK - others * mean_1K.T @ mean_1K
        products_KC = features_NK.T @ scaled_NC - features_nK.T @ scaled_nC
        products_KC -= others * mean_1K.T @ mean_1C
        eigenvalues, vectors = np.linalg.eigh(gram_KK)
        shrunk_PKC = (vectors.T @ products_KC) / (eigenvalues.clip(0)[:, None] + penalties_P11)
        fitted_PnC = ((features_nK / roots_n1 - mean_1K) @ vectors) @ shrunk_PKC + mean_1C
        predicted_PNC[:, rows] = fitted_PnC + mean_C
    return predicted_PNC


def huber_weights(residuals_N: F64) -> F64:
    """Return weights, at most 1, that turn a squared error into Huber's error (1964).

    The scale is 1.4826 times the median of the absolute residuals. The constant 1.345 has 95 % of
    the efficiency of least squares where errors are normal (Holland and Welsch 1977,
    doi:10.1080/03610927708827533).
    """
    size_N = np.abs(residuals_N)
    limit = 1.345 * 1.4826 * np.median(size_N)
    weights_N: F64 = limit / np.maximum(size_N, limit) if limit > 0 else np.ones(len(size_N))
    return weights_N


def fit_logistic(aligned_NC: F64, labels: Labels) -> F64:
    """Fit slopes and intercepts [C + 1, C] from regressed indicators to log probabilities.

    All classes share one slope of at least 0: the log odds of two classes rise with the difference
    of their regressions. If the regressions fall with the truth, the slope is 0, and only the class
    frequencies remain.
    """
    logits = np.zeros((len(labels.classes) + 1, len(labels.classes)))
    # Finite, since `state.numbers` refuses a model with infinite numbers.
    logits[-1] = _NEVER
    present, codes = np.unique(labels.values.astype(np.int64), return_inverse=True)
    regressed_NK, rows = aligned_NC[:, present], np.arange(len(codes))
    weights_N = labels.weights_N
    frequencies_K = np.bincount(codes, weights_N) / len(codes)

    def loss(parameters: F64) -> tuple[float, F64]:
        slope, intercepts_K = parameters[0], parameters[1:]
        scores_NK = slope * regressed_NK + intercepts_K
        totals_N = logsumexp(scores_NK, axis=1)
        errors_NK = np.exp(scores_NK - totals_N[:, None])
        errors_NK[rows, codes] -= 1
        errors_NK *= weights_N[:, None]
        penalty = slope / _INVERSE_PENALTY
        gradient = np.array(
            [(errors_NK * regressed_NK).sum() + 2 * penalty, *errors_NK.sum(axis=0)]
        )
        losses_N = weights_N * (totals_N - scores_NK[rows, codes])
        return float(losses_N.sum() + slope * penalty), gradient

    start = np.array([0.0, *np.log(frequencies_K)])
    bounds = [(0.0, None)] + [(None, None)] * len(present)
    slope, *intercepts = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    logits[present, present] = slope
    logits[-1, present] = intercepts
    return logits


def product(one_NR: F64, two_RC: F64) -> F64:
    """Return the matrix product; unlike BLAS, a row is the same bits with any other rows."""
    product_NC: F64 = np.einsum("nm,mc->nc", one_NR, two_RC)
    return product_NC


def probabilities(outputs_NC: F64, logits: F64) -> F64:
    """Apply a logistic regression to regressed indicators; numbers stay as they are."""
    if not logits.size:
        return outputs_NC
    scores_NC = product(outputs_NC, logits[:-1]) + logits[-1]
    # The difference from the largest score cannot overflow.
    scores_NC = np.exp(scores_NC - scores_NC.max(axis=1, keepdims=True))
    probabilities: F64 = scores_NC / scores_NC.sum(axis=1, keepdims=True)
    return probabilities
