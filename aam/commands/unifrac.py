"""`aam unifrac`: the UniFrac distance matrix of a table, or the Faith PD of its samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.console import say
from aam.contract.errors import DataError, UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.compare import Unifrac
from aam.contract.options.device import DeviceOptions
from aam.data.distances import DistanceMatrix, checked_suffix, write_distances
from aam.data.metadata import ID_HEADER
from aam.data.store.files import is_store
from aam.data.store.reader import open_store
from aam.data.study import check_store_options, load_table, with_phylogeny
from aam.data.table import FeatureTable
from aam.data.unifrac.matrix import faith_pd_of_all, unifrac_matrix
from aam.data.unifrac.phylogeny import Phylogeny
from aam.memory import memory_available, shown_size
from aam.numerics.device import choose_device, print_device


def run(options: Unifrac) -> None:
    """Compute and write the matrix, or a TSV of sample-id and faith_pd.

    Raises:
        UsageError: options that contradict each other.
        MissingInput, DataError: see the readers.
        Unavailable: the requested GPU or ssu does not exist.
        CannotCreate: the output exists, or its folder cannot be written to.
    """
    _check(options)
    if options.unifrac_metric == "faith_pd":
        table, phylogeny = _read(options)
        _write_diversity(options.output, table, faith_pd_of_all(table, phylogeny))
        say(f"Faith PD of {len(table.sample_ids)} samples is in '{options.output}'.")
        return
    matrix = distances(options)
    write_distances(options.output, matrix)
    upper = matrix.values[np.triu_indices(len(matrix.ids), 1)]
    spread = f", {upper.min():.3f} to {upper.max():.3f}" if upper.size else ""
    say(f"Distances of {len(matrix.ids)} samples{spread}, are in '{options.output}'.")


def distances(options: Unifrac) -> DistanceMatrix:
    """Read table and tree, and compute the distances between all samples, in float64.

    Raises:
        UsageError, MissingInput, DataError, Unavailable: see `run`.
    """
    device = choose_device(DeviceOptions(device=options.device))
    if options.engine != "ssu":
        print_device(device)
    table, phylogeny = _read(options)
    _check_size(len(table.sample_ids), options.unifrac_metric)
    return unifrac_matrix(
        table,
        phylogeny,
        options.unifrac_metric,
        options.unifrac_alpha,
        options.engine,
        1.0 if isinstance(tiles := options.input.max_memory_gb, str) else tiles,
        str(device),
    )


def _check_size(samples: int, metric: str) -> None:
    """Reject a matrix that does not fit in memory.

    Raises:
        DataError: the matrix of float64, of which generalized UniFrac keeps two, is larger.
    """
    size = 8 * samples**2 * (2 if metric == "generalized" else 1)
    if size > (available := memory_available()):
        raise DataError(
            "The distance matrix does not fit in memory",
            f"{samples} samples take {shown_size(size)}, {shown_size(available)} are available",
            "`aam pretrain` needs no matrix; for one, use fewer samples or more memory",
        )


def _check(options: Unifrac) -> None:
    """Check the options before anything is read."""
    if options.unifrac_metric == "faith_pd":
        if options.output.suffix != ".tsv":
            raise UsageError("Faith PD is a TSV", f"'{options.output.name}'", "end it with .tsv")
        if options.engine == "ssu":
            raise UsageError(
                "ssu does not compute Faith PD",
                "--engine ssu",
                "omit --engine; torch computes it",
            )
    else:
        checked_suffix(options.output)
    refuse_existing(options.output, options.overwrite)
    if options.output.suffix == ".npy":
        refuse_existing(options.output.with_suffix(".txt"), options.overwrite)


def _read(options: Unifrac) -> tuple[FeatureTable, Phylogeny]:
    """Read table and tree, and leave out samples whose ASVs are all missing from the tree.

    Raises:
        UsageError: no tree.
        MissingInput, DataError: see the readers.
    """
    path = options.input.table
    if is_store(path):
        check_store_options(options.input, options.tree)
        store = open_store(path)
        if store.phylogeny is None:
            raise UsageError("The store has no tree", f"'{path}'", "make it again with --tree")
        return store.in_memory(), store.phylogeny
    if options.tree is None:
        raise UsageError("UniFrac needs a tree", "--tree was not given", "give one")
    return with_phylogeny(load_table(options.input), options.tree, options, options.input)


def _write_diversity(path: Path, table: FeatureTable, diversity: NDArray[np.float64]) -> None:
    rows = zip(table.sample_ids, diversity.tolist(), strict=True)
    with atomic_write(path) as temporary:
        lines = [f"{ID_HEADER}\tfaith_pd\n", *(f"{name}\t{value!r}\n" for name, value in rows)]
        temporary.write_text("".join(lines), "utf-8")
