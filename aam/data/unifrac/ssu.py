"""UniFrac by `ssu`, the program of unifrac-binaries, if it is installed.

Its input is the sheared tree and the table, with generated names (ssu refuses quotes in names), in
a temporary folder. Two limitations of ssu have a workaround here: it ignores a length on the root
node, so the stem is written as the only child of a root without length; and it returns NaN for two
samples without reads, which are at distance 0.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import biom
import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.contract.errors import Unavailable
from aam.contract.options.study import Metric
from aam.data.unifrac.phylogeny import Phylogeny

_METHODS: dict[str, str] = {
    "unifrac": "unweighted_fp64",
    "unweighted": "unweighted_fp64",
    "weighted": "weighted_unnormalized_fp64",
    "weighted_normalized": "weighted_normalized_fp64",
    "generalized": "generalized_fp64",
}


def run_ssu(
    counts: sparse.csr_array, phylogeny: Phylogeny, metric: Metric, alpha: float
) -> NDArray[np.float64]:
    """Compute all distances [N, N] between the samples of `counts` [N, F].

    Raises:
        Unavailable: the program is not installed, or fails.
    """
    program = shutil.which("ssu")
    if program is None:
        raise Unavailable(
            "The program 'ssu' is not installed",
            "--engine ssu",
            "install unifrac-binaries (conda, bioconda) or unifrac-tools (Debian), "
            "or choose --engine torch",
        )
    with tempfile.TemporaryDirectory(prefix="aam-ssu-") as name:
        folder = Path(name)
        _write_table(folder / "table.biom", counts)
        (folder / "tree.nwk").write_text(newick(phylogeny))
        command = [program, "-i", "table.biom", "-t", "tree.nwk", "-o", "matrix.h5"]
        command += ["-m", _METHODS[metric], "-a", str(alpha), "-r", "hdf5_fp64", "--pcoa", "0"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if run.returncode or not (folder / "matrix.h5").exists():
            output = (run.stderr or run.stdout).strip().splitlines() or [""]
            raise Unavailable(
                "The program 'ssu' failed",
                f"exit status {run.returncode}, its last line is '{output[-1]}'",
                "choose --engine torch",
            )
        return _read_matrix(folder / "matrix.h5", counts)


def newick(phylogeny: Phylogeny) -> str:
    """Write a phylogeny as Newick, with the tips named f0, f1, ... by column.

    In a postorder a branch is its parent's last child if the parent comes next. The stem, where
    there is one, is the only child of the root.
    """
    branches, indptr = phylogeny.indices, phylogeny.indptr
    total = phylogeny.lengths_K.size
    parents = np.full(total, total)
    inside = np.ones(branches.size, dtype=bool)
    inside[indptr[1:] - 1] = False  # The last branch of each list has none above it.
    parents[branches[inside]] = branches[np.flatnonzero(inside) + 1]
    # The bracket of each branch opens before its first tip.
    features = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    tips = branches[indptr[:-1]]
    first_tips = np.full(total, total)
    np.minimum.at(first_tips, branches, tips[features])
    opened = np.bincount(first_tips, minlength=total) - 1
    names = dict(zip(tips.tolist(), range(tips.size), strict=True))
    pieces = ["("]
    for branch, length in enumerate(phylogeny.lengths_K.tolist()):
        column = names.get(branch)
        pieces.append(")" if column is None else f"{'(' * opened[branch]}f{column}")
        pieces.append(f":{length!r}" if parents[branch] == branch + 1 else f":{length!r},")
    return "".join(pieces) + ");\n"


def _write_table(path: Path, counts: sparse.csr_array) -> None:
    samples, features = counts.shape
    names = [f"f{column}" for column in range(features)], [f"s{row}" for row in range(samples)]
    with h5py.File(path, "w") as file:
        biom.Table(sparse.csr_matrix(counts.T, dtype=float), *names).to_hdf5(file, "aam")


def _read_matrix(path: Path, counts: sparse.csr_array) -> NDArray[np.float64]:
    with h5py.File(path, "r") as file:
        # "s10" -> 10: the rows may come in any order.
        order = np.array([int(name[1:]) for name in file["order"][()]])
        found = file["matrix"][()]
    values = np.zeros((counts.shape[0],) * 2, dtype=np.float64)
    values[np.ix_(order, order)] = found
    empty = np.flatnonzero(np.diff(counts.indptr) == 0)
    values[np.ix_(empty, empty)] = 0
    return values
