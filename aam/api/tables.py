"""Tables in memory as the files that the commands read: BIOM, pandas, AnnData, arrays, paths.

A table in memory is written to a temporary folder, so that it is read, checked and recorded by the
same code as a file. Errors name the argument instead of that file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import biom
import h5py
import numpy as np
import pandas as pd
from scipy import sparse
from skbio import TreeNode

from aam import __version__
from aam.console import as_library
from aam.contract.errors import AamError, DataError
from aam.contract.options.study import TableOptions
from aam.data.io.table_blocks import check_ids
from aam.data.metadata import ID_HEADER

Table: TypeAlias = Any
"""A path, `biom.Table`, DataFrame (samples x features), AnnData, or array (samples x features).

The features of an array are called x0, x1, ..., its samples 0, 1, ...
"""

Sequences: TypeAlias = "str | PathLike[str] | Mapping[str, str] | None"
"""Feature id -> DNA, or a FASTA or .qza file; None if the ids are the sequences themselves.

Of AnnData, None takes the column `sequence` of `var` if there is one.
"""


def as_biom(table: Table) -> biom.Table:
    """Convert a table in memory to BIOM.

    Raises:
        DataError: not a table, not numeric, or with duplicated or empty ids.
    """
    if isinstance(table, biom.Table):
        return table
    if isinstance(table, pd.DataFrame):
        samples, features, values = table.index, table.columns, table
    elif _is_anndata(table):
        samples, features, values = table.obs_names, table.var_names, table.X
    else:
        values = table if sparse.issparse(table) else np.asarray(table)
        if values.ndim != 2:
            raise DataError(
                "Not a table",
                f"{type(table).__name__} of {values.ndim} dimensions",
                "give a path, biom.Table, DataFrame, AnnData, or an array of samples x features",
            )
        samples = range(values.shape[0])
        features = [f"x{column}" for column in range(values.shape[1])]
    sample_ids, feature_ids = [str(name) for name in samples], [str(name) for name in features]
    check_ids(sample_ids, "sample")
    check_ids(feature_ids, "feature")
    try:
        counts = sparse.csr_matrix(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            "Counts that are not numbers", str(error), "give counts of reads"
        ) from error
    return biom.Table(counts.T, feature_ids, sample_ids, type="OTU table")


@contextmanager
def table_files(
    table: Table, sequences: Sequences = None, drop_empty_samples: bool = False
) -> Iterator[tuple[TableOptions, Path]]:
    """Yield the options that name the files of a table, and a temporary folder.

    Messages go to the logger and to `warnings` while the block runs.

    Raises:
        DataError: see `as_biom`. Errors of the block name the table instead of its file.
    """
    with tempfile.TemporaryDirectory(prefix="aam-") as name, as_library():
        folder = Path(name)
        if sequences is None and _is_anndata(table) and "sequence" in table.var:
            sequences = table.var["sequence"].astype(str).to_dict()
        if isinstance(sequences, Mapping):
            fasta = "".join(f">{feature}\n{dna}\n" for feature, dna in sequences.items())
            sequences = folder / "sequences.fasta"
            sequences.write_text(fasta)
        path = Path(table) if isinstance(table, (str, PathLike)) else folder / "table.biom"
        if path.parent == folder:
            with h5py.File(path, "w") as file:
                as_biom(table).to_hdf5(file, f"aam {__version__}")
        options = TableOptions(
            table=path,
            sequences=None if sequences is None else Path(sequences),
            drop_empty_samples=drop_empty_samples,
        )
        try:
            yield options, folder
        except AamError as error:
            shown = [
                part.replace(f"'{folder}/table.biom'", "the table").replace(f"'{folder}/", "'")
                for part in (error.cause, error.evidence, error.remedy)
            ]
            raise type(error)(*shown) from error


def metadata_file(metadata: str | PathLike[str] | pd.DataFrame | None, folder: Path) -> Path | None:
    """Return the path of metadata; a DataFrame with sample ids as index is written to `folder`."""
    if metadata is None or isinstance(metadata, (str, PathLike)):
        return None if metadata is None else Path(metadata)
    path = folder / "metadata.tsv"
    metadata.rename_axis(ID_HEADER).to_csv(path, sep="\t")
    return path


def tree_file(tree: str | PathLike[str] | TreeNode | None, folder: Path) -> Path | None:
    """Return the path of a tree; one in memory is written to `folder`."""
    if not isinstance(tree, TreeNode):
        return None if tree is None else Path(tree)
    path = folder / "tree.nwk"
    tree.write(str(path), "newick")
    return path


def _is_anndata(table: Table) -> bool:
    return all(hasattr(table, name) for name in ("X", "obs_names", "var_names"))
