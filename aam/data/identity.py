"""Identity of samples and subjects: copies of a sample, and subjects that two studies share.

Samples with equal reads are one sample, whatever their ids. They are compared by relative abundance
and sequence: if a copy was renamed, trimmed, made relative or filtered, its abundances on the ASVs
of both samples are still proportional. Sequencing a specimen twice gives other counts, so two runs
are not equal. `docs/experiments/identity.md` measures how often different samples pass for equal,
and how many copies are detected.

Two studies may both number their subjects from 1. Equal names in two studies are one subject if the
samples with equal names are more similar than expected by chance.

Axes: N samples, F ASVs, P pairs, V names of subjects that two studies share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.arrays import F64, Rows
from aam.contract.errors import first_few
from aam.data.sequences import hash_sequences
from aam.data.study import Study

_LARGEST = 8  # most abundant ASVs that find candidates by their ratios; a filter may remove 5
_BINS = 64  # steps of a ratio for each factor of two
_RATIOS = 4  # smallest number of ratios that candidates share
_CANDIDATES = 4  # samples compared for each ratio

_COVERED = 0.5  # smallest share of the reads of either sample on shared ASVs
_TOLERANCE = 1e-3  # difference of proportional abundances, relative to their sum: rounding
_EVIDENCE = 6.0  # -log of the chance that other reads of the same ASVs agree: 1 in 400
_COUNTS_EVIDENCE = 8.0  # the same for equal counts, however few: 1 in 3,000
_COUNTED = 3.5  # smaller counts are no evidence: in shared ASVs they are mostly equal

_EXPECTED = 5  # mean reads per sample from which an ASV is a category of its own
_COMPARED = 30  # fewest degrees of freedom: with few abundant ASVs many samples are alike
_HOMOGENEITY = 1.2  # largest chi-square per degree of freedom

_BLOCK = 512  # samples compared at once
_MAX_SAMPLES = 4000  # samples compared per study; 4,000 take 2 CPU-seconds
_PERMUTATIONS = 999
_LEVEL = 0.01  # p value up to which equal names are one subject
_MIN_NAMES = 5  # with fewer, no permutation of the names can be that rare


_Sample = tuple[Rows, F64, float]  # columns of its ASVs, their shares, and its reads


@dataclass(frozen=True)
class Abundances:
    """Relative abundances of N samples, by the sequences of their ASVs."""

    shares: sparse.csr_array  # float32 [N, F], rows sum to 1
    hashes_F: Rows  # hash of each sequence
    reads_N: F64  # reads of each sample; 1 if only its relative abundances are known

    @classmethod
    def of(cls, study: Study, length: int | None = None) -> Abundances:
        """Read the abundances of a study, with sequences trimmed to `length`."""
        counts = study.counts(np.arange(len(study.table.sample_ids)))
        return cls.from_counts(counts, hash_sequences(study.tokens_FL[:, :length]))

    @classmethod
    def from_counts(cls, counts: sparse.csr_array, hashes_F: Rows) -> Abundances:
        """Compute abundances from counts [N, F] and the hashes of the ASVs' sequences."""
        sums_N = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
        data = counts.data[: counts.nnz] * np.repeat((1 / sums_N), np.diff(counts.indptr))
        shares = data.astype(np.float32), counts.indices[: counts.nnz], counts.indptr
        return cls(sparse.csr_array(shares, shape=counts.shape), hashes_F, sums_N)

    def take(self, rows: Rows) -> Abundances:
        """Return the samples at `rows`, with all ASVs."""
        return Abundances(self.shares[rows], self.hashes_F, self.reads_N[rows])

    def similarity(self, second: Abundances) -> npt.NDArray[np.float32]:
        """Return the Bhattacharyya coefficients of all pairs, 0 to 1, [N, N of the other]."""
        roots, other_roots = (shares.sqrt() for shares in _aligned(self, second))
        similarity: npt.NDArray[np.float32] = (roots @ other_roots.T).toarray()
        return similarity

    def equal_pairs(self, two: Abundances | None = None) -> Rows:
        """Find pairs of samples with equal reads, rows [P, 2]; without `two` within this study."""
        first, second = _aligned(self, self if two is None else two)
        keys_NK = _ratio_keys(first)
        order = np.argsort(keys_NK, axis=None, kind="stable")
        keys, rows = keys_NK.ravel()[order], order // keys_NK.shape[1]
        pairs = [np.empty((0, 2), dtype=np.int64)]
        for start in range(0, second.shape[0], _BLOCK):
            other_NK = _ratio_keys(second[start : start + _BLOCK])
            low, high = (np.searchsorted(keys, other_NK, side) for side in ("left", "right"))
            candidates = [pairs[0]]
            for step in range(_CANDIDATES):
                chosen = (low + step < high) & (other_NK != 0)
                matches = start + np.nonzero(chosen)[0]
                candidates.append(np.stack([rows[(low + step)[chosen]], matches], axis=1))
            pair_P2, times_P = np.unique(np.concatenate(candidates), axis=0, return_counts=True)
            pair_P2 = pair_P2[times_P >= _RATIOS]
            if two is None:
                pair_P2 = pair_P2[pair_P2[:, 0] < pair_P2[:, 1]]
            reads_N = (two or self).reads_N
            equal = [
                _equal(_sample(first, i, self.reads_N), _sample(second, j, reads_N))
                for i, j in pair_P2.tolist()
            ]
            pairs.append(pair_P2[np.array(equal, dtype=np.bool_)])
        return np.concatenate(pairs)

    def alike_pairs(self, two: Abundances | None = None) -> Rows:
        """Find pairs of samples that differ no more than two draws of reads from one sample.

        Each sample of `two` (without it, of this study) is compared with the most similar sample of
        this study by a chi-square test of homogeneity. Rarefied copies of a sample pass; repeated
        samples of a subject do not. Returns rows [P, 2].
        """
        rng = np.random.default_rng(0)
        studies = self, self if two is None else two
        tables = _aligned(*studies)
        rows = [np.arange(table.shape[0]) for table in tables]
        if max(map(len, rows)) > _MAX_SAMPLES:
            rows = [np.sort(rng.permutation(chosen)[:_MAX_SAMPLES]) for chosen in rows]
            rows = rows if two is not None else [rows[0], rows[0]]
        first, second = (table[chosen] for table, chosen in zip(tables, rows, strict=True))
        reads = [study.reads_N[chosen] for study, chosen in zip(studies, rows, strict=True)]
        similarity = (first.sqrt() @ second.sqrt().T).toarray()
        if two is None:
            np.fill_diagonal(similarity, -1)
        pairs = [
            (rows[0][i], rows[1][j])
            for j, i in enumerate(similarity.argmax(axis=0).tolist())
            if _is_homogeneous(_sample(first, i, reads[0]), _sample(second, j, reads[1]))
        ]
        pairs_P2 = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return pairs_P2 if two is not None else np.unique(np.sort(pairs_P2, axis=1), axis=0)

    def same_names(self, two: Abundances, names: Sequence[Sequence[str]]) -> bool:
        """Return whether equal subject names in two studies are the same subjects.

        With fewer than `_MIN_NAMES` shared names the test has no power. The names then count as the
        same subjects, so that no subject passes for unseen by mistake.
        """
        common = set(names[0]) & set(names[1]) - {""}
        return len(common) < _MIN_NAMES or self.chance_of_names(two, names) <= _LEVEL

    def chance_of_names(self, two: Abundances, names: Sequence[Sequence[str]]) -> float:
        """Permutation test of shared subject names: p value that their samples are alike by chance.

        The statistic is the number of samples whose most similar sample of the other study has the
        same name, among samples with a shared name; the names are permuted 999 times.
        """
        common = np.array(sorted(set(names[0]) & set(names[1]) - {""}), dtype=object)
        code_of = {name: code for code, name in enumerate(common)}
        rng, chosen, codes = np.random.default_rng(0), [], []
        for study, of_samples in zip((self, two), names, strict=True):
            code_N = np.array([code_of.get(name, -1) for name in of_samples])
            rows = np.flatnonzero(code_N >= 0)
            if len(rows) > _MAX_SAMPLES:
                rows = np.sort(rng.choice(rows, _MAX_SAMPLES, replace=False))
            chosen.append(study.take(rows))
            codes.append(code_N[rows])
        similarity = chosen[0].similarity(chosen[1])
        hits_VV = np.zeros((len(common), len(common)), dtype=np.int64)
        for axis, second_axis in ((0, 1), (1, 0)):
            # A sample that shares no ASV with the other study has no most similar sample in it.
            compared = similarity.max(axis=second_axis) > 0
            nearest = similarity.argmax(axis=second_axis)[compared]
            pair = {axis: codes[axis][compared], second_axis: codes[second_axis][nearest]}
            np.add.at(hits_VV, (pair[0], pair[1]), 1)
        places = np.arange(len(common))
        hits = hits_VV[places, places].sum()
        orders = (rng.permutation(places) for _ in range(_PERMUTATIONS))
        at_least = sum(hits_VV[places, order].sum() >= hits for order in orders)
        return float((1 + at_least) / (1 + _PERMUTATIONS))


