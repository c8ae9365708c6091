"""Identity: which samples are one sample, and which subjects of two studies are one subject.

Samples with equal reads are one sample, whatever their ids are. They are compared by relative
abundance and sequence, so a copy that was renamed, cut, made relative or filtered is recognized: on
the ASVs that both samples have, the abundances are proportional. Two sequencings of one specimen
are not, since reads are counts: `docs/experiments/identity.md` measures how often different samples
pass for one, and how many copies are found.

Subjects have names, and a study may number its own from 1 as another does. Equal names of two
studies are one subject if samples of equal name are more alike than chance allows.

Axes: N samples, F ASVs, P pairs, V names of subjects that both of two studies have.
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

_LARGEST = 8  # ASVs of a sample whose ratios find candidates; a filter may remove five of them
_BINS = 64  # steps of a ratio for each factor of two
_RATIOS = 4  # ratios that candidates have in common, at least
_CANDIDATES = 4  # samples of one ratio that are compared

_COVERED = 0.5  # part of the reads of either sample on ASVs that both have, at least
_TOLERANCE = 1e-3  # difference of proportional abundances, relative to their sum: rounding
_EVIDENCE = 6.0  # -log of the chance that other reads of the same ASVs agree: 1 in 400
_COUNTS_EVIDENCE = 8.0  # of equal counts, however few reads they are: 1 in 3,000
_COUNTED = 3.5  # reads that are evidence, above: fewer are mostly equal in ASVs that both have

_EXPECTED = 5  # reads in either sample that an ASV needs to be compared alone, in the mean
_COMPARED = 30  # degrees of freedom of alike samples, at least: few abundant ASVs make many alike
_HOMOGENEITY = 1.2  # their chi-square for each degree of freedom, at most

_BLOCK = 512  # samples that are compared at once
_MAX_SAMPLES = 4000  # samples of a study that are compared; 4,000 take 2 CPU-seconds
_SHUFFLINGS = 999
_LEVEL = 0.01  # p value from which equal names are one subject
_MIN_NAMES = 5  # of fewer, no order of the names is that rare


@dataclass(frozen=True)
class Abundances:
    """Relative abundances of N samples, by the sequences of their ASVs."""

    shares: sparse.csr_array  # float32 [N, F], rows sum to 1
    hashes_F: Rows  # hash of each sequence
    reads_N: F64  # reads of each sample; 1 where they are not known

    @classmethod
    def of(cls, study: Study, length: int | None = None) -> Abundances:
        """Read the samples of a study, with sequences that are cut to `length`."""
        counts = study.counts(np.arange(len(study.table.sample_ids)))
        return cls.from_counts(counts, hash_sequences(study.tokens_FL[:, :length]))

    @classmethod
    def from_counts(cls, counts: sparse.csr_array, hashes_F: Rows) -> Abundances:
        """Take the counts of samples [N, F], and the hashes of the sequences of their ASVs."""
        sums_N = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
        data = counts.data[: counts.nnz] * np.repeat((1 / sums_N), np.diff(counts.indptr))
        shares = data.astype(np.float32), counts.indices[: counts.nnz], counts.indptr
        return cls(sparse.csr_array(shares, shape=counts.shape), hashes_F, sums_N)

    def take(self, rows: Rows) -> Abundances:
        """Return the samples at `rows`, with all ASVs."""
        return Abundances(self.shares[rows], self.hashes_F, self.reads_N[rows])

    def similarity(self, other: Abundances) -> npt.NDArray[np.float32]:
        """Return the Bhattacharyya coefficients of all pairs, 0 to 1, [N, N of the other]."""
        one, two = (shares.sqrt() for shares in _aligned(self, other))
        similarity: npt.NDArray[np.float32] = (one @ two.T).toarray()
        return similarity

    def equal_pairs(self, two: Abundances | None = None) -> Rows:
        """Return the pairs of samples with equal reads, rows [P, 2]; without `two` among these."""
        first, second = _aligned(self, self if two is None else two)
        keys_NK = _ratio_keys(first)
        order = np.argsort(keys_NK, axis=None, kind="stable")
        keys, rows = keys_NK.ravel()[order], order // keys_NK.shape[1]
        pairs = [np.empty((0, 2), dtype=np.int64)]
        for start in range(0, second.shape[0], _BLOCK):
            other_NK = _ratio_keys(second[start : start + _BLOCK])
            low, high = (np.searchsorted(keys, other_NK, side) for side in ("left", "right"))
            candidates = [pairs[0]]
            for place in range(_CANDIDATES):
                chosen = (low + place < high) & (other_NK != 0)
                others = start + np.nonzero(chosen)[0]
                candidates.append(np.stack([rows[(low + place)[chosen]], others], axis=1))
            pair_P2, times_P = np.unique(np.concatenate(candidates), axis=0, return_counts=True)
            pair_P2 = pair_P2[times_P >= _RATIOS]
            if two is None:
                pair_P2 = pair_P2[pair_P2[:, 0] < pair_P2[:, 1]]
            equal = [
                _equal(_row(first, i), _row(second, j), self.reads_N[i], (two or self).reads_N[j])
                for i, j in pair_P2.tolist()
            ]
            pairs.append(pair_P2[np.array(equal, dtype=np.bool_)])
        return np.concatenate(pairs)

    def alike_pairs(self, two: Abundances | None = None) -> Rows:
        """Return pairs that differ no more than two draws of reads from one sample, rows [P, 2].

        Each sample of `two` (of these without it) is compared with its most similar one by a
        chi-square test of homogeneity. Repeated samples of a subject differ more; rarefied copies
        do not.
        """
        rng = np.random.default_rng(0)
        both = self, self if two is None else two
        tables = _aligned(*both)
        rows = [np.arange(table.shape[0]) for table in tables]
        if max(map(len, rows)) > _MAX_SAMPLES:
            rows = [np.sort(rng.permutation(chosen)[:_MAX_SAMPLES]) for chosen in rows]
            rows = rows if two is not None else [rows[0], rows[0]]
        first, second = (table[chosen] for table, chosen in zip(tables, rows, strict=True))
        similarity = (first.sqrt() @ second.sqrt().T).toarray()
        if two is None:
            np.fill_diagonal(similarity, -1)
        pairs = [
            (rows[0][i], rows[1][j])
            for j, i in enumerate(similarity.argmax(axis=0).tolist())
            if _is_homogeneous(
                (_row(first, i), both[0].reads_N[rows[0][i]]),
                (_row(second, j), both[1].reads_N[rows[1][j]]),
            )
        ]
        pairs_P2 = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return pairs_P2 if two is not None else np.unique(np.sort(pairs_P2, axis=1), axis=0)

    def same_names(self, two: Abundances, names: Sequence[Sequence[str]]) -> bool:
        """Return whether equal names of two studies are one subject, see `chance_of_names`.

        Of fewer than `_MIN_NAMES` the reads cannot tell: then they are, and nothing is called
        unseen.
        """
        common = set(names[0]) & set(names[1]) - {""}
        return len(common) < _MIN_NAMES or self.chance_of_names(two, names) <= _LEVEL

    def chance_of_names(self, two: Abundances, names: Sequence[Sequence[str]]) -> float:
        """Return the p value of equal names of two studies: are their samples alike by chance?

        Counted are the samples whose most similar sample of the other study has the same name,
        among samples with a name that both studies have, against random orders of the names.
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
        for own, other in ((0, 1), (1, 0)):
            # A sample that shares no ASV with the other study is alike to none of it.
            compared = similarity.max(axis=other) > 0
            nearest = similarity.argmax(axis=other)[compared]
            pair = {own: codes[own][compared], other: codes[other][nearest]}
            np.add.at(hits_VV, (pair[0], pair[1]), 1)
        places = np.arange(len(common))
        hits = hits_VV[places, places].sum()
        orders = (rng.permutation(places) for _ in range(_SHUFFLINGS))
        at_least = sum(hits_VV[places, order].sum() >= hits for order in orders)
        return float((1 + at_least) / (1 + _SHUFFLINGS))


