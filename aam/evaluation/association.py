"""Association of each ASV with the target: rank test and mixed model, with false discovery rates.

`rank_test` tests whether an ASV rises or falls with the target, regardless of the other ASVs.
Readers usually mean this by "associated". `mixed_model_test` tests whether the ASV does so once the
rest of the community is accounted for; if many ASVs change together, it names few or none. With
several studies both tests compare samples within a study, and `study_agreement` adds the direction
in each study.

N samples or groups, F ASVs (T of them tested), S strata, K studies, D outputs of the test, E table
entries above 0, P pairs of an ASV and a stratum with such entries, B permutations, C outputs, X
columns of covariates or of permuted labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.stats import chi2, false_discovery_control, rankdata

from aam.arrays import F64, Codes, Rows
from aam.data.covariates import Covariates
from aam.data.table import AUTO_FRACTION, NUMPY_LIMIT
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import permuted_rows

RATE = 0.1
"""False discovery rate below which ASVs count as associated."""

ASSOCIATED, ADJUSTED, CONDITIONAL = "q_associated", "q_adjusted", "q_conditional"
"""Columns of importance.tsv with q-values: `rank_test`, `rank_test` with covariates,
`mixed_model_test`."""

ADJUSTED_Z = "z_adjusted"  # column of associations.tsv: `rank_test` with covariates

EQUAL_DEPTH = "depth_associated"
"""Column with `RankTest.depth`, if `rank_test` compared samples at equal depth."""

MIN_SAMPLES = 5
"""An ASV is tested if at least this many samples, or groups, contain it."""

PERMUTATIONS = 200
"""Permutations of the labels; all ASVs share their null distribution."""

_PENALTIES = np.logspace(-5, 1, 25)
"""Candidate ratios of noise to kernel in the mixed model."""

DRAWS = 10
"""Rarefied tables whose rank scores are averaged if samples are compared at equal depth."""

_DEPTH_DIFFERS = 0.05
"""Samples are compared at equal depth if their reads are associated with the target at this p."""

_MOST_LACKING = 0.5
"""Largest share of the variance of a draw that the mean of draws may lack; ten draws estimate it
poorly."""

_MIN_UNITS = 6
"""Fewest samples, or groups, for a test: with fewer the statistic is not chi-squared."""

_CONSTANT = 0.1
"""Largest share of label variance within groups at which a group counts as one observation."""


@dataclass(frozen=True)
class RankTest:
    """Rank test of F features: products of rank scores and labels, summed over observations."""

    sums_FD: F64
    covariance_FDD: F64  # covariance of the sums under no association
    present_F: F64  # observations with the feature; at equal depth the mean over draws
    depth: int = 0  # reads after rarefaction, the fewest of any study; 0 without rarefaction

    @property
    def z_FD(self) -> F64:
        """Z-scores of the sums; NaN for a feature that does not vary."""
        variance_FD = np.diagonal(self.covariance_FDD, axis1=1, axis2=2)
        z_FD = np.full(self.sums_FD.shape, np.nan)
        varies_FD = variance_FD > 1e-12 * max(float(variance_FD.max(initial=0)), 1e-300)
        np.divide(self.sums_FD, np.sqrt(variance_FD), out=z_FD, where=varies_FD)
        return z_FD

    @property
    def p_values(self) -> F64:
        """P-value of each feature, [F]; 1 with fewer than `MIN_SAMPLES` observations above 0."""
        tested = np.flatnonzero(self.present_F >= MIN_SAMPLES)
        p_F = np.ones(len(self.present_F))
        if len(tested):
            sums_TD, covariance_TDD = self.sums_FD[tested], self.covariance_FDD[tested]
            inverse_TDD = np.linalg.pinv(covariance_TDD, rcond=1e-9, hermitian=True)
            statistic_T = np.einsum("td,tde,te->t", sums_TD, inverse_TDD, sums_TD)
            values_TD = np.linalg.eigvalsh(covariance_TDD)
            freedom_T = (values_TD > 1e-9 * values_TD[:, -1:]).sum(axis=1)
            p_F[tested] = np.where(
                freedom_T > 0, chi2.sf(statistic_T, np.maximum(freedom_T, 1)), 1.0
            )
        return p_F

    @property
    def q_values(self) -> F64:
        """Q-value of each feature, [F]; 1 for features that are not tested."""
        tested, q_F = self.present_F >= MIN_SAMPLES, np.ones(len(self.present_F))
        if tested.any():
            q_F[tested] = false_discovery_control(self.p_values[tested])
        return q_F


def rank_test(
    abundances: sparse.csr_array,
    labels: Labels,
    reads: Rows | None = None,
    covariates: Covariates | None = None,
) -> RankTest | None:
    """Test the association of each of F features with the target, by ranks.

    Samples of one group are not independent. If labels are (nearly) constant within groups, the
    mean abundance and mean label of a group are one observation. Otherwise each group is a stratum,
    and samples are ranked and compared within it (van Elteren 1960). Each of several studies is
    also a stratum, so a difference between studies is not an association.

    The statistic is the extended Mantel-Haenszel statistic with rank scores (Landis, Heyman and
    Koch 1978, doi:10.2307/1402778). Without strata it is the Kruskal-Wallis test (Wilcoxon's for
    two classes) or, for numbers and ordered categories, Spearman's correlation. Q-values are by
    Benjamini and Hochberg.

    Rare ASVs are detected more often in samples with more reads. If the reads differ with the
    target (by the same test), samples are therefore compared at equal depth (`_compare`). With
    covariates (`_adjustment`) samples with a missing value are left out.

    Abundances are relative, [N, F]; `reads` is None if the table does not count reads. The result
    is None with fewer than six observations, or if all labels (within each stratum) are equal.

    >>> rng = np.random.default_rng(0)
    >>> shares = rng.random((40, 3))
    >>> labels = Labels.of(shares[:, 1] + rng.normal(0, 0.1, 40), (), None)
    >>> (rank_test(sparse.csr_array(shares), labels).q_values < 0.1).tolist()
    [False, True, False]
    """
    if covariates is not None:
        rows = np.flatnonzero(covariates.complete)
        if len(rows) < _MIN_UNITS:
            return None
        abundances, labels, covariates = abundances[rows], labels.take(rows), covariates.take(rows)
        reads = None if reads is None else reads[rows]
    if reads is not None:
        depth_test = _compare(sparse.csr_array(reads[:, None]), labels, None, covariates)
        if depth_test is not None and depth_test.p_values[0] < _DEPTH_DIFFERS:
            return _compare(abundances, labels, reads, covariates)
    return _compare(abundances, labels, None, covariates)


@dataclass(frozen=True)
class StudyAgreement:
    """Agreement of K studies on the association of F features with the target.

    For a target of classes, the direction refers to the class with the strongest association.
    """

    class_F: Codes  # code of this class, always the second of two; 0 for a number or ranks
    z_F: F64  # z-score over all studies; above 0 the feature rises with the target
    p_F: F64  # p-values of `rank_test`
    q_F: F64
    z_KF: F64  # z-score in each study; NaN with too few samples
    depth: int = 0  # see `RankTest`

    @property
    def studies_F(self) -> Codes:
        """Number of studies in which each feature is tested."""
        return np.isfinite(self.z_KF).sum(axis=0)

    @property
    def agreeing_F(self) -> Codes:
        """Number of studies with the direction that all studies have together."""
        with np.errstate(invalid="ignore"):
            return (np.sign(self.z_KF) == np.sign(self.z_F)).sum(axis=0)


def study_agreement(
    abundances: sparse.csr_array, labels: Labels, reads: Rows | None = None
) -> StudyAgreement | None:
    """Test each feature within studies, and return its direction in each study.

    >>> rng = np.random.default_rng(0)
    >>> shares, studies = rng.random((60, 2)), ["a"] * 30 + ["b"] * 30
    >>> labels = Labels.of(shares[:, 1] + rng.normal(0, 0.1, 60), (), None, (), studies)
    >>> agreement = study_agreement(sparse.csr_array(shares), labels)
    >>> int(agreement.agreeing_F[1]), bool(agreement.q_F[1] < 0.001)
    (2, True)
    """
    assert labels.studies is not None
    joint = rank_test(abundances, labels, reads)
    if joint is None:
        return None
    reads = reads if joint.depth else None
    z_FD = joint.z_FD
    strongest_F = np.nan_to_num(np.abs(z_FD)).argmax(axis=1)
    feature_F = np.arange(len(z_FD))
    z_KF = np.full((len(np.unique(labels.studies)), len(z_FD)), np.nan)
    for k, study in enumerate(np.unique(labels.studies)):
        rows = np.flatnonzero(labels.studies == study)
        study_reads = None if reads is None else reads[rows]
        test = _compare(abundances[rows], labels.take(rows), study_reads)
        if test is not None:
            tested_F = test.present_F >= MIN_SAMPLES
            z_KF[k] = np.where(tested_F, test.z_FD[feature_F, strongest_F], np.nan)
    class_F, z_F = strongest_F + (len(labels.classes) == 2), z_FD[feature_F, strongest_F]
    return StudyAgreement(class_F, z_F, joint.p_values, joint.q_values, z_KF, joint.depth)


def _compare(
    abundances: sparse.csr_array,
    labels: Labels,
    reads: Rows | None = None,
    covariates: Covariates | None = None,
) -> RankTest | None:
    """Sum the rank scores of each feature over all strata; None if no test is possible.

    With `reads`, samples are rarefied to the depth that 95 % of their study reach, and scores are
    means of `DRAWS` draws. Samples of equal depth are exchangeable. Without association the sum of
    one draw therefore has the variance under permuted labels. Averaging draws removes some of the
    variance that rarefaction adds to each sample, and this amount is subtracted.
    """
    table, rng, depth = sparse.csr_array(abundances, dtype=np.float64), np.random.default_rng(0), 0
    if reads is not None:
        reads, depth_N = np.minimum(reads, NUMPY_LIMIT - 1), np.zeros_like(reads)
        study_N = np.zeros_like(reads) if labels.studies is None else labels.studies
        for study in np.unique(study_N):
            in_study = study_N == study
            depth_N[in_study] = np.quantile(reads[in_study], 1 - AUTO_FRACTION, method="lower")
        rows = np.flatnonzero(reads >= depth_N)
        table, labels, depth = table[rows], labels.take(rows), int(depth_N.min())
        covariates = covariates and covariates.take(rows)
        entries = np.diff(table.indptr)
        reads_E, depth_E = reads[rows].repeat(entries), depth_N[rows].repeat(entries)
        counts_E = np.minimum(np.rint(table.data * reads_E).astype(np.int64), reads_E)
    group_N, labels, stratum_N = _observations(labels)
    stratum_N, basis_NX = _adjustment(covariates, group_N, stratum_N)
    size_S = np.bincount(stratum_N)
    freedom = len(stratum_N) - len(size_S)
    outputs_ND = labels.outputs_NC if labels.classes else _ranks(labels.values, stratum_N)
    mean_SD = np.stack([np.bincount(stratum_N, y) for y in outputs_ND.T], axis=1) / size_S[:, None]
    if len(labels.classes) == 2:  # the second class determines the first
        outputs_ND, mean_SD = outputs_ND[:, 1:], mean_SD[:, 1:]
    centred_ND = outputs_ND - mean_SD[stratum_N]
    centred_ND -= basis_NX @ (basis_NX.T @ centred_ND)
    few = len(stratum_N) < _MIN_UNITS or freedom <= basis_NX.shape[1]
    if few or not np.abs(centred_ND).max(initial=0) > 1e-9:
        return None
    # Products of the labels, summed within each stratum, [S, D * D].
    products_ND2 = (centred_ND[:, :, None] * centred_ND[:, None, :]).reshape(len(centred_ND), -1)
    labels_SD2 = np.stack([np.bincount(stratum_N, y) for y in products_ND2.T], axis=1)

    draws = DRAWS if depth else 1
    scores = squares = sparse.csr_array((table.shape[1], len(stratum_N)))
    variance, present_F = sparse.csr_array((table.shape[1], len(size_S))), np.zeros(table.shape[1])
    for _ in range(draws):
        units, size_I = table, np.bincount(group_N)
        if depth:
            drawn_E = rng.hypergeometric(counts_E, reads_E - counts_E, depth_E).astype(np.float64)
            units = sparse.csr_array((drawn_E, table.indices, table.indptr), table.shape, copy=True)
            units.eliminate_zeros()
        if len(size_I) < len(group_N):
            mean = (1 / size_I[group_N], (group_N, np.arange(len(group_N))))
            units = sparse.csr_array(sparse.csr_array(mean) @ units)
        draw_scores, draw_variance = _rank_scores(units, stratum_N)
        scores, squares = scores + draw_scores, squares + draw_scores.power(2)
        variance = variance + draw_variance
        present_F += np.bincount(units.indices, minlength=len(present_F)) / draws
    shape = len(present_F), *[centred_ND.shape[1]] * 2
    covariance_FDD = ((variance / draws) @ labels_SD2).reshape(shape)
    if depth:
        # (1 - 1 / draws) times the variance between draws, with draws - 1 degrees of freedom.
        lacking = (squares - scores.power(2) / draws) / draws
        lacking_F = lacking @ np.square(centred_ND).sum(axis=1)
        share_F = lacking_F / np.maximum(np.trace(covariance_FDD, 0, 1, 2), 1e-300)
        covariance_FDD *= 1 - share_F.clip(max=_MOST_LACKING)[:, None, None]
    if basis_NX.shape[1]:  # variance of the ranks' residuals, with their degrees of freedom
        explained_F = np.square((scores / draws) @ basis_NX).sum(axis=1)
        explained_F /= np.maximum((variance / draws) @ (size_S - 1), 1e-300)
        residual_F = (1 - explained_F).clip(min=0) * freedom / (freedom - basis_NX.shape[1])
        covariance_FDD *= residual_F[:, None, None]
    return RankTest((scores / draws) @ centred_ND, covariance_FDD, present_F, depth)


def _adjustment(covariates: Covariates | None, group_N: Rows, stratum_N: Rows) -> tuple[Rows, F64]:
    """Return strata of equal categories, and an orthonormal basis [N, X] of the other covariates.

    Samples are compared within strata; labels and ranks are residuals of a regression on the basis.
    It spans the rank of each number and its square, and the frequencies of categories that
    differ within observations (such as body sites of a subject), centred within strata.
    """
    if covariates is None:
        return stratum_N, np.empty((len(stratum_N), 0))
    size_N, columns = np.bincount(group_N), []
    for texts in covariates.categories.values():
        categories, code = np.unique(texts, return_inverse=True)
        shares = [np.bincount(group_N, code == k) / size_N for k in range(len(categories))]
        if np.max(shares, axis=0).min() == 1:
            pairs = np.stack([stratum_N, np.argmax(shares, axis=0)])
            stratum_N = np.unique(pairs, axis=1, return_inverse=True)[1].astype(np.int64)
        else:
            columns += shares[1:]
    for values in covariates.numbers.values():
        rank_N = rankdata(np.bincount(group_N, values) / size_N) / len(size_N) - 0.5
        columns += [rank_N, rank_N**2]
    columns_NX = np.array(columns).reshape(-1, len(stratum_N)).T
    mean_SX = np.zeros((stratum_N.max() + 1, columns_NX.shape[1]))
    np.add.at(mean_SX, stratum_N, columns_NX)
    mean_SX /= np.bincount(stratum_N)[:, None]
    basis_NX, size_X, _ = np.linalg.svd(columns_NX - mean_SX[stratum_N], full_matrices=False)
    return stratum_N, basis_NX[:, size_X > 1e-9 * np.sqrt(len(stratum_N))]


def _rank_scores(units: sparse.csr_array, stratum_N: Rows) -> tuple[sparse.csr_array, ...]:
    """Return rank scores relative to the score of zeros, [F, N], and their variance, [F, S]."""
    # Ranks of the entries of each ASV within each stratum; zeros share the lowest rank.
    size_S, entries, shape = np.bincount(stratum_N), units.tocoo(), units.shape
    pair_P, pair_E = np.unique(
        entries.col.astype(np.int64) * len(size_S) + stratum_N[entries.row], return_inverse=True
    )
    size_P = size_S[pair_P % len(size_S)]
    zeros_P = size_P - np.bincount(pair_E, minlength=len(pair_P))
    rank_E = _ranks(entries.data, pair_E)[:, 0] + zeros_P[pair_E]
    # Centred, and divided by the stratum's size so that each observation has equal weight.
    middle_P = (size_P + 1) / 2
    centred_E = (rank_E - middle_P[pair_E]) / (size_P + 1)[pair_E]
    zero_P = ((zeros_P + 1) / 2 - middle_P) / (size_P + 1)
    squares_P = np.bincount(pair_E, centred_E**2, len(pair_P)) + zeros_P * zero_P**2
    # The labels of a stratum sum to 0, so the score of zeros may be subtracted from all scores.
    scores = sparse.csr_array((centred_E - zero_P[pair_E], (entries.col, entries.row)), shape[::-1])
    variance = sparse.csr_array(
        (squares_P / np.maximum(size_P - 1, 1), (pair_P // len(size_S), pair_P % len(size_S))),
        (shape[1], len(size_S)),
    )
    return scores, variance


def mixed_model_test(
    kernel_NN: F64, log_abundances: sparse.csr_array, outputs_NC: F64, folds: Folds
) -> F64:
    """Return the q-value of each ASV once the rest of the community is accounted for, [F].

    The statistic of an ASV is the correlation of its log abundance with the label in a mixed model
    whose random effect is the kernel (like relatedness in genetics: Kang et al. 2010,
    doi:10.1038/ng.548). Associations that the ASV shares with the whole community count little.
    Permuted labels give one null distribution for all ASVs, from which Benjamini-Hochberg q-values
    are computed. A q-value is at least the share of permutations whose lowest q-value over all ASVs
    is as low; without any association, at most a share q of studies has an ASV at q. An ASV in
    fewer than `MIN_SAMPLES` samples has the q-value 1. Labels are `permutation.standard_outputs`,
    permuted among the groups of `folds`.
    """
    number = len(outputs_NC)
    weights = sparse.csc_array(log_abundances, dtype=np.float64)
    q_F, tested = np.ones(weights.shape[1]), np.flatnonzero(np.diff(weights.indptr) >= MIN_SAMPLES)
    if not len(tested):
        return q_F
    mean_N = kernel_NN.mean(axis=0)
    values, vectors = np.linalg.eigh(kernel_NN - mean_N - mean_N[:, None] + mean_N.mean())
    positive = values > max(values[-1] * 1e-10, 0)
    values, U = values[positive], vectors[:, positive]
    # The ratio of noise to kernel variance with the lowest leave-one-out error is chosen.
    shrunk_PK = values / (values + _PENALTIES[:, None] * values.sum())
    residuals_PNC = outputs_NC - U @ (shrunk_PK[:, :, None] * (U.T @ outputs_NC))
    leverage_PN1 = (1 / number + shrunk_PK @ np.square(U).T)[:, :, None]
    errors_P = np.square(residuals_PNC / (1 - leverage_PN1).clip(min=1e-9)).sum(axis=(1, 2))
    shrunk_K = shrunk_PK[errors_P.argmin()]
    # The inverse of the covariance of the mixed model is I - U diag(shrunk) U^T, up to a factor.
    labels_NX = outputs_NC[permuted_rows(folds, PERMUTATIONS).T].reshape(number, -1)
    labels_NX -= labels_NX.mean(axis=0)
    whitened_NX = labels_NX - U @ (shrunk_K[:, None] * (U.T @ labels_NX))
    norms_X = np.sqrt((labels_NX * whitened_NX).sum(axis=0).clip(min=1e-12))
    columns_TN = sparse.csr_array(weights[:, tested].T)
    squares_T = columns_TN.power(2).sum(axis=1) - number * columns_TN.mean(axis=1) ** 2
    squares_T -= np.square((columns_TN @ U) * np.sqrt(shrunk_K)).sum(axis=1)
    correlations_TX = (columns_TN @ whitened_NX) / norms_X
    correlations_TX /= np.sqrt(squares_T.clip(min=1e-9))[:, None]
    by_class = correlations_TX.reshape(len(tested), PERMUTATIONS + 1, -1)
    size_BT = np.sqrt(np.square(by_class).sum(axis=2)).T.round(9)
    null = np.sort(size_BT[1:].ravel())

    def benjamini_hochberg(size_T: F64) -> F64:
        order = np.argsort(-size_T)
        expected = (len(null) - np.searchsorted(null, size_T[order]) + 1) / PERMUTATIONS
        ratio = expected / np.arange(1, len(order) + 1)
        q_T = np.empty(len(order))
        q_T[order] = np.minimum.accumulate(ratio[::-1])[::-1].clip(max=1)
        return q_T

    q_BT = np.array([benjamini_hochberg(size_T) for size_T in size_BT])
    least_B = np.sort(q_BT[1:].min(axis=1))
    as_low_T = np.searchsorted(least_B, q_BT[0], side="right")
    q_F[tested] = np.maximum(q_BT[0], (1 + as_low_T) / (PERMUTATIONS + 1))
    return q_F


def association_sentence(q_values_U: Mapping[str, F64], target: str, better: bool) -> str:
    """State how many of U ASVs are associated with the target, by each test that was computed.

    `better` states whether the model is shown to be better than the baseline.

    >>> q_values = {ASSOCIATED: np.array([0.02, 0.05, 0.4]), CONDITIONAL: np.array([0.02, 0.2, 1])}
    >>> association_sentence(q_values, "age", better=True)
    "2 of 3 ASVs are associated with 'age' (rank test, q < 0.1); 1 once the rest of the community \
is accounted for."
    """
    number = {name: int((q_U < RATE).sum()) for name, q_U in q_values_U.items()}
    if not (tests := [name for name in (ASSOCIATED, ADJUSTED, CONDITIONAL) if name in number]):
        return ""
    accounted = {
        ASSOCIATED: "",
        ADJUSTED: " once the metadata columns of --adjust-for are accounted for",
        CONDITIONAL: " once the rest of the community is accounted for",
    }
    first, *further_tests = tests
    text = f"{number[first]} of {len(q_values_U[first])} ASVs are associated with '{target}'"
    method = "mixed model" if first == CONDITIONAL else "rank test"
    depth = " at equal sequencing depth" if EQUAL_DEPTH in number and first != CONDITIONAL else ""
    text += f"{accounted[first]} ({method}{depth}, q < {RATE})"
    text += "".join(f"; {number[name]}{accounted[name]}" for name in further_tests)
    if depth:
        text += f". The sequencing depth differs with '{target}'"
    if better and number.get(ASSOCIATED) == 0:
        text += ". A model can also use ASVs that peak at middle values or predict in combination"
    return f"{text}."


def _observations(labels: Labels) -> tuple[Rows, Labels, Rows]:
    """Return the observation of each sample (its group or itself), with labels and strata."""
    study_N = np.zeros(len(labels.groups), dtype=np.int64)
    if labels.studies is not None:
        study_N = labels.studies
    # A subject in two studies is two groups.
    pairs_2N, group_N = np.unique([study_N, labels.groups], axis=1, return_inverse=True)
    each_N, size_I = np.arange(len(group_N)), np.bincount(group_N)
    stratum_N = np.unique(study_N, return_inverse=True)[1].astype(np.int64)
    if len(size_I) == len(group_N):
        return each_N, labels, stratum_N
    outputs_NC = labels.outputs_NC
    mean_IC = np.stack([np.bincount(group_N, y) for y in outputs_NC.T], axis=1) / size_I[:, None]
    within = np.square(outputs_NC - mean_IC[group_N]).sum()
    if within > _CONSTANT * np.square(outputs_NC - outputs_NC.mean(axis=0)).sum():
        return each_N, labels, group_N
    values_I = mean_IC.argmax(axis=1).astype(np.float64) if labels.classes else mean_IC[:, 0]
    return (
        group_N,
        Labels.of(values_I, labels.classes, None, labels.levels),
        np.unique(pairs_2N[0], return_inverse=True)[1].astype(np.int64),
    )


def _ranks(values_E: F64, stratum_E: Rows) -> F64:
    """Rank values within each stratum from 1, with mean ranks for ties, as one column."""
    # Ranks over all strata, minus the number of values in earlier strata.
    position_E = np.empty(len(values_E), dtype=np.int64)
    order = np.lexsort((values_E, stratum_E))
    steps = np.diff(values_E[order], prepend=np.nan) != 0
    position_E[order] = np.cumsum(steps | (np.diff(stratum_E[order], prepend=-1) != 0))
    earlier_S = np.cumsum(np.bincount(stratum_E)) - np.bincount(stratum_E)
    return np.asarray(rankdata(position_E) - earlier_S[stratum_E])[:, None]
