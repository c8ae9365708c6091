"""Association of each ASV with the target, by two questions with different answers.

`rank_test` asks whether an ASV rises or falls with the target, whatever the rest of the community
does: what a reader takes "associated" for. `mixed_model_test` asks whether it does so beyond what
the community as a whole explains: of many ASVs that change together it names few or none.

N samples or groups, F ASVs, of which T are tested, S strata, D degrees of freedom, E entries of the
table above 0, P pairs of an ASV and a stratum with such entries, B shufflings, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse
from scipy.stats import chi2, false_discovery_control, rankdata

from aam.arrays import F64, Rows
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import shuffled_rows

RATE = 0.1
"""False discovery rate at which ASVs are counted."""

ASSOCIATED, CONDITIONAL = "q_associated", "q_conditional"
"""Columns of importance.tsv with the false discovery rates of `rank_test`, `mixed_model_test`."""

MIN_SAMPLES = 5
"""Samples, or groups, that have an ASV, below which it is not tested."""

SHUFFLED = 200
"""Shufflings of the labels, of which all ASVs share the null distribution."""

_PENALTIES = np.logspace(-5, 1, 25)
"""Ratios of noise and kernel of the mixed model, among which the labels choose."""

_MIN_UNITS = 6
"""Samples, or groups, below which nothing is tested: the statistic has no chi-squared law."""

_CONSTANT = 0.1
"""Share of the variance of the labels within groups, up to which they are those of the groups."""


def rank_test(abundances: sparse.csr_array, labels: Labels) -> F64 | None:
    """Return the false discovery rate at which each ASV is associated with the target, [F].

    Samples of one group are not independent. Where their labels are (nearly) the same, the mean
    abundance and label of a group are one observation. Where labels vary within groups, samples are
    ranked and compared within each group, which is a stratum (van Elteren 1960).

    The statistic is the extended Mantel-Haenszel one with rank scores (Landis, Heyman and Koch
    1978, doi:10.2307/1402778): without strata that of Kruskal and Wallis (of two classes,
    Wilcoxon's) or, of numbers and ordered categories, of Spearman's correlation. Q-values are those
    of Benjamini and Hochberg.

    Args:
        abundances: relative abundances, [N, F].
        labels: labels and groups of the N samples.

    Returns:
        Q-values from 0 to 1; 1 for an ASV of fewer than `MIN_SAMPLES` observations above 0. None
        of fewer than six observations, or where all labels (of each stratum) are equal.

    >>> rng = np.random.default_rng(0)
    >>> shares = rng.random((40, 3))
    >>> labels = Labels.of(shares[:, 1] + rng.normal(0, 0.1, 40), (), None)
    >>> (rank_test(sparse.csr_array(shares), labels) < 0.1).tolist()
    [False, True, False]
    """
    units, labels, stratum_N = _observations(sparse.csr_array(abundances, dtype=np.float64), labels)
    size_S = np.bincount(stratum_N)
    outputs_ND = labels.outputs_NC[:, 1:] if labels.classes else _ranks(labels.values, stratum_N)
    mean_SD = np.stack([np.bincount(stratum_N, y) for y in outputs_ND.T], axis=1) / size_S[:, None]
    centred_ND = outputs_ND - mean_SD[stratum_N]
    if len(stratum_N) < _MIN_UNITS or not np.abs(centred_ND).max(initial=0) > 1e-9:
        return None
    # Sum of products of the labels of each stratum, [S, D * D].
    products_ND2 = (centred_ND[:, :, None] * centred_ND[:, None, :]).reshape(len(centred_ND), -1)
    labels_SD2 = np.stack([np.bincount(stratum_N, y) for y in products_ND2.T], axis=1)

    # Ranks of the entries of each pair of an ASV and a stratum; zeros have the lowest, shared rank.
    entries = units.tocoo()
    pair_P, pair_E = np.unique(
        entries.col.astype(np.int64) * len(size_S) + stratum_N[entries.row], return_inverse=True
    )
    size_P = size_S[pair_P % len(size_S)]
    zeros_P = size_P - np.bincount(pair_E, minlength=len(pair_P))
    rank_E = _ranks(entries.data, pair_E)[:, 0] + zeros_P[pair_E]
    # Centred, and divided by the size of the stratum so that each observation has equal weight.
    middle_P = (size_P + 1) / 2
    centred_E = (rank_E - middle_P[pair_E]) / (size_P + 1)[pair_E]
    zero_P = ((zeros_P + 1) / 2 - middle_P) / (size_P + 1)
    squares_P = np.bincount(pair_E, centred_E**2, len(pair_P)) + zeros_P * zero_P**2
    # The labels of a stratum sum to 0, so that the ranks of zeros may be subtracted everywhere.
    shape = units.shape
    scores = sparse.csr_array((centred_E - zero_P[pair_E], (entries.col, entries.row)), shape[::-1])
    sums_FD = scores @ centred_ND
    variance = sparse.csr_array(
        (squares_P / np.maximum(size_P - 1, 1), (pair_P // len(size_S), pair_P % len(size_S))),
        (shape[1], len(size_S)),
    )
    covariance_FDD = (variance @ labels_SD2).reshape(shape[1], *[centred_ND.shape[1]] * 2)

    present_F = np.bincount(entries.col, minlength=shape[1])
    tested = np.flatnonzero(present_F >= MIN_SAMPLES)
    q_F = np.ones(shape[1])
    if len(tested):
        sums_TD, covariance_TDD = sums_FD[tested], covariance_FDD[tested]
        inverse_TDD = np.linalg.pinv(covariance_TDD, rcond=1e-9, hermitian=True)
        statistic_T = np.einsum("td,tde,te->t", sums_TD, inverse_TDD, sums_TD)
        freedom_T = np.linalg.matrix_rank(covariance_TDD, hermitian=True)
        p_T = np.where(freedom_T > 0, chi2.sf(statistic_T, np.maximum(freedom_T, 1)), 1.0)
        q_F[tested] = false_discovery_control(p_T)
    return q_F


def mixed_model_test(
    kernel_NN: F64, log_abundances: sparse.csr_array, outputs_NC: F64, folds: Folds
) -> F64:
    """Return the false discovery rate of each ASV given the community as a whole, [F].

    The statistic of an ASV is the correlation of its log abundance with the label in a mixed model
    whose random effect is the kernel (as of relatives in genetics: Kang et al. 2010,
    doi:10.1038/ng.548): associations that the ASV shares with the whole community count little.
    Shuffled labels have the null distribution, of all ASVs together, by which Benjamini and
    Hochberg's q-values are computed. None is below the part of the shufflings of which the least
    q-value of all ASVs is as low: without any association, at most a part q of the studies has an
    ASV at q. An ASV of fewer than `MIN_SAMPLES` samples has 1.

    Args:
        kernel_NN: kernel of the N samples.
        log_abundances: [N, F].
        outputs_NC: labels, see `permutation.standard_outputs`.
        folds: splits and groups, among which labels are shuffled.
    """
    number = len(outputs_NC)
    mean_N = kernel_NN.mean(axis=0)
    values, vectors = np.linalg.eigh(kernel_NN - mean_N - mean_N[:, None] + mean_N.mean())
    kept = values > max(values[-1] * 1e-10, 0)
    values, U = values[kept], vectors[:, kept]
    # The variance of the noise, relative to the kernel's, has the least leave-one-out error.
    shrunk_PK = values / (values + _PENALTIES[:, None] * values.sum())
    residuals_PNC = outputs_NC - U @ (shrunk_PK[:, :, None] * (U.T @ outputs_NC))
    leverage_PN1 = (1 / number + shrunk_PK @ np.square(U).T)[:, :, None]
    errors_P = np.square(residuals_PNC / (1 - leverage_PN1).clip(min=1e-9)).sum(axis=(1, 2))
    shrunk_K = shrunk_PK[errors_P.argmin()]
    # The inverse of the covariance of the mixed model is I - U diag(shrunk) U^T, up to a factor.
    labels_NX = outputs_NC[shuffled_rows(folds, SHUFFLED).T].reshape(number, -1)
    labels_NX -= labels_NX.mean(axis=0)
    whitened_NX = labels_NX - U @ (shrunk_K[:, None] * (U.T @ labels_NX))
    norms_X = np.sqrt((labels_NX * whitened_NX).sum(axis=0).clip(min=1e-12))
    weights = sparse.csc_array(log_abundances, dtype=np.float64)
    tested = np.flatnonzero(np.diff(weights.indptr) >= MIN_SAMPLES)
    columns_TN = sparse.csr_array(weights[:, tested].T)
    squares_T = columns_TN.power(2).sum(axis=1) - number * columns_TN.mean(axis=1) ** 2
    squares_T -= np.square((columns_TN @ U) * np.sqrt(shrunk_K)).sum(axis=1)
    correlations_TX = (columns_TN @ whitened_NX) / norms_X
    correlations_TX /= np.sqrt(squares_T.clip(min=1e-9))[:, None]
    by_class = correlations_TX.reshape(len(tested), SHUFFLED + 1, -1)
    size_BT = np.sqrt(np.square(by_class).sum(axis=2)).T.round(9)
    null = np.sort(size_BT[1:].ravel())

    def benjamini_hochberg(size_T: F64) -> F64:
        order = np.argsort(-size_T)
        expected = (len(null) - np.searchsorted(null, size_T[order]) + 1) / SHUFFLED
        ratio = expected / np.arange(1, len(order) + 1)
        q_T = np.empty(len(order))
        q_T[order] = np.minimum.accumulate(ratio[::-1])[::-1].clip(max=1)
        return q_T

    q_F = np.ones(weights.shape[1])
    if len(tested):
        q_BT = np.array([benjamini_hochberg(size_T) for size_T in size_BT])
        least_B = np.sort(q_BT[1:].min(axis=1))
        as_low_T = np.searchsorted(least_B, q_BT[0], side="right")
        q_F[tested] = np.maximum(q_BT[0], (1 + as_low_T) / (SHUFFLED + 1))
    return q_F


def association_sentence(q_values_U: Mapping[str, F64], target: str) -> str:
    """Return how many of U ASVs are associated with the target, by the tests that exist.

    >>> association_sentence({ASSOCIATED: np.array([0.02, 0.05, 0.4])}, "age")
    "Associated with 'age' (rank test, by groups if any, q < 0.1): 2 of 3 ASVs."
    """
    number = {name: int((q_U < RATE).sum()) for name, q_U in q_values_U.items()}
    parts = []
    if ASSOCIATED in number:
        parts.append(
            f"Associated with '{target}' (rank test, by groups if any, q < {RATE}): "
            f"{number[ASSOCIATED]} of {len(q_values_U[ASSOCIATED])} ASVs."
        )
    if CONDITIONAL in number:
        parts.append(
            f"Beyond what the community as a whole explains (q < {RATE}): {number[CONDITIONAL]}."
        )
    return " ".join(parts)


def _observations(
    abundances: sparse.csr_array, labels: Labels
) -> tuple[sparse.csr_array, Labels, Rows]:
    """Return abundances, labels and strata of the observations: groups, or samples in groups."""
    group_names, group_N = np.unique(labels.groups, return_inverse=True)
    number, size_I = len(group_N), np.bincount(group_N)
    if len(group_names) == number:
        return abundances, labels, np.zeros(number, dtype=np.int64)
    outputs_NC = labels.outputs_NC
    mean_IC = np.stack([np.bincount(group_N, y) for y in outputs_NC.T], axis=1) / size_I[:, None]
    within = np.square(outputs_NC - mean_IC[group_N]).sum()
    if within > _CONSTANT * np.square(outputs_NC - outputs_NC.mean(axis=0)).sum():
        return abundances, labels, group_N
    mean = sparse.csr_array((1 / size_I[group_N], (group_N, np.arange(number))))
    values_I = mean_IC.argmax(axis=1).astype(np.float64) if labels.classes else mean_IC[:, 0]
    return (
        sparse.csr_array(mean @ abundances),
        Labels.of(values_I, labels.classes, None, labels.levels),
        np.zeros(len(size_I), dtype=np.int64),
    )


def _ranks(values_E: F64, part_E: Rows) -> F64:
    """Rank values within each part from 1, ties by the mean of their ranks, as one column."""
    # Ranks of all values, of which those of earlier parts are subtracted.
    place_E = np.empty(len(values_E), dtype=np.int64)
    order = np.lexsort((values_E, part_E))
    steps = np.diff(values_E[order], prepend=np.nan) != 0
    place_E[order] = np.cumsum(steps | (np.diff(part_E[order], prepend=-1) != 0))
    before_S = np.cumsum(np.bincount(part_E)) - np.bincount(part_E)
    return np.asarray(rankdata(place_E) - before_S[part_E])[:, None]
