"""Arguments of the Python interface: checks by the options, and tables in memory as files.

Errors, warnings and messages come from the commands; `library_messages` names parameters in them
instead of options. A table in memory is written to a temporary folder, so that the same code reads,
checks and records it as a file; errors name the argument instead of that file.
"""

from __future__ import annotations

import numbers
import os
import re
import tempfile
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

import biom
import h5py
import numpy as np
import pandas as pd
from scipy import sparse

from aam.console import as_library
from aam.contract.errors import AamError, DataError, UsageError, first_few, nearest
from aam.contract.options import SYNONYMS, alternatives, fits, specs
from aam.contract.options.command_line import ParsedCommand
from aam.contract.options.commands import names, options_of
from aam.contract.options.groups import TableOptions
from aam.contract.preflight import require_inputs
from aam.contract.version import __version__
from aam.data.formats.tables import PARTS, check_ids
from aam.data.metadata import ID_HEADER, is_id_header
from aam.data.table import read_table
from aam.data.taxonomy import read_taxonomy

if TYPE_CHECKING:  # scikit-bio takes a CPU-second to import
    from skbio import TreeNode

_FLAG = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
_RESULTS = {"predictions.tsv": "oof_predictions_", "importance.tsv": "importance_"}
"""Files of a run that an estimator has as attributes."""

_RESULT = re.compile(rf"(?<![\w/.'-])({'|'.join(map(re.escape, _RESULTS))})")

_NAMES = {
    "metadata_column": "y",
    "group_column": "groups",
    "classifier": "AAMClassifier",
    "run_dir": "run",
    "seed": "random_state",
    "unifrac_metric": "metric",
}
"""Options whose parameter has another name."""

_COMMAND_LINE = {"config", "fsdp", "loss-config", "max-memory-gb", "processes", "resume-from",
                 "where"}  # fmt: skip
"""Options that no function has as a parameter; messages name them as options."""

_TYPES = {bool: "True or False", int: "a whole number", float: "a number", str: "text",
          Path: "a path", NoneType: "None"}  # fmt: skip
"""Types of options, as messages call them."""


@contextmanager
def library_messages(title: str = "", unnamed: str = "", folder: str = "") -> Iterator[None]:
    """Show messages as a library does.

    In messages and errors, options are named as parameters, files of the temporary `folder` have no
    path, and `unnamed`, the prefix of ids of samples without ids, is removed. `title` is the title
    of the line of progress; "" shows none.
    """

    def rendered(text: str) -> str:
        if folder:
            text = text.replace(f"'{folder}/table.biom'", "the table").replace(f"'{folder}/", "'")
        return as_parameters(text.replace(unnamed, ""))

    def message(text: str) -> str:
        return _RESULT.sub(lambda match: _RESULTS[match[0]], rendered(text))

    with as_library(message, title):
        try:
            yield
        except AamError as error:
            error.args = tuple(map(rendered, error.args))
            error.cause, error.evidence, error.remedy = error.args
            raise


def as_parameters(text: str) -> str:
    """Replace the options of a command in a text by the parameters of Python.

    >>> as_parameters("--freeze-base with --no-check; leave out --where")
    'freeze_base=True with check=False; leave out --where'
    """

    def name(match: re.Match[str]) -> str:
        off, flag = match.groups()
        if flag in _COMMAND_LINE:
            return match[0]
        field = flag.replace("-", "_")
        is_switch = any(
            spec.field == field and spec.type is bool
            for command in names()
            for spec in options_of(command)
        )
        return _NAMES.get(field, field + ("=False" if off else "=True" if is_switch else ""))

    return _FLAG.sub(name, text)


