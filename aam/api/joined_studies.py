"""Studies in memory joined to one, as `aam prepare --studies` joins files."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import biom
import numpy as np
import pandas as pd
from scipy import sparse

from aam.api.arguments import (
    MetadataTable,
    Sequences,
    Table,
    arguments,
    checked_ids,
    is_anndata,
    library_call,
    metadata_file,
    require_type,
    shown,
    written_table,
)
from aam.contract.errors import UsageError, first_few
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.groups import TableOptions
from aam.data.joined_metadata import RELABEL_HEADER
from aam.data.metadata import ID_HEADER, as_numbers, read_metadata
from aam.data.prepare import prepare
from aam.data.sequences import decode
from aam.data.study import load_study


def join_studies(
    tables: Mapping[str, Table],
    metadata: Mapping[str, MetadataTable] | None = None,
    *,
    sequences: Mapping[str, Sequences] | None = None,
    relabel: Mapping[str, str | Mapping[str, str]] | None = None,
    trim_length: int | Literal["auto"] = "auto",
    drop_empty_samples: bool = False,
) -> tuple[biom.Table, pd.DataFrame]:
    """Join studies to one table and its metadata, as `aam prepare --studies` does.

    ASVs are joined by their sequence, cut to their common length. Sample ids of two studies get the
    name of the study, as `a.S1`. A sample with the reads of a sample of an earlier study is left
    out. What the studies have in common is logged, and columns that do not agree are warnings.

    Args:
        tables: table of each of two or more studies by its name, see `aam.api.arguments.Table`.
        metadata: metadata of each study by its name. Of AnnData, None takes `obs`.
        sequences: sequences by the name of a study, for features whose ids are hashes.
        relabel: other names in the metadata: of a column, `{"Class": "class"}`, or of its values,
            `{"class": {"CD": "case"}}`; in this order.
        trim_length: nucleotides to keep of each sequence, 0 for all. `auto`: of studies with
            different lengths the one that 99 % of the ASVs of each have, else all.
        drop_empty_samples: leave out samples without reads instead of refusing the table.

    Returns:
        Reads of all samples, features named by their sequence; and the metadata in the order of
        its samples, with the column `study`. Columns of numbers are float64.

    Raises:
        UsageError: fewer than two studies, or an argument is not of its type or range.
        MissingInput, DataError: a table or metadata cannot be used, ASVs of two studies begin
            differently, or a study has no metadata.

    >>> asv = "TACGGAGGATCC"
    >>> first = pd.DataFrame([[5, 1]], ["s1"], [asv, asv[:-1] + "T"])
    >>> second = pd.DataFrame([[7]], ["s1"], [asv])
    >>> table, metadata = join_studies({"a": first, "b": second})
    >>> table.ids().tolist(), metadata.study.tolist()
    (['a.s1', 'b.s1'], ['a', 'b'])
    """
    given = {"tables": tables, "metadata": metadata, "sequences": sequences, "relabel": relabel}
    for name, value in given.items():
        if value is not None or name == "tables":
            by = "column" if name == "relabel" else "study"
            require_type(name, value, Mapping, f"a dictionary by {by}")
        if value is not None and name != "relabel" and {*value} != {*tables}:
            evidence = f"{first_few(value)} for the studies {first_few(tables)}"
            raise UsageError(f"Not {name} for each study", evidence, "give it by study for all")
    if not tables:
        raise UsageError("No studies", "tables is empty", "give two or more")
    names = checked_ids(tables, "study")
    if metadata is None and all(map(is_anndata, tables.values())):
        metadata = {name: table.obs for name, table in tables.items()}
    values = {"trim_length": trim_length, "drop_empty_samples": drop_empty_samples}
    with library_call("join_studies") as folder:
        paths, fastas, described = [], [], []
        for number, (name, table) in enumerate(tables.items(), start=1):
            # Any text is the name of a study, but not of a folder: `..`, or one of 300 letters.
            of_study = folder / f"{number} {quote(names[number - 1], safe='')[:50]}"
            of_study.mkdir()
            path, fasta = written_table(table, (sequences or {}).get(name), of_study)
            paths.append(path)
            fastas += [] if fasta is None else [fasta]
            file = metadata_file((metadata or {}).get(name), of_study)
            described += [] if file is None else [file]
        if 0 < len(fastas) < len(tables):
            evidence = f"{len(fastas)} of {len(tables)} studies"
            remedy = "give them for every study, {id: id} where the ids are the sequences"
            raise UsageError("Sequences of some studies alone", evidence, remedy)
        store = folder / "joined.aam"
        store.mkdir()
        options = Prepare(
            table=tuple(paths),
            sequences=tuple(fastas),
            metadata=tuple(described),
            studies=tuple(names),
            relabel_file=_relabel_file(relabel, folder),
            **arguments(Prepare, values),
        )
        # Through files, so that both ways of joining are one, with the same checks and messages.
        prepare(options, store)
        study, joined = load_study(TableOptions(table=store)), read_metadata(store)
        ids = list(study.table.sample_ids)
        counts = sparse.csr_matrix(study.counts(np.arange(len(ids))).T, dtype=np.float64)
        columns = {name: _column(joined.values(name, ids).tolist()) for name in joined.columns}
        return (
            biom.Table(counts, decode(study.tokens_FL), ids, type="OTU table"),
            pd.DataFrame(columns, index=pd.Index(ids, name=ID_HEADER)),
        )


def _relabel_file(
    relabel: Mapping[str, str | Mapping[str, str]] | None, folder: Path
) -> Path | None:
    """Write other names as --relabel-file reads them."""
    if not relabel:
        return None
    rows = [RELABEL_HEADER]
    for column, new in relabel.items():
        for old, name in new.items() if isinstance(new, Mapping) else [("", new)]:
            for text in (column, old, name):
                require_type("relabel", text, (str, numbers.Real), "text for each name")
            rows.append((str(column), str(old), str(name)))
    if wrong := [row for row in rows if set("\t\r\n") & set("".join(row))]:
        raise UsageError("Invalid relabel", shown(wrong[0]), "give names of one line without tabs")
    path = folder / "relabel.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def _column(values: list[str]) -> pd.Series[float] | list[str | None]:
    """Return the values of a column as numbers if all are, else as text; None is missing."""
    as_floats = as_numbers(values)
    known = np.array([value != "" for value in values])
    if known.any() and np.isfinite(as_floats[known]).all():
        return as_floats
    return [value or None for value in values]
