"""`aam unifrac`: the UniFrac distance matrix of a table, or the Faith PD of its samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.console import info
from aam.contract.errors import DataError, UsageError
from aam.contract.files import atomic_write, refuse_existing, write_text
from aam.contract.options.commands.compare import Unifrac
from aam.contract.options.device import DeviceOptions
from aam.contract.shards import Shard, file_of
from aam.data.distances import DistanceMatrix, checked_suffix, write_distances
from aam.data.metadata import ID_HEADER
from aam.data.shards import facts_of, finished
from aam.data.store.files import is_store
from aam.data.store.reader import open_store
from aam.data.study import check_store_options, load_table, with_phylogeny
from aam.data.table import FeatureTable
from aam.data.unifrac.matrix import faith_pd_of_all, unifrac_matrix
from aam.data.unifrac.phylogeny import Phylogeny
from aam.data.unifrac.tile_files import write_matrix, write_tiles
from aam.data.unifrac.tiles import TILE, Tiles
from aam.data.unifrac.unifrac_binaries import ENGINES
from aam.memory import GIB, memory_available, shown_size
from aam.numerics.device import choose_device, print_device


def run(options: Unifrac) -> dict[str, object] | None:
    """Compute and write the matrix, one of its shards, or a TSV of sample-id and faith_pd.

    Args:
        options: table, tree, metric, engine and output of `aam unifrac`.

    Returns:
        Facts of a shard for the run record.

    Raises:
        UsageError: options that contradict each other.
        MissingInput, DataError: see the readers.
        Unavailable: the requested GPU or engine does not exist.
        CannotCreate: the output exists, or its folder cannot be written to.
    """
    _check(options)
    if options.shard is not None:
        return finished("unifrac", options) or _write_shard(options)
    if options.unifrac_metric == "faith_pd":
        table, phylogeny = _read(options)
        _write_diversity(options.output, table, faith_pd_of_all(table, phylogeny))
        info(f"Faith PD of {len(table.sample_ids)} samples is in '{options.output}'.")
        return None
    # HDF5 is written tile by tile, so that the matrix need not fit in memory; the binaries of other
    # engines compute it whole.
    if options.output.suffix == ".h5" and options.engine not in ENGINES:
        table, tiles = _tiles(options)
        samples = len(table.sample_ids)
        with atomic_write(options.output) as temporary:
            low, high = write_matrix(temporary, table.sample_ids, tiles)
    else:
        matrix = distances(options)
        write_distances(options.output, matrix)
        samples = len(matrix.ids)
        upper = matrix.values[np.triu_indices(samples, 1)]
        low, high = upper.min(initial=np.inf), upper.max(initial=-np.inf)
    spread = f", {low:.3f} to {high:.3f}" if low <= high else ""
    info(f"Distances of {samples} samples{spread}, are in '{options.output}'.")
    return None


def _write_shard(options: Unifrac) -> dict[str, object]:
    """Compute and write a shard of the matrix; return its facts for the run record.

    Raises:
        UsageError: there are more shards than tiles.
        MissingInput, DataError, Unavailable, CannotCreate: see `run`.
    """
    assert options.shard is not None
    shard, file = Shard.parse(options.shard), file_of(options)
    assert file is not None
    table, tiles = _tiles(options)
    pairs, samples = tiles.pairs, len(table.sample_ids)
    if shard.count > len(pairs):
        raise UsageError(
            "More shards than tiles",
            f"--shard {shard} of {samples} samples, {len(pairs)} tiles of {TILE} x {TILE}",
            f"use {len(pairs)} shards or fewer",
        )
    part = shard.part(len(pairs))
    with atomic_write(file) as temporary:
        write_tiles(temporary, table.sample_ids, tiles, pairs[part.start : part.stop])
    info(f"Shard {shard}: {len(part)} of {len(pairs)} tiles of {samples} samples, in '{file}'.")
    return facts_of(file, samples)


def distances(options: Unifrac) -> DistanceMatrix:
    """Read table and tree, and compute the distances between all samples, in float64.

    Args:
        options: table, tree, metric, engine and device of `aam unifrac`; nothing is written.

    Raises:
        UsageError, MissingInput, DataError, Unavailable: see `run`.
    """
    device = _device(options)
    table, phylogeny = _read(options)
    # Refused here rather than by a process that is killed for memory after hours.
    _check_size(len(table.sample_ids))
    metric, alpha, size = options.unifrac_metric, options.unifrac_alpha, _tile_bytes(options)
    return unifrac_matrix(table, phylogeny, metric, alpha, options.engine, size, device)


def _tiles(options: Unifrac) -> tuple[FeatureTable, Tiles]:
    """Read table and tree, and return the table and the tiles of its matrix.

    Raises:
        UsageError, MissingInput, DataError, Unavailable: see `run`.
    """
    device = _device(options)
    table, phylogeny = _read(options)
    metric, alpha, size = options.unifrac_metric, options.unifrac_alpha, _tile_bytes(options)
    return table, Tiles(table.counts, phylogeny, metric, alpha, device, size)


def _device(options: Unifrac) -> str:
    device = choose_device(DeviceOptions(device=options.device))
    if options.engine not in ENGINES:
        print_device(device)
    return str(device)


def _tile_bytes(options: Unifrac) -> int:
    """Return the bytes that tiles may use."""
    limit = options.input.max_memory_gb
    return GIB if isinstance(limit, str) else int(limit * GIB)


def _check_size(samples: int) -> None:
    """Reject a matrix of float64 that does not fit in memory.

    Raises:
        DataError: it is larger.
    """
    size = 8 * samples**2
    if size > (available := memory_available()):
        raise DataError(
            "The distance matrix does not fit in memory",
            f"{samples} samples take {shown_size(size)}, {shown_size(available)} are available",
            "write an .h5, which is computed in parts; `aam pretrain` needs no matrix",
        )


def _check(options: Unifrac) -> None:
    """Check the options before anything is read."""
    if options.unifrac_metric == "faith_pd":
        if options.output.suffix != ".tsv":
            raise UsageError("Faith PD is a TSV", f"'{options.output.name}'", "end it with .tsv")
    else:
        checked_suffix(options.output)
    if options.shard is not None:
        _check_shard(options)
        return
    refuse_existing(options.output, options.overwrite)
    if options.output.suffix == ".npy":
        refuse_existing(options.output.with_suffix(".txt"), options.overwrite)


def _check_shard(options: Unifrac) -> None:
    """Check that the output can be computed in shards."""
    Shard.parse(options.shard or "")
    if options.output.suffix != ".h5":
        given = f"'{options.output.name}'"
        raise UsageError("Shards are those of a matrix in HDF5", given, "end its name with .h5")


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
        return store.table, store.phylogeny
    if options.tree is None:
        raise UsageError("UniFrac needs a tree", "--tree was not given", "give one")
    return with_phylogeny(load_table(options.input), options.tree, options, options.input)


def _write_diversity(path: Path, table: FeatureTable, diversity: NDArray[np.float64]) -> None:
    rows = zip(table.sample_ids, diversity.tolist(), strict=True)
    # `repr` keeps all digits of a float64.
    lines = [f"{ID_HEADER}\tfaith_pd\n", *(f"{name}\t{value!r}\n" for name, value in rows)]
    write_text(path, "".join(lines))