def arguments(
    command: type, parameters: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the values of arguments, by field, as the options of a command take them.

    `names` has the names of arguments that differ from their field. A string or a number becomes a
    tuple of one, `gpu` becomes `cuda`.
    """
    values = {}
    for spec in specs(command):
        if spec.field not in parameters:
            continue
        value = parameters[spec.field]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str) and SYNONYMS.get(value) in spec.choices:
            value = SYNONYMS[value]
        if isinstance(value, (str, numbers.Real)) and typing.get_origin(spec.type) is tuple:
            value = (value,)
        cause = f"Invalid {(names or {}).get(spec.field, spec.field)}"
        items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not fits(spec.type, value):
            expected = [_TYPES.get(kind, repr(kind)) for kind in alternatives(spec.type)]
            choices = [choice for choice in spec.choices if isinstance(choice, str)]
            invalid = next((item for item in items if item not in choices), "")
            remedy = nearest(str(invalid), choices, f"give {' or '.join(expected)}")
            raise UsageError(cause, short_repr(value), remedy)
        figures = (float(item) for item in items if isinstance(item, numbers.Real))
        if spec.takes is not None and not all(map(spec.takes.holds, figures)):
            raise UsageError(cause, short_repr(value), f"give {spec.takes.description}")
        if isinstance(value, (str, PathLike)) and value not in spec.choices:
            value = Path(value) if fits(spec.type, Path()) else value
        values[spec.field] = items if isinstance(value, list) else value
    return values


def path_argument(name: str, value: Any, instead: str) -> Path:
    """Return the path of an argument; `instead` describes other valid values for the message."""
    require_type(name, value, (str, PathLike), f"a path or {instead}")
    return Path(value)


def require_type(name: str, value: Any, expected: Any, instead: str) -> None:
    """Refuse an argument that is not of the expected type, or one of several."""
    if not isinstance(value, expected):
        raise UsageError(f"Invalid {name}", short_repr(value), f"give {instead}")


def require_paths(command: str, paths: Mapping[str, Any]) -> None:
    """Check paths, flag -> value, as a command line does; an absent input is in memory."""
    outputs = [spec.flag for spec in options_of(command) if spec.role == "output"]
    absent = [
        flag
        for flag, value in paths.items()
        if flag not in outputs and isinstance(value, Path) and not os.path.exists(value)
    ]
    require_inputs(ParsedCommand(command, {f: v for f, v in paths.items() if f not in absent}))


def checked_ids(names: Iterable[Any], axis: str) -> list[str]:
    """Return the ids of samples or features as text."""
    items = list(names)
    # Only NaN, pandas' missing id, differs from itself.
    if invalid := [n for n in items if not isinstance(n, (str, numbers.Real)) or n != n]:
        raise DataError(
            f"{axis.capitalize()} ids that are neither text nor numbers",
            first_few(invalid),
            f"give each {axis} an id",
        )
    ids = [str(name) for name in items]
    check_ids(ids, axis)
    if blank := [repr(name) for name in ids if name != name.strip()]:
        evidence = first_few(blank)
        remedy = "remove the blanks"
        raise DataError(f"{axis.capitalize()} ids that begin or end with a blank", evidence, remedy)
    return ids


def metadata_ids(names: Iterable[Any]) -> list[str]:
    """Return the sample ids of metadata as text."""
    ids = checked_ids(names, "sample")
    if comments := [name for name in ids if name.startswith("#")]:
        raise DataError(
            "Sample ids that begin with '#', as comments do in metadata",
            first_few(comments),
            "leave out the row of types of QIIME 2, such as by skiprows=[1] of pandas.read_csv"
            if any(name.startswith("#q2:") for name in comments)
            else "rename them",
        )
    return ids


def short_repr(value: Any) -> str:
    """Return the representation of a value on one line, shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


Table: TypeAlias = Any
"""A path, `biom.Table`, DataFrame (samples x features), AnnData, or array (samples x features).

The features of an array are called x0, x1, ..., its samples 0, 1, ...
"""

Sequences: TypeAlias = "str | PathLike[str] | Mapping[Any, str] | pd.Series[str] | None"
"""Feature id -> DNA, or a FASTA or .qza file; None if the ids are the sequences themselves.

Of AnnData, None takes the column `sequence` of `var` if there is one.
"""

MetadataTable: TypeAlias = "str | PathLike[str] | pd.DataFrame | None"
"""Metadata of samples: a file, or a DataFrame with sample ids as index."""

Taxonomy: TypeAlias = (
    "str | PathLike[str] | Mapping[str, str] | pd.Series[str] | pd.DataFrame | None"
)
"""Feature id -> taxon, a DataFrame with the column Taxon, or a TSV or .qza file of QIIME 2."""


def as_biom(table: Table, unnamed: str = "") -> biom.Table:
    """Convert a table to BIOM; `unnamed` begins the ids of samples that have none."""
    if isinstance(table, (str, PathLike)):
        read = read_table(Path(table))
        counts = sparse.csr_matrix(read.counts.T)
        values = counts / PARTS if read.quantity == "relative abundances" else counts
        return biom.Table(values, read.feature_ids, read.sample_ids)
    if isinstance(table, biom.Table):
        checked_ids(table.ids(), "sample")
        checked_ids(table.ids("observation"), "feature")
        return table
    if isinstance(table, pd.DataFrame):
        samples, features, values = table.index, table.columns, table
        if _are_dna(samples) and not _are_dna(features):
            evidence = f"the index has DNA, the columns are {first_few(map(str, features))}"
            raise DataError("A transposed table", evidence, "give samples x features: table.T")
        if not has_sample_ids(table):
            samples = [f"{unnamed}{row}" for row in table.index]
    elif is_anndata(table):
        samples, features, values = table.obs_names, table.var_names, table.X
    else:
        values = table if sparse.issparse(table) else np.asarray(table)
        if values.ndim != 2:
            raise DataError(
                "Not a table",
                f"{type(table).__name__} of {values.ndim} dimensions",
                "give a path, biom.Table, DataFrame, AnnData, or an array of samples x features",
            )
        samples = [f"{unnamed}{row}" for row in range(values.shape[0])]
        features = [f"x{column}" for column in range(values.shape[1])]
    sample_ids, feature_ids = checked_ids(samples, "sample"), checked_ids(features, "feature")
    dtypes = values.dtypes if isinstance(values, pd.DataFrame) else [values.dtype]
    if not (sample_ids and feature_ids):
        evidence = f"{len(sample_ids)} samples x {len(feature_ids)} features"
        raise DataError("An empty table", evidence, "select samples and features that it has")
    try:
        # NumPy converts complex to real numbers by dropping the imaginary part.
        if invalid := [str(dtype) for dtype in dtypes if dtype.kind not in "biufO"]:
            raise TypeError(f"values of type {invalid[0]}")
        counts = sparse.csr_matrix(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        # Types of pandas with a missing value of their own, such as Int64.
        if isinstance(values, pd.DataFrame) and (is_absent := values.isna().any(axis=1)).any():
            samples = first_few(values.index[is_absent])
            remedy = "give 0 where no read was found"
            raise DataError("Missing counts", f"in samples {samples}", remedy) from error
        raise DataError(
            "Counts that are not numbers", str(error), "give counts of reads"
        ) from error
    return biom.Table(counts.T, feature_ids, sample_ids, type="OTU table")


def _are_dna(names: pd.Index) -> bool:
    """Return whether names are DNA sequences, by the first three."""
    first = [str(name) for name in names[:3]]
    return bool(first) and all(len(name) > 20 and not set(name) - set("ACGTN") for name in first)


def is_anndata(table: Table) -> bool:
    """Return whether a table is AnnData, or has the attributes that are read of it."""
    return all(hasattr(table, name) for name in ("X", "obs_names", "var_names"))


def is_array(table: Table) -> bool:
    """Return whether a table is an array, whose samples and features have no ids."""
    with_ids = (str, PathLike, pd.DataFrame, biom.Table)
    return not (isinstance(table, with_ids) or is_anndata(table))


def has_sample_ids(table: Table) -> bool:
    """Return whether samples have ids: not of an array, nor of a DataFrame with row numbers."""
    numbered = isinstance(table, pd.DataFrame) and isinstance(table.index, pd.RangeIndex)
    return not (numbered or is_array(table))


def sequences_in_memory(table: Table, sequences: Sequences) -> Path | Mapping[str, str] | None:
    """Return the sequences of the features of a table."""
    if sequences is None and is_anndata(table) and "sequence" in table.var:
        dna: dict[str, str] = table.var["sequence"].astype(str).to_dict()
        return dna
    if sequences is None:
        return None
    if isinstance(sequences, (Mapping, pd.Series)):  # a Series is what QIIME 2 has in memory
        return {str(feature): str(sequence) for feature, sequence in sequences.items()}
    instead = "a dictionary from feature id (of an array x0, x1, ...) to DNA"
    return path_argument("sequences", sequences, instead)


@dataclass(frozen=True)
class TemporaryFiles:
    """Files of a call from Python: what is in memory is written to a temporary folder."""

    folder: Path

    def table(
        self, table: Table, sequences: Sequences, unnamed: str = ""
    ) -> tuple[Path, Path | None]:
        """Return the paths of a table and its sequences."""
        records = sequences_in_memory(table, sequences)
        if isinstance(records, Mapping):
            fasta = "".join(f">{feature}\n{dna}\n" for feature, dna in records.items())
            records = self.folder / "sequences.fasta"
            records.write_text(fasta)
        if isinstance(table, (str, PathLike)):
            return Path(table), records
        path = self.folder / "table.biom"
        with h5py.File(path, "w") as file:
            as_biom(table, unnamed).to_hdf5(file, f"aam {__version__}")
        return path, records

    def metadata(self, metadata: MetadataTable) -> Path | None:
        """Return the path of metadata, also of a DataFrame with sample ids as index."""
        if metadata is None:
            return None
        if not isinstance(metadata, pd.DataFrame):
            return path_argument("metadata", metadata, "a DataFrame with sample ids as index")
        id_columns = [name for name in metadata.columns if is_id_header(str(name))]
        if id_columns and isinstance(metadata.index, pd.RangeIndex):
            evidence = f"row numbers as index, and the column {id_columns[0]!r}"
            remedy = f"give metadata.set_index({id_columns[0]!r})"
            raise DataError("Metadata whose index has no sample ids", evidence, remedy)
        path = self.folder / "metadata.tsv"
        ids = pd.Index(metadata_ids(metadata.index), name=ID_HEADER)
        metadata.set_axis(ids).to_csv(path, sep="\t")
        return path

    def taxonomy(self, taxonomy: Taxonomy) -> Path | None:
        """Return the path of a taxonomy."""
        if taxonomy is None:
            return None
        if isinstance(taxonomy, pd.DataFrame):
            frame = taxonomy.set_index("Feature ID") if "Feature ID" in taxonomy else taxonomy
            if "Taxon" not in frame:
                evidence = f"it has {first_few(frame.columns)}"
                remedy = "give a DataFrame with the column Taxon and the feature ids as index"
                raise DataError("The taxonomy has no column 'Taxon'", evidence, remedy)
            taxonomy = frame["Taxon"]
        if not isinstance(taxonomy, (Mapping, pd.Series)):
            instead = "a dictionary or DataFrame from feature id to taxon"
            return path_argument("taxonomy", taxonomy, instead)
        path = self.folder / "taxonomy.tsv"
        lines = (
            f"{feature}\t{' '.join(str(taxon).split())}\n" for feature, taxon in taxonomy.items()
        )
        path.write_text("Feature ID\tTaxon\n" + "".join(lines))
        return path

    def taxa(self, taxonomy: Taxonomy) -> Mapping[str, str] | None:
        """Return the taxon of each feature id; None without a taxonomy."""
        path = self.taxonomy(taxonomy)
        return None if path is None else read_taxonomy(path)

    def tree(self, tree: str | PathLike[str] | TreeNode | None) -> Path | None:
        """Return the path of a tree."""
        if tree is None:
            return None
        if isinstance(tree, (str, PathLike)) or not hasattr(tree, "write"):
            return path_argument("tree", tree, "a skbio.TreeNode")
        path = self.folder / "tree.nwk"
        tree.write(str(path), "newick")
        return path


@contextmanager
def library_call(title: str = "", unnamed: str = "") -> Iterator[TemporaryFiles]:
    """Yield temporary files for tables in memory, within `library_messages`."""
    with (
        tempfile.TemporaryDirectory(prefix="aam-") as folder,
        library_messages(title, unnamed, folder),
    ):
        yield TemporaryFiles(Path(folder))


@contextmanager
def table_files(
    title: str,
    table: Table,
    sequences: Sequences = None,
    drop_empty_samples: bool = False,
    unnamed: str = "",
) -> Iterator[tuple[TableOptions, TemporaryFiles]]:
    """Yield the options that name the files of a table, and the files of a `library_call`."""
    with library_call(title, unnamed) as files:
        path, records = files.table(table, sequences, unnamed)
        options = arguments(TableOptions, {"drop_empty_samples": drop_empty_samples})
        yield TableOptions(table=path, sequences=records, **options), files