def _is_homogeneous(
    one: tuple[tuple[Rows, F64], float], two: tuple[tuple[Rows, F64], float]
) -> bool:
    """Return whether two samples may be draws of reads from one, by a chi-square test."""
    columns = np.union1d(one[0][0], two[0][0])
    counts_2F = np.zeros((2, len(columns)))
    for counts_F, ((asvs, shares), reads) in zip(counts_2F, (one, two), strict=True):
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
    """Return the number of pairs of samples and the first of them, for a message."""
    return first_few(" and ".join(sample_ids[row] for row in pair) for pair in pairs.tolist())


def joined(number: int, pairs: Rows) -> Rows:
    """Return the number of the set of each of `number` things, of which `pairs` are in one set."""
    links = (np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1]))
    graph = sparse.coo_array(links, shape=(number, number))
    labels: Rows = sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
    return labels


def _aligned(one: Abundances, two: Abundances) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Return the shares of both with the same columns; ASVs of equal sequence are added."""
    hashes = np.unique(np.concatenate([one.hashes_F, two.hashes_F]))
    aligned = []
    for each in (one, two):
        columns = np.searchsorted(hashes, each.hashes_F).astype(np.int32)[each.shares.indices]
        parts = (each.shares.data, columns, each.shares.indptr)
        # A copy, since sums of duplicates are made in place.
        shares = sparse.csr_array(parts, shape=(each.shares.shape[0], len(hashes)), copy=True)
        shares.sum_duplicates()
        shares.eliminate_zeros()
        aligned.append(shares)
    return aligned[0], aligned[1]


def _ratio_keys(shares: sparse.csr_array) -> npt.NDArray[np.uint64]:
    """Return hashes of three ASVs and their two ratios, of the most abundant ASVs of each sample.

    Returns:
        uint64 [N, K]: K triples of `_LARGEST` ASVs; 0 where a sample has fewer.
    """
    number_N = np.diff(shares.indptr)
    row = np.repeat(np.arange(shares.shape[0]), number_N)
    order = np.lexsort((shares.indices, -shares.data, row))
    rank = np.arange(len(row)) - np.repeat(shares.indptr[:-1], number_N)
    largest = order[rank < _LARGEST]
    column_NT = np.full((shares.shape[0], _LARGEST), -1, dtype=np.int64)
    share_NT = np.ones((shares.shape[0], _LARGEST))
    place = row[largest], rank[rank < _LARGEST]
    column_NT[place], share_NT[place] = shares.indices[largest], shares.data[largest]
    # By column, so that equal shares have one order however they were rounded.
    by_column = np.argsort(column_NT, axis=1, kind="stable")
    column_NT = np.take_along_axis(column_NT, by_column, axis=1)
    octaves_NT = np.log2(np.take_along_axis(share_NT, by_column, axis=1))
    keys = []
    for i, j, k in combinations(range(_LARGEST), 3):
        key_N = np.zeros(shares.shape[0], dtype=np.uint64)
        ratios = (octaves_NT[:, other] - octaves_NT[:, i] for other in (j, k))
        steps = [np.rint(_BINS * ratio_N).astype(np.int64) for ratio_N in ratios]
        for word_N in [*column_NT[:, [i, j, k]].T, *steps]:
            # Fibonacci hashing; a product wraps around.
            key_N = (key_N ^ word_N.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            key_N ^= key_N >> np.uint64(29)
        keys.append(np.where(column_NT[:, i] < 0, np.uint64(0), key_N))
    return np.stack(keys, axis=1)


def _row(shares: sparse.csr_array, row: int) -> tuple[Rows, F64]:
    """Return the columns and shares of a sample."""
    entries = slice(shares.indptr[row], shares.indptr[row + 1])
    return shares.indices[entries], shares.data[entries].astype(np.float64)


def _equal(one: tuple[Rows, F64], two: tuple[Rows, F64], reads: float, other_reads: float) -> bool:
    """Return whether two samples have equal reads."""
    (_, share_F), (_, other_F) = one, two
    common, places, others = np.intersect1d(one[0], two[0], True, return_indices=True)
    if not len(common):
        return False
    x, y = share_F[places], other_F[others]
    # Counts that are equal as they are need no other reads: a filter left the rare ASVs out.
    counts, other_counts = x * reads, y * other_reads
    are_equal = np.allclose(counts, other_counts, rtol=_TOLERANCE, atol=0)
    if are_equal and _evidence(counts[counts > _COUNTED]) >= _COUNTS_EVIDENCE:
        return True
    # Without the most abundant ASV: with 99 % of the reads it makes any two samples alike.
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
    """Return -log of the chance that other reads have these counts.

    Two Poisson numbers of mean c are equal with probability 1 / (2 sqrt(pi c)), and within the
    tolerance with that of all numbers in it.
    """
    odds = np.log(2 * np.sqrt(np.pi * counts)) - np.log(np.maximum(1, 2 * _TOLERANCE * counts))
    return float(odds.clip(min=0).sum())
