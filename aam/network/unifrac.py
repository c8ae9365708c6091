"""UniFrac distances and Faith's PD, of a table in tiles or of a batch; command `aam unifrac`.

For samples i and j, with l_b the length of branch b, p_ib the fraction of i's reads below b,
and s_b = p_ib + p_jb:

    unweighted            sum l_b over branches of one sample / sum l_b over branches of either
    weighted              sum l_b |p_ib - p_jb|
    weighted_normalized   sum l_b |p_ib - p_jb| / sum l_b s_b
    generalized           sum l_b s_b^a |p_ib - p_jb| / s_b / sum l_b s_b^a
    Faith's PD            sum l_b over branches of the sample

Lozupone and Knight 2005, Lozupone et al. 2007, Chen et al. 2012, Faith 1992. The stem above the
common ancestor counts, as in scikit-bio. A sample without reads has p = 0 for all branches, so its
distance to a sample with reads is 1 (not normalized: the weighted sum); two samples without reads
have distance 0.

A tile depends only on its samples and the tree. Tiles can be computed one at a time, in any order
and by several processes, with the same bits. Memory holds one tile, and the reads of its samples
below the branches. Only tiles on and above the diagonal are computed. A batch is one tile of the
tree that its ASVs span, so its cost depends on its samples and not on the study or the tree.

Most branches are near the tips and have reads of few samples. So branches are divided:

* A dense branch has reads of many samples of the tile. Dense branches are computed by a matrix
  product of presences (unweighted), or by `torch.cdist` with p = 1 (weighted).
* A sparse branch has reads of few samples. Sparse branches are computed by a product of sparse
  presences, or from the smaller of two values, by
      sum l |p_i - p_j| = sum l p_i + sum l p_j - 2 sum l min(p_i, p_j),
  and likewise for the sums of generalized UniFrac.

On a GPU all branches are dense.

Shapes: N samples, F features, G branches; n and m samples of two blocks, g branches at a time; B
samples of a batch, and U features of its samples.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aam.console import info, track
from aam.contract.errors import DataError, Unavailable, UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.studies import Unifrac
from aam.contract.options.groups import DeviceOptions, Metric
from aam.data.distances import DistanceMatrix, checked_suffix, hdf5_matrix
from aam.data.formats.text import write_table
from aam.data.metadata import ID_HEADER
from aam.data.phylogeny import Phylogeny
from aam.data.store import Store, is_store
from aam.data.study import check_store_options, load_table, with_phylogeny
from aam.data.table import FeatureTable
from aam.memory import GIB, memory_available, shown_size
from aam.network.numerics.device import choose_device, print_device

TILE = 512
"""Samples in a row and in a column of a tile. Rounding errors depend on it."""

BRANCHES = 256  # dense branches that are processed at a time
ROWS = 4  # samples that are compared with a block at a time, by their sparse branches

DENSE_FROM = {"unweighted": 0.02, "weighted": 0.1, "generalized": 0.2}
"""Metric -> share of a tile's pairs of samples with reads below a branch, from which it is dense.

