"""`aam unifrac`: the UniFrac distance matrix of a table, or the Faith PD of its samples."""

from __future__ import annotations

import numpy as np
import pandas as pd

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.studies import Unifrac
from aam.contract.options.groups import DeviceOptions
from aam.data.distances import DistanceMatrix, checked_suffix, hdf5_matrix
from aam.data.metadata import ID_HEADER
from aam.data.study import read_with_tree
from aam.members.output_tables import write_table
from aam.memory import GIB
from aam.network.numerics.device import choose_device, print_device
from aam.network.unifrac import compute_tiles, faith_pd, fill, unifrac_matrix
from aam.network.unifrac_binaries import ENGINES


def run_unifrac(options: Unifrac) -> None:
    """Compute and write the matrix, or a TSV of sample-id and faith_pd."""
    output = options.output
    if options.unifrac_metric != "faith_pd":
        checked_suffix(output)
    elif output.suffix != ".tsv":
        raise UsageError("Faith PD is a TSV", f"'{output.name}'", "end it with .tsv")
    refuse_existing(output, options.overwrite)
    if output.suffix == ".npy":
        refuse_existing(output.with_suffix(".txt"), options.overwrite)
    if options.unifrac_metric == "faith_pd":
        table, phylogeny = read_with_tree(options)
        columns = {ID_HEADER: list(table.sample_ids), "faith_pd": faith_pd(table.counts, phylogeny)}
        write_table(output, pd.DataFrame(columns))
        info(f"Faith PD of {len(table.sample_ids)} samples is in '{output}'.")
        return
    device = choose_device(DeviceOptions(device=options.device))
    if options.engine not in ENGINES:
        print_device(device)
    table, phylogeny = read_with_tree(options)
    metric, alpha = options.unifrac_metric, options.unifrac_alpha
    limit = options.input.max_memory_gb
    size = GIB if isinstance(limit, str) else int(limit * GIB)
    # HDF5 is written tile by tile, so that the matrix need not fit in memory; the binaries of other
    # engines compute it whole.
    if output.suffix == ".h5" and options.engine not in ENGINES:
        samples = len(table.sample_ids)
        tiles = compute_tiles(table.counts, phylogeny, metric, alpha, str(device), size)
        with atomic_write(output) as temporary, hdf5_matrix(temporary, table.sample_ids) as matrix:
            low, high = fill(matrix, tiles)
    else:
        matrix_NN = unifrac_matrix(
            table, phylogeny, metric, alpha, options.engine, size, str(device)
        )
        matrix_NN.write(output)
        samples = len(matrix_NN.ids)
        upper = matrix_NN.values[np.triu_indices(samples, 1)]
        low, high = upper.min(initial=np.inf), upper.max(initial=-np.inf)
    spread = f", {low:.3f} to {high:.3f}" if low <= high else ""
    info(f"Distances of {samples} samples{spread}, are in '{output}'.")


def distances(options: Unifrac) -> DistanceMatrix:
    """Compute the distances of all samples; nothing is written."""
    table, phylogeny = read_with_tree(options)
    metric, alpha = options.unifrac_metric, options.unifrac_alpha
    chosen = choose_device(DeviceOptions(device=options.device))
    print_device(chosen)
    return unifrac_matrix(table, phylogeny, metric, alpha, device=str(chosen))