def _is_homogeneous(first: _Sample, second: _Sample) -> bool:
    """Chi-square test of homogeneity: may both samples be draws of reads from one sample?"""
    columns = np.union1d(first[0], second[0])
    counts_2F = np.zeros((2, len(columns)))
    for counts_F, (asvs, shares, reads) in zip(counts_2F, (first, second), strict=True):
        counts_F[np.searchsorted(columns, asvs)] = shares * reads
    abundant_F = counts_2F.sum(axis=0) >= 2 * _EXPECTED
    rare = counts_2F[:, ~abundant_F].sum(axis=1, keepdims=True)
    counts_2F = np.hstack([counts_2F[:, abundant_F], rare])
    counts_2F = counts_2F[:, counts_2F.sum(axis=0) > 0]
    degrees = counts_2F.shape[1] - 1
    sums_2 = counts_2F.sum(axis=1, keepdims=True)
    expected_2F = sums_2 * counts_2F.sum(axis=0) / sums_2.sum()
    square = (np.square(counts_2F - expected_2F) / expected_2F).sum()
    return bool(degrees >= _COMPARED and square < _HOMOGENEITY * degrees)


def named_pairs(pairs: Rows, sample_ids: Sequence[str]) -> str:
    """Name the first pairs of samples, and their number, for a message."""
    return first_few(" and ".join(sample_ids[row] for row in pair) for pair in pairs.tolist())