Near these shares the dense and the sparse computation take the same time on one core.
"""

Engine = Literal["auto", "torch", "ssu", "unifrac"]
Array = NDArray[np.float64]
Branches = NDArray[np.int64]
Mask = NDArray[np.bool_]
Tile = tuple[slice, slice, Array]  # rows and columns of the matrix, and their distances [n, m]


@dataclass(frozen=True)
class SampleBlock:
    """Reads of n samples below the branches."""

    # float64 [n, G]: proportion of a sample's reads below a branch; for weighted UniFrac, times the
    # branch length; for unweighted UniFrac, 1
    by_sample: sparse.csr_array
    by_branch: sparse.csr_array  # the same values, [G, n]
    # float64 [n]: total length of the branches above a sample's ASVs (unweighted UniFrac), or mean
    # distance of its reads from the root
    totals: Array


class PhylogeneticMetric:
    """A UniFrac metric on a tree."""

    def __init__(
        self,
        metric: Metric,
        alpha: float,  # exponent of generalized UniFrac, 0 to 1
        above_FG: sparse.csr_array,  # int64 [F, G], 1 if the branch is above the feature
        lengths_G: Array,  # float64 [G]
        device: str = "cpu",
    ) -> None:
        self._above_FG, self._lengths_G = above_FG, lengths_G
        self._alpha, self._device = alpha, device
        self._normalized = metric != "weighted"
        self._kind = "weighted" if metric.startswith("weighted") else "unweighted"
        if metric == "generalized":
            self._kind = "weighted" if alpha == 1 else "generalized"

    def block(self, counts_nF: sparse.csr_array) -> SampleBlock:
        """Sum the reads of n samples below the branches."""
        counts = counts_nF.astype(np.int64)
        below = counts @ self._above_FG
        below.sort_indices()  # the order of a sum determines its rounding
        lengths = self._lengths_G[below.indices]
        if self._kind == "unweighted":
            values, weighted = np.ones(below.nnz), lengths
        else:
            reads = np.asarray(counts.sum(axis=1)).ravel()
            values = below.data / np.repeat(reads, np.diff(below.indptr))
            weighted = values * lengths
        if self._kind == "weighted":
            # |l p - l q| = l |p - q|, and likewise for the minimum: lengths are multiplied once.
            values = weighted
        by_sample = sparse.csr_array((values, below.indices, below.indptr), shape=below.shape)
        rows = np.repeat(np.arange(below.shape[0]), np.diff(below.indptr))
        totals = _bincount(rows, weighted, below.shape[0])
        return SampleBlock(by_sample, by_sample.T.tocsr(), totals)

    def distances(self, a: SampleBlock, b: SampleBlock) -> Array:
        """Compute the distances [n, m] of the samples of two blocks; symmetric for one block."""
        # Pairs of samples that both have reads below a branch: its number of sparse products.
        pairs = np.diff(a.by_branch.indptr).astype(np.int64) * np.diff(b.by_branch.indptr)
        share = DENSE_FROM[self._kind] if self._device == "cpu" else 0.0
        is_dense = pairs > share * a.by_sample.shape[0] * b.by_sample.shape[0]
        sparse_branches = np.flatnonzero((pairs > 0) & ~is_dense)
        if self._kind == "unweighted":
            distances = self._unweighted(a, b, sparse_branches, is_dense)
        elif self._kind == "weighted":
            distances = self._weighted(a, b, sparse_branches, is_dense)
        else:
            distances = self._generalized(a, b, sparse_branches, is_dense)
        if a is b:
            distances = np.triu(distances, 1)
            distances += distances.T
        return distances

    def _unweighted(
        self, a: SampleBlock, b: SampleBlock, sparse_branches: Branches, is_dense: Mask
    ) -> Array:
        rows = a.by_sample[:, sparse_branches]
        rows.data *= self._lengths_G[sparse_branches][rows.indices]
        shared = (rows @ b.by_branch[sparse_branches]).toarray()
        for first, second, length in self._dense(a, b, is_dense):
            shared += ((first * length) @ second.T).cpu().numpy()
        total = a.totals[:, None] + b.totals
        # With |a| the branch length above sample a: the length above only one of two samples is
        # |a| + |b| - 2 |a and b|, above either |a| + |b| - |a and b|. The three sums round
        # differently, so for equal samples the first may be just below 0.
        return _ratio((total - 2 * shared).clip(min=0), total - shared)

    def _weighted(
        self, a: SampleBlock, b: SampleBlock, sparse_branches: Branches, is_dense: Mask
    ) -> Array:
        # Both sums are in the order of the branches, so equal samples have distance 0.
        rows, columns = (block.by_sample @ (~is_dense).astype(float) for block in (a, b))
        (common,) = _sums(a, b, sparse_branches, None, lambda p, q: (np.minimum(p, q),))
        distances: Array = (rows[:, None] + columns - 2 * common).clip(min=0)
        for first, second, _ in self._dense(a, b, is_dense):
            distances += torch.cdist(first, second, p=1).cpu().numpy()
        return _ratio(distances, a.totals[:, None] + b.totals) if self._normalized else distances

    def _generalized(
        self, a: SampleBlock, b: SampleBlock, sparse_branches: Branches, is_dense: Mask
    ) -> Array:
        alpha = self._alpha

        def correction(p: Array, q: Array) -> tuple[Array, ...]:
            total = p + q
            weight = _power(torch.from_numpy(total), alpha - 1).numpy()
            # A branch with reads of one sample adds p ** alpha to both sums. `rows` and `columns`
            # add it for all branches, so it is subtracted for branches of both samples.
            added = p**alpha + q**alpha
            return np.abs(p - q) * weight - added, total * weight - added

        weights_G = self._lengths_G * ~is_dense
        rows, columns = (
            # The values to the power of alpha; zeros stay zeros.
            sparse.csr_array((block.data**alpha, block.indices, block.indptr), block.shape)
            @ weights_G
            for block in (a.by_sample, b.by_sample)
        )
        sums = _sums(a, b, sparse_branches, self._lengths_G[sparse_branches], correction)
        difference, total = (values + rows[:, None] + columns for values in sums)
        for first, second, length in self._dense(a, b, is_dense):
            for row, p in enumerate(first):
                proportions = second + p
                weight = _power(proportions, alpha - 1)
                difference[row] += ((second - p).abs_().mul_(weight) @ length).cpu().numpy()
                total[row] += (proportions.mul_(weight) @ length).cpu().numpy()
        return _ratio(difference.clip(min=0), total)

    def _dense(
        self, a: SampleBlock, b: SampleBlock, is_dense: Mask
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield values [n, g] and [m, g] of dense branches of two blocks, and their lengths [g]."""
        branches = np.flatnonzero(is_dense)
        for start in range(0, branches.size, BRANCHES):
            chosen = branches[start : start + BRANCHES]
            values = (a.by_branch[chosen].toarray().T, b.by_branch[chosen].toarray().T)
            first, second, lengths = (
                # A copy, so that the alignment in memory is always the same.
                torch.tensor(np.ascontiguousarray(array), device=self._device)
                for array in (*values, self._lengths_G[chosen])
            )
            yield first, second, lengths


