"""Phylogeny of a table's ASVs for UniFrac: branch lengths and the branches above each ASV.

The complete tree is parsed (`aam.data.formats.newick`) and sheared to the table's features; unary
chains are collapsed into single branches. The path above the features' common ancestor, including a
length on the root node, becomes one stem branch above every feature: scikit-bio counts it, and so
do the denominators of weighted-normalized and generalized UniFrac.

Sheared trees of many tips are cached in the user's folder, so a tree of millions of tips is parsed
once.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.console import info
from aam.contract.errors import AamError, DataError, first_few
from aam.contract.files import atomic_write, require
from aam.data.formats import artifact, newick
from aam.data.formats.text import check_text, id_remedy
from aam.data.sequences import as_dna
from aam.memory import check_memory, memory_budget

CACHED_FROM_TIPS = 20_000
"""Tips from which a tree is cached; smaller trees are parsed as fast as the cache is read."""

_NODE_BYTES = 230  # bytes of memory per node while parsing, measured on trees of 400,000 tips

_ANCESTOR_BYTES = 24
_LARGEST = 1e30
_LAYOUT = b"aam phylogeny 2"  # in the cache key; change it when the arrays change


@dataclass(frozen=True)
class Phylogeny:
    """Sheared tree: G branches above F features.

    Branches are numbered in postorder (descendants first), and the features below a branch are
    contiguous when features are sorted by their tip branch, `indices[indptr[:-1]]`.
    """

    # float64 [G], branch lengths in the tree's unit, all >= 0. A stem with a length is the last
    # branch, an ancestor of every feature.
    lengths_G: NDArray[np.float64]
    indptr: NDArray[np.int64]  # [F + 1], see `indices`
    # int32 [indptr[F]], branches from feature f to the root: `indices[indptr[f] : indptr[f + 1]]`,
    # the tip's branch first
    indices: NDArray[np.int32]

    def take(self, columns: NDArray[np.int64]) -> Phylogeny:
        """Return the phylogeny of the features at `columns`, with all branches."""
        shape = (self.indptr.size - 1, self.lengths_G.size)
        above = csr_array((self.indices, self.indices, self.indptr), shape=shape)[columns]
        return Phylogeny(self.lengths_G, above.indptr.astype(np.int64), above.data)


@dataclass(frozen=True)
class TrimmedTips:
    """Names of untrimmed tips for features that are trimmed sequences."""

    length: int  # nucleotides of the features
    feature_of: Mapping[str, str]  # hash or name of an untrimmed tip -> feature

    def feature(self, tip: str) -> str:
        """Return the trimmed feature of a tip."""
        return self.feature_of.get(tip) or as_dna(tip)[: self.length]


def read_phylogeny(
    path: Path,
    feature_ids: Sequence[str],
    drop_missing: bool = False,
    root_at_midpoint: bool = False,
    max_bytes: int | None = None,
    trimmed: TrimmedTips | None = None,
) -> tuple[Phylogeny, NDArray[np.int64]]:
    """Read a tree and shear it to a table's features; also return their columns, ascending.

    If several tips are one trimmed feature, the first tip represents it.
    """
    budget = max_bytes or memory_budget()
    semantic = "Phylogeny[" if root_at_midpoint else "Phylogeny[Rooted]"
    text = artifact.read_payload(require(path, "tree"), "tree.nwk", semantic, budget // 2)
    check_text(text[:4], path, "tree")  # names of tips need not be UTF-8
    nodes = text.count(b",") + text.count(b")") + 1
    _check_size(2 * len(text) + _NODE_BYTES * nodes, budget, path)
    read, cache = None, None
    # A tree of n tips has at least n - 1 commas.
    if text.count(b",") >= CACHED_FROM_TIPS:
        cache = _cached(text, feature_ids, drop_missing, root_at_midpoint, trimmed)
        read = _load(cache)
    if read is None:
        tree = newick.parse(text, f"'{path}'")
        if root_at_midpoint:
            tree = _rooted_at_midpoint(tree, path)
        elif (branches := np.count_nonzero(tree.parents == tree.parents.size - 1)) > 2:
            raise DataError(
                "The tree is not rooted",
                f"the root of '{path}' has {branches} branches, a rooted tree has 2",
                "root it (`qiime phylogeny midpoint-root`), or add --root-at-midpoint",
            )
        columns, tips = _placed(tree, feature_ids, drop_missing, trimmed, path)
        read = _shear(tree, tree.tips[tips], path, budget), columns
        if cache is not None:
            # A cache that cannot be written, as on many clusters, costs time, not the result.
            with suppress(OSError, AamError), atomic_write(cache) as temporary:
                np.savez(temporary, **vars(read[0]), columns=columns)
    if len(read[1]) < len(feature_ids):
        in_tree = set(read[1].tolist())
        dropped = first_few(name for k, name in enumerate(feature_ids) if k not in in_tree)
        info(f"Features that are not in the tree are left out: {dropped} of {len(feature_ids)}.")
    return read


def _cached(
    text: bytes,
    feature_ids: Sequence[str],
    drop_missing: bool,
    root_at_midpoint: bool,
    trimmed: TrimmedTips | None,
) -> Path:
    """Return the cache file of a sheared tree; its name is a hash of everything it depends on."""
    digest = hashlib.sha256(_LAYOUT + (b" dropping" if drop_missing else b""))
    digest.update(b" midpoint" if root_at_midpoint else b"")
    digest.update(hashlib.sha256(text).digest())
    # The order matters: the cached arrays follow the table's columns.
    digest.update("\0".join(feature_ids).encode())
    if trimmed is not None:
        digest.update(json.dumps([trimmed.length, *trimmed.feature_of.items()]).encode())
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return user_cache / "aam" / f"phylogeny-{digest.hexdigest()}.npz"


def _placed(
    tree: newick.NewickTree,
    feature_ids: Sequence[str],
    drop_missing: bool,
    trimmed: TrimmedTips | None,
    path: Path,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match features to tips; return the columns that have a tip, ascending, and the tips."""
    column_of = {name: column for column, name in enumerate(feature_ids)}
    names = tree.names if trimmed is None else map(trimmed.feature, tree.names)
    get = column_of.get
    column_T = np.fromiter((get(name, -1) for name in names), np.int64, len(tree.names))
    matched = np.flatnonzero(column_T >= 0)
    if trimmed is not None:
        matched = matched[np.sort(np.unique(column_T[matched], return_index=True)[1])]
    counts = np.bincount(column_T[matched], minlength=len(feature_ids))
    if (twice := np.flatnonzero(counts > 1)).size:
        raise DataError(
            "Features are in the tree more than once",
            f"{first_few(feature_ids[column] for column in twice.tolist())} in '{path}'",
            "give every tip a unique name",
        )
    if matched.size == 0:
        raise DataError(
            "None of the table's features is in the tree",
            f"the table has {first_few(feature_ids)}, '{path}' has {first_few(tree.names)}",
            id_remedy(feature_ids, tree.names, "use the tree that was made for this table"),
        )
    missing = [feature_ids[column] for column in np.flatnonzero(counts == 0).tolist()]
    if missing and not drop_missing:
        remedy = "use the tree made for this table, or leave them out with --drop-missing-asvs"
        raise DataError(
            "Features of the table are not in the tree",
            f"{first_few(missing)} of {len(feature_ids)} are absent from '{path}'",
            id_remedy(feature_ids, tree.names, remedy),
        )
    order = np.argsort(column_T[matched])
    return column_T[matched][order], matched[order]


