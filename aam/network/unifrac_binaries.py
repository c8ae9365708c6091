"""UniFrac by unifrac-binaries: the program `ssu` or the Python package `unifrac`, if installed.

Their input is the sheared tree and the table in a temporary folder, with generated names (ssu
refuses quotes in names). This module works around two limitations of both. They ignore the length
of the root node, so the stem is written as the only child of a root without length. They return NaN
for two samples without reads, so that distance is set to 0.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.contract.errors import Unavailable
from aam.contract.options.groups import Metric
from aam.data.phylogeny import Phylogeny

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
    """Write table and tree into a temporary folder."""
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
    empty = np.flatnonzero(np.diff(counts.indptr) == 0)
    values[np.ix_(empty, empty)] = 0
    return values