def compute_tiles(
    counts: sparse.csr_array,
    phylogeny: Phylogeny,
    metric: Metric,  # name of the UniFrac metric; "unifrac" is "unweighted"
    alpha: float = 0.5,  # exponent of generalized UniFrac, 0 to 1
    device: str = "cpu",
    max_bytes: int = GIB,  # memory for blocks that several tiles use; does not change the result
) -> Iterator[Tile]:
    """Yield the tiles on and above the diagonal of a UniFrac distance matrix, row by row."""
    samples, features = counts.shape
    ones = np.ones(phylogeny.indices.size, dtype=np.int64)
    lengths_G = np.asarray(phylogeny.lengths_G)
    above_FG = sparse.csr_array(
        (ones, phylogeny.indices, phylogeny.indptr), shape=(features, lengths_G.size)
    )
    measure = PhylogeneticMetric(metric, alpha, above_FG, lengths_G, device)
    slices = [slice(start, min(start + TILE, samples)) for start in range(0, samples, TILE)]
    blocks: dict[int, SampleBlock] = {}
    sizes: dict[int, int] = {}  # bytes of the stored blocks

    def block(number: int) -> SampleBlock:
        if number in blocks:
            return blocks[number]
        block = measure.block(counts[np.arange(slices[number].start, slices[number].stop)])
        arrays = [
            array
            for matrix in (block.by_sample, block.by_branch)
            for array in (matrix.data, matrix.indices, matrix.indptr)
        ]
        size = sum(array.nbytes for array in arrays)
        if sum(sizes.values()) + size <= max_bytes:
            blocks[number], sizes[number] = block, size
        return block

    pairs = [(row, column) for row in range(len(slices)) for column in range(row, len(slices))]
    for row, column in track(pairs, "UniFrac", len(pairs), "tiles"):
        for unused in [number for number in blocks if number < row]:
            del blocks[unused], sizes[unused]
        a = block(row)
        b = a if row == column else block(column)
        yield slices[row], slices[column], measure.distances(a, b)