def joined(number: int, pairs: Rows) -> Rows:
    """Return the connected component [number] of each item, given pairs of connected items."""
    links = (np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1]))
    graph = sparse.coo_array(links, shape=(number, number))
    labels: Rows = sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
    return labels


def _aligned(first: Abundances, second: Abundances) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Align the columns of two studies by sequence; shares of equal sequences are summed."""
    hashes = np.unique(np.concatenate([first.hashes_F, second.hashes_F]))
    aligned = []
    for study in (first, second):
        columns = np.searchsorted(hashes, study.hashes_F).astype(np.int32)[study.shares.indices]
        arrays = (study.shares.data, columns, study.shares.indptr)
        # A copy, because duplicates are summed in place.
        shares = sparse.csr_array(arrays, shape=(study.shares.shape[0], len(hashes)), copy=True)
        shares.sum_duplicates()
        shares.eliminate_zeros()
        aligned.append(shares)
    return aligned[0], aligned[1]


def _ratio_keys(shares: sparse.csr_array) -> npt.NDArray[np.uint64]:
    """Hash the triples of the most abundant ASVs of each sample with their two ratios.

    Returns uint64 [N, K] for K triples of `_LARGEST` ASVs; 0 if a sample has too few ASVs.
    """
    number_N = np.diff(shares.indptr)
    row = np.repeat(np.arange(shares.shape[0]), number_N)
    order = np.lexsort((shares.indices, -shares.data, row))
    rank = np.arange(len(row)) - np.repeat(shares.indptr[:-1], number_N)
    largest = order[rank < _LARGEST]
    column_NT = np.full((shares.shape[0], _LARGEST), -1, dtype=np.int64)
    share_NT = np.ones((shares.shape[0], _LARGEST))
    cells = row[largest], rank[rank < _LARGEST]
    column_NT[cells], share_NT[cells] = shares.indices[largest], shares.data[largest]
    # Sorted by column, so that rounding cannot change the order of equal shares.
    by_column = np.argsort(column_NT, axis=1, kind="stable")
    column_NT = np.take_along_axis(column_NT, by_column, axis=1)
    octaves_NT = np.log2(np.take_along_axis(share_NT, by_column, axis=1))
    keys = []
    for i, j, k in combinations(range(_LARGEST), 3):
        key_N = np.zeros(shares.shape[0], dtype=np.uint64)
        ratios = (octaves_NT[:, asv] - octaves_NT[:, i] for asv in (j, k))
        steps = [np.rint(_BINS * ratio_N).astype(np.int64) for ratio_N in ratios]
        for word_N in [*column_NT[:, [i, j, k]].T, *steps]:
            # Fibonacci hashing; the product wraps around.
            key_N = (key_N ^ word_N.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            key_N ^= key_N >> np.uint64(29)
        keys.append(np.where(column_NT[:, i] < 0, np.uint64(0), key_N))
    return np.stack(keys, axis=1)


def _sample(shares: sparse.csr_array, row: int, reads_N: F64) -> _Sample:
    entries = slice(shares.indptr[row], shares.indptr[row + 1])
    return shares.indices[entries], shares.data[entries].astype(np.float64), reads_N[row]


def _equal(first: _Sample, second: _Sample) -> bool:
    """Return whether two samples have equal reads."""
    (asvs, share_F, reads), (other_asvs, other_F, other_reads) = first, second
    common, rows, other_rows = np.intersect1d(asvs, other_asvs, True, return_indices=True)
    if not len(common):
        return False
    x, y = share_F[rows], other_F[other_rows]
    # Equal counts are evidence even if few reads are shared: a filter left out the rare ASVs.
    counts, other_counts = x * reads, y * other_reads
    are_equal = np.allclose(counts, other_counts, rtol=_TOLERANCE, atol=0)
    if are_equal and _evidence(counts[counts > _COUNTED]) >= _COUNTS_EVIDENCE:
        return True
    # Ignore the most abundant ASV: with 99 % of the reads it makes any two samples alike.
    largest = (x + y).argmax()
    least = share_F.min()
    covered = (x.sum() - x[largest]) / max(share_F.sum() - x[largest], 1e-9)
    other_covered = (y.sum() - y[largest]) / max(other_F.sum() - y[largest], 1e-9)
    if min(covered, other_covered) < _COVERED:
        return False
    x, y = np.delete(x, largest), np.delete(y, largest)
    if np.abs(x - y * (x.sum() / y.sum())).sum() > _TOLERANCE * x.sum():
        return False
    return _evidence(x / least) >= _EVIDENCE  # reads, if the rarest ASV has one


def _evidence(counts: F64) -> float:
    """Return -log of the probability that an unrelated sample has these counts.

    Two Poisson numbers with mean c are equal with probability 1 / (2 sqrt(pi c)). This probability
    is multiplied by the number of integers within the tolerance.
    """
    odds = np.log(2 * np.sqrt(np.pi * counts)) - np.log(np.maximum(1, 2 * _TOLERANCE * counts))
    return float(odds.clip(min=0).sum())