def _check_size(size: int, budget: int, path: Path) -> None:
    remedy = "shear it to the ASVs of the table, or raise --max-memory-gb"
    check_memory("tree", f"'{path}'", size, budget, remedy)


def _rooted_at_midpoint(tree: newick.NewickTree, path: Path) -> newick.NewickTree:
    # Imported here: scikit-bio takes a CPU-second to import.
    from skbio import TreeNode
    from skbio.tree import TreeError

    # Tips get numbers as names: scikit-bio's writer changes blanks and quotes in labels.
    number_of = dict(zip(tree.tips.tolist(), range(tree.tips.size), strict=True))
    lengths = [None if np.isnan(length) else length for length in tree.lengths.tolist()]
    nodes = [
        TreeNode(f"t{number_of[node]}" if node in number_of else None, length)
        for node, length in enumerate(lengths)
    ]
    rooted = io.StringIO()
    try:
        for node, parent in enumerate(tree.parents.tolist()[:-1]):
            nodes[parent].append(nodes[node])
        nodes[-1].root_at_midpoint().write(rooted)
    except (TreeError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise DataError(
            "The tree cannot be rooted at its midpoint",
            f"'{path}', {error}",
            "give a rooted tree with a length on every branch",
        ) from error
    midpoint = newick.parse(rooted.getvalue().encode(), f"'{path}', rooted at its midpoint")
    return replace(midpoint, names=[tree.names[int(name[1:])] for name in midpoint.names])


def _shear(tree: newick.NewickTree, tips: NDArray[np.int64], path: Path, budget: int) -> Phylogeny:
    """Keep the branches above `tips` [F], with chains collapsed; feature f is `tips[f]`."""
    is_kept_tip = np.zeros(tree.parents.size, dtype=np.int64)
    is_kept_tip[tips] = 1
    # In postorder a subtree is a run of nodes, so prefix sums count its kept tips.
    tips_until = np.concatenate(([0], np.cumsum(is_kept_tip)))
    below = tips_until[1:] - tips_until[tree.starts]
    nodes = np.flatnonzero(below)
    lengths = tree.lengths[nodes]
    if np.isnan(lengths[-1]):
        lengths[-1] = 0.0  # a length on the root is optional
    if nodes.size > 1 and np.isnan(tree.lengths[nodes[:-1]]).all():
        raise DataError(
            "The tree has no branch lengths",
            f"none of {tree.parents.size} branches of '{path}'",
            "UniFrac needs a tree with lengths; export it with them",
        )
    export, zero = "export the tree with a length on every branch", "set negative lengths to zero"
    for fault, wrong, remedy in (
        ("without a length", np.isnan(lengths), export),
        ("with a negative length", lengths < 0, f"{zero}, as from neighbour joining"),
    ):
        if wrong.any():
            # The first node of a subtree, in postorder, is a tip.
            tips_below = np.searchsorted(tree.tips, tree.starts[nodes[wrong]]).tolist()
            names = first_few(tree.names[tip] for tip in tips_below)
            evidence = f"above the tips {names} of '{path}'"
            raise DataError(f"The tree has branches {fault}", evidence, remedy)
    with np.errstate(over="ignore"):
        total = float(lengths.sum())
    if total == 0 and tips.size > 1:
        raise DataError(
            "The tree has no branch lengths",
            f"all lengths above the {tips.size} ASVs are 0 in '{path}'",
            "UniFrac needs a tree with lengths, else all distances are 0; export it with them",
        )
    # Training computes UniFrac in float32, whose largest number is 3e38.
    if total > _LARGEST or 0 < total < 1 / _LARGEST:
        raise DataError(
            f"The branch lengths of the tree are too {'large' if total > 1 else 'small'}",
            f"the branches above the ASVs add up to {total:g} in '{path}'",
            f"give lengths that add up to {1 / _LARGEST:g} to {_LARGEST:g}, such as substitutions "
            "per site",
        )

    # A node with as many kept tips as its parent is the only kept child. In the postorder of the
    # kept nodes the parent comes next, so a chain is a run of nodes.
    chained = (tree.parents[nodes[:-1]] == nodes[1:]) & (below[nodes[:-1]] == below[nodes[1:]])
    bottoms = np.flatnonzero(np.concatenate(([True], ~chained)))
    tops = np.concatenate((bottoms[1:], [nodes.size])) - 1
    lengths_G = np.add.reduceat(lengths, bottoms)
    # The last entry is the parent of the root.
    branch_of = np.full(tree.parents.size + 1, -1, dtype=np.int64)
    branch_of[nodes] = np.repeat(np.arange(bottoms.size), tops - bottoms + 1)
    parents = branch_of[tree.parents[nodes[tops]]]
    if lengths_G[-1] == 0.0 and lengths_G.size > 1:
        # No stem. (The only branch of a single feature stays.)
        lengths_G, parents = lengths_G[:-1], parents[:-1]
        parents[parents == lengths_G.size] = -1
    # `_ancestors` lists every pair of a feature and a branch above it twice.
    _check_size(_ANCESTOR_BYTES * int(below[nodes[bottoms]].sum()), budget, path)
    indptr, indices = _ancestors(parents, branch_of[tips])
    return Phylogeny(lengths_G, indptr, indices)


def _ancestors(
    parents: NDArray[np.int64], tips: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the branches from each of `tips` [F] to the root as CSR rows: indptr, indices."""
    counts = np.zeros(tips.size, dtype=np.int64)
    features: NDArray[np.int64] = np.arange(tips.size, dtype=np.int64)
    branches = tips
    steps = []  # features and their branches, one step closer to the root each time
    # All features climb together: the loop runs once per level of the tree, not once per feature.
    while features.size:
        steps.append((features, branches))
        counts[features] += 1
        above = parents[branches]
        features, branches = features[above >= 0], above[above >= 0]
    indptr = np.concatenate(([0], np.cumsum(counts)))
    indices = np.empty(indptr[-1], dtype=np.int32)
    for distance, (features, branches) in enumerate(steps):
        indices[indptr[features] + distance] = branches
    return indptr, indices


def _load(path: Path) -> tuple[Phylogeny, NDArray[np.int64]] | None:
    """Read a phylogeny and its columns from the cache; None if it is absent or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            phylogeny = Phylogeny(arrays["lengths_G"], arrays["indptr"], arrays["indices"])
            return phylogeny, arrays["columns"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