def unifrac_matrix(
    table: FeatureTable,  # reads of N samples, with the features of `phylogeny` in the same order
    phylogeny: Phylogeny,
    metric: Metric,  # name of the UniFrac metric; "unifrac" is "unweighted"
    alpha: float = 0.5,  # exponent of generalized UniFrac, 0 to 1
    engine: Engine = "auto",
    max_bytes: int = GIB,
    device: str = "cpu",
) -> DistanceMatrix:
    """Compute the UniFrac distances between all samples of a table, in float64.

    `max_bytes` limits the memory for tiles, without the result. docs/experiments/cost.md has the
    times of the engines.
    """
    samples, available = len(table.sample_ids), memory_available()
    # Refused at the start, so that the process is not killed after hours.
    if (needed := 8 * samples**2) > available:
        raise DataError(
            "The distance matrix does not fit in memory",
            f"{samples} samples take {shown_size(needed)}, {shown_size(available)} are available",
            "write an .h5 file: it is computed in tiles; `aam pretrain` needs no matrix",
        )
    if engine in ENGINES:
        values = ENGINES[engine](table.counts[np.arange(samples)], phylogeny, metric, alpha)
    else:
        values = np.zeros((samples, samples))
        fill(values, compute_tiles(table.counts, phylogeny, metric, alpha, device, max_bytes))
    return DistanceMatrix(tuple(table.sample_ids), values)


def fill(matrix: Any, tiles: Iterable[Tile]) -> tuple[float, float]:
    """Write tiles into an array or HDF5 dataset; return the smallest and largest distance."""
    low, high = np.inf, -np.inf
    for rows, columns, distances in tiles:
        matrix[rows, columns] = distances
        if rows != columns:
            matrix[columns, rows] = distances.T
        pairs = distances[np.triu_indices(len(distances), 1)] if rows == columns else distances
        low = min(low, float(pairs.min(initial=np.inf)))
        high = max(high, float(pairs.max(initial=-np.inf)))
    return low, high


def pairwise(
    counts: sparse.csr_array, phylogeny: Phylogeny, metric: Metric, alpha: float = 0.5
) -> Array:
    """Compute the UniFrac distances [B, B] between the samples of a batch, float64."""
    counts_BU, above_UG, lengths_G = _spanned(counts, phylogeny)
    measure = PhylogeneticMetric(metric, alpha, above_UG, lengths_G)
    block = measure.block(counts_BU)
    return measure.distances(block, block)


def faith_pd(counts: sparse.csr_array, phylogeny: Phylogeny) -> Array:
    """Compute Faith's phylogenetic diversity [N] of samples, in the tree's unit."""
    distances = [np.zeros(0)]
    rows = np.arange(counts.shape[0])
    for start in range(0, len(rows), TILE):
        counts_BU, above_UG, lengths_G = _spanned(counts[rows[start : start + TILE]], phylogeny)
        measure = PhylogeneticMetric("faith_pd", 0.5, above_UG, lengths_G)
        distances.append(measure.block(counts_BU).totals)
    return np.concatenate(distances)


def _spanned(
    counts: sparse.csr_array, phylogeny: Phylogeny
) -> tuple[sparse.csr_array, sparse.csr_array, Array]:
    """Reduce a batch to the tree that its U ASVs span: counts, branches above ASVs, lengths."""
    # Tip branches are numbered in tree order.
    present = np.unique(counts.indices[counts.data > 0])
    features_U = present[np.argsort(phylogeny.indices[phylogeny.indptr[present]])]
    # The ancestors of each feature, one feature after the other, by one gather from the CSR rows.
    # Sorting them needs no array with the size of the complete tree.
    starts = phylogeny.indptr[features_U]
    depths = phylogeny.indptr[features_U + 1] - starts
    offsets = np.cumsum(depths) - depths
    branches = phylogeny.indices[np.arange(depths.sum()) + np.repeat(starts - offsets, depths)]
    tips = np.repeat(np.arange(features_U.size), depths)
    # In tree order the ASVs below a branch are contiguous. A stable sort leaves the tips of a
    # branch in ascending order, so the first and the last tip are the span of the branch.
    order = np.argsort(branches, kind="stable")
    branches = branches[order]
    news = np.flatnonzero(np.diff(branches, prepend=-1))
    firsts: Branches = tips[order[news]]
    ends = tips[order[np.append(news[1:], order.size) - 1]] + 1 if news.size else firsts
    # Branches with the same span form a chain in the spanned tree and are merged. Spans are encoded
    # as one number, so that `np.unique` sorts integers instead of rows.
    width = features_U.size + 1
    spans, span_of_branch = np.unique(firsts * width + ends, return_inverse=True)
    lengths_G = _bincount(span_of_branch, phylogeny.lengths_G[branches[news]], spans.size)
    firsts, sizes = spans // width, spans % width - spans // width
    # The ASVs below each branch, one branch after the other: firsts[g] to firsts[g] + sizes[g] - 1.
    below = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes - firsts, sizes)
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    ones = np.ones(below.size, dtype=np.int64)
    above_UG = sparse.csr_array((ones, below, indptr), (sizes.size, features_U.size)).T.tocsr()
    return counts[:, features_U], above_UG, lengths_G


def _sums(
    a: SampleBlock,
    b: SampleBlock,
    branches: Branches,
    lengths_g: Array | None,
    function: Callable[[Array, Array], tuple[Array, ...]],
) -> list[Array]:
    """Sum functions of the values of two samples over their common branches, for all pairs."""
    rows, columns = a.by_sample[:, branches], b.by_branch[branches]
    samples, samples_b = rows.shape[0], columns.shape[1]
    tiles: list[list[Array]] = []
    for start in range(0, samples, ROWS):
        indptr = rows.indptr[start : start + ROWS + 1]
        entries = slice(indptr[0], indptr[-1])
        # For each entry (sample, branch) of a, the samples of b with reads below that branch.
        chosen = columns[rows.indices[entries]]
        repeats = np.diff(chosen.indptr)
        # `bincount` sums by pair (row * m + column) in the order of the entries, so that a sum has
        # the same bits in any process.
        first = np.repeat(np.arange(len(indptr) - 1) * samples_b, np.diff(indptr))
        pairs = np.repeat(first, repeats) + chosen.indices
        values = function(np.repeat(rows.data[entries], repeats), chosen.data)
        if lengths_g is not None:
            weights = np.repeat(lengths_g[rows.indices[entries]], repeats)
            values = tuple(value * weights for value in values)
        size = (len(indptr) - 1) * samples_b
        tiles.append([_bincount(pairs, value, size).reshape(-1, samples_b) for value in values])
    return [np.concatenate(rows_of_sum) for rows_of_sum in zip(*tiles, strict=True)]


def _bincount(indices: NDArray[np.int64], weights: Array, size: int) -> Array:
    # Without entries, numpy's function returns integers.
    return np.bincount(indices, weights, size).astype(np.float64, copy=False)


def _power(values: Tensor, exponent: float) -> Tensor:
    """Raise values >= 0 to an exponent of -1 to 1; a power of zero is finite.

    For a branch without reads of two samples the weight 0 ** (alpha - 1) would be infinite if
    alpha < 1, and its product with a difference of 0 would be NaN.
    """
    # For an exponent of -0.5, the default, PyTorch computes `rsqrt`, which is 3 times as fast.
    return values.clamp(min=1e-30) ** exponent


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Divide elementwise; the ratio is 0 if the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


_METHODS: dict[str, str] = {
    "unifrac": "unweighted_fp64",
    "unweighted": "unweighted_fp64",
    "weighted": "weighted_unnormalized_fp64",
    "weighted_normalized": "weighted_normalized_fp64",
    "generalized": "generalized_fp64",
}
"""Metric -> value of `ssu -m` and name of the function in the package."""

TABLE, TREE, MATRIX = "table.biom", "tree.nwk", "matrix.h5"


def run_ssu(
    counts: sparse.csr_array, phylogeny: Phylogeny, metric: Metric, alpha: float
) -> NDArray[np.float64]:
    """Compute the UniFrac distances [N, N] of samples, `counts` [N, F], by the program `ssu`."""
    program = shutil.which("ssu")
    if program is None:
        raise Unavailable(
            "The program 'ssu' is not installed",
            "--engine ssu",
            "install unifrac-binaries (conda, bioconda) or unifrac-tools (Debian), "
            "or choose --engine torch",
        )
    with _inputs(counts, phylogeny) as folder:
        command = [program, "-i", TABLE, "-t", TREE, "-o", MATRIX]
        command += ["-m", _METHODS[metric], "-a", str(alpha), "-r", "hdf5_fp64", "--pcoa", "0"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if run.returncode or not (folder / MATRIX).exists():
            output = (run.stderr or run.stdout).strip().splitlines() or [""]
            raise Unavailable(
                "The program 'ssu' failed",
                f"exit status {run.returncode}, its last line is '{output[-1]}'",
                "choose --engine torch",
            )
        with h5py.File(folder / MATRIX, "r") as file:
            return _aligned(file["order"].asstr()[()], file["matrix"][()], counts)


def run_package(
    counts: sparse.csr_array, phylogeny: Phylogeny, metric: Metric, alpha: float
) -> NDArray[np.float64]:
    """Compute the UniFrac distances [N, N] of samples, `counts` [N, F], by package `unifrac`."""
    try:
        import unifrac
    except (ImportError, ValueError) as error:  # ValueError: built for another numpy
        raise Unavailable(
            "The Python package 'unifrac' cannot be imported",
            f"--engine unifrac, {error}",
            "install it with conda (`conda install bioconda::unifrac`; pip cannot build it), or "
            "choose --engine torch or ssu",
        ) from error
    with _inputs(counts, phylogeny) as folder:
        more = {"alpha": alpha} if metric == "generalized" else {}
        compute = getattr(unifrac, _METHODS[metric])
        try:
            matrix = compute(str(folder / TABLE), str(folder / TREE), **more)
        except (ValueError, RuntimeError, OSError) as error:
            evidence = f"{type(error).__name__}: {error}"
            remedy = "choose --engine torch"
            raise Unavailable("The package 'unifrac' failed", evidence, remedy) from error
        return _aligned(matrix.ids, matrix.data, counts)


ENGINES: dict[str, Callable[[sparse.csr_array, Phylogeny, Metric, float], NDArray[np.float64]]] = {
    "ssu": run_ssu,
    "unifrac": run_package,
}
"""Engines of `aam unifrac` besides PyTorch."""


@contextmanager
def _inputs(counts: sparse.csr_array, phylogeny: Phylogeny) -> Iterator[Path]:
    """Write the sheared tree and the table into a temporary folder, with generated names.

    `ssu` refuses quotes in names. Both engines ignore the length of the root node, so the stem is
    written as the only child of a root without length.
    """
    with tempfile.TemporaryDirectory(prefix="aam-unifrac-") as name:
        import biom  # takes 0.25 CPU-seconds; training does not need it

        samples, features = counts.shape
        ids = [f"f{column}" for column in range(features)], [f"s{row}" for row in range(samples)]
        with h5py.File(Path(name) / TABLE, "w") as file:
            biom.Table(sparse.csr_matrix(counts.T, dtype=float), *ids).to_hdf5(file, "aam")
        (Path(name) / TREE).write_text(newick(phylogeny))
        yield Path(name)


def newick(phylogeny: Phylogeny) -> str:
    """Write a phylogeny as Newick; the tips are named f0, f1, ... by column.

    In postorder a branch is the last child of its parent if the parent comes next. The stem, if
    there is one, is the only child of the root.
    """
    branches, indptr = phylogeny.indices, phylogeny.indptr
    total = phylogeny.lengths_G.size
    parents = np.full(total, total)
    has_parent = np.ones(branches.size, dtype=bool)
    has_parent[indptr[1:] - 1] = False  # the last branch above a tip has no parent
    parents[branches[has_parent]] = branches[np.flatnonzero(has_parent) + 1]
    # The bracket of each branch opens before its first tip.
    features = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    tips = branches[indptr[:-1]]
    first_tips = np.full(total, total)
    np.minimum.at(first_tips, branches, tips[features])
    opened = np.bincount(first_tips, minlength=total) - 1
    names = dict(zip(tips.tolist(), range(tips.size), strict=True))
    pieces = ["("]
    for branch, length in enumerate(phylogeny.lengths_G.tolist()):
        column = names.get(branch)
        pieces.append(")" if column is None else f"{'(' * opened[branch]}f{column}")
        pieces.append(f":{length!r}" if parents[branch] == branch + 1 else f":{length!r},")
    return "".join(pieces) + ");\n"


def _aligned(
    names: Sequence[str], matrix: NDArray[Any], counts: sparse.csr_array
) -> NDArray[np.float64]:
    """Return distances in the order of the samples; the names are s0, s1, ... in any order."""
    order = np.array([int(name[1:]) for name in names])
    values = np.zeros((counts.shape[0],) * 2, dtype=np.float64)
    values[np.ix_(order, order)] = matrix
    # Both engines return NaN for two samples without reads.
    empty = np.flatnonzero(np.diff(counts.indptr) == 0)
    values[np.ix_(empty, empty)] = 0
    return values


def run_unifrac(options: Unifrac) -> None:
    """Run `aam unifrac`: write the distance matrix, or a TSV of sample-id and faith_pd."""
    output = options.output
    if options.unifrac_metric != "faith_pd":
        checked_suffix(output)
    elif output.suffix != ".tsv":
        raise UsageError("Faith PD is written as TSV", f"'{output.name}'", "end the name with .tsv")
    refuse_existing(output, options.overwrite)
    if output.suffix == ".npy":
        refuse_existing(output.with_suffix(".txt"), options.overwrite)
    if options.unifrac_metric == "faith_pd":
        table, phylogeny = read_with_tree(options)
        columns = {ID_HEADER: list(table.sample_ids), "faith_pd": faith_pd(table.counts, phylogeny)}
        write_table(output, pd.DataFrame(columns))
        info(f"Faith PD of {len(table.sample_ids)} samples is in '{output}'.")
        return
    # HDF5 is written tile by tile, so that the matrix need not fit in memory; other engines compute
    # the whole matrix.
    if output.suffix == ".h5" and options.engine not in ENGINES:
        device, size = _device_and_bytes(options)
        table, phylogeny = read_with_tree(options)
        samples, metric = len(table.sample_ids), options.unifrac_metric
        tiles = compute_tiles(table.counts, phylogeny, metric, options.unifrac_alpha, device, size)
        with atomic_write(output) as temporary, hdf5_matrix(temporary, table.sample_ids) as matrix:
            low, high = fill(matrix, tiles)
    else:
        matrix_NN = distances(options)
        matrix_NN.write(output)
        samples = len(matrix_NN.ids)
        upper = matrix_NN.values[np.triu_indices(samples, 1)]
        low, high = upper.min(initial=np.inf), upper.max(initial=-np.inf)
    spread = f", {low:.3f} to {high:.3f}" if low <= high else ""
    info(f"Distances of {samples} samples{spread}, are in '{output}'.")


def distances(options: Unifrac) -> DistanceMatrix:
    """Compute the distances between all samples without writing them (`aam.unifrac`)."""
    device, size = _device_and_bytes(options)
    table, phylogeny = read_with_tree(options)
    metric, alpha = options.unifrac_metric, options.unifrac_alpha
    return unifrac_matrix(table, phylogeny, metric, alpha, options.engine, size, device)


def _device_and_bytes(options: Unifrac) -> tuple[str, int]:
    """Return the device, which is printed if PyTorch computes, and the bytes of stored blocks."""
    device, limit = choose_device(DeviceOptions(device=options.device)), options.input.max_memory_gb
    if options.engine not in ENGINES:
        print_device(device)
    return str(device), GIB if isinstance(limit, str) else int(limit * GIB)


def read_with_tree(options: Unifrac) -> tuple[FeatureTable, Phylogeny]:
    """Read table and tree; leave out samples whose ASVs are all missing from the tree."""
    path = options.input.table
    if is_store(path):
        check_store_options(options.input, options.tree)
        table, _, phylogeny = Store(path).open(checksums=True)
        if phylogeny is None:
            raise UsageError("The store has no tree", f"'{path}'", "make it again with --tree")
        return table, phylogeny
    if options.tree is None:
        raise UsageError("UniFrac needs a tree", "--tree was not given", "give one")
    return with_phylogeny(load_table(options.input), options.tree, options, options.input)
