"""Inspection of a study in memory, as `aam inspect` does with files."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import pandas as pd

from aam.api.arguments import (
    MetadataTable,
    Sequences,
    Table,
    arguments,
    is_anndata,
    metadata_file,
    path_argument,
    require_paths,
    table_files,
    tree_file,
)
from aam.contract.options import values_of
from aam.contract.options.commands.studies import Inspect
from aam.contract.options.conditions import require_consistent
from aam.data.inspection import inspect as inspect_files
from aam.pipeline.preview import inspect_target
from aam.report.inspection import write_inspection
from aam.report.page import require_page

if TYPE_CHECKING:
    from skbio import TreeNode


def inspect(
    table: Table,
    metadata: MetadataTable = None,
    column: str | None = None,
    sequences: Sequences = None,
    *,
    tree: str | PathLike[str] | TreeNode | None = None,
    classifier: bool = False,
    ordinal: str | Sequence[str] = (),
    where: str | None = None,
    group_column: str | None = None,
    drop_empty_samples: bool = False,
    report: str | PathLike[str] | None = None,
) -> pd.DataFrame:
    """Return what is wrong or noteworthy with a study before any training, as `aam inspect` does.

    >>> asv = "TACGGAGGATCC"
    >>> found = inspect(pd.DataFrame([[5, 1], [3, 0]], ["s1", "s2"], [asv, asv[:-1] + "T"]))
    >>> found.loc[found.subject == "table", "text"].iloc[0]
    '2 samples x 2 ASVs, 75.0% not 0'

    Args:
        table, sequences: see `aam.api.arguments.Table`.
        metadata: file or DataFrame by sample id. Of AnnData, None takes `obs`.
        column: metadata column to predict; None for none.
        tree: rooted phylogeny of the ASVs.
        classifier, ordinal, where, group_column: as of `aam train`, for the column.
        drop_empty_samples: leave out samples without reads.
        report: HTML page to write, with pictures; None writes none.

    Returns:
        A row for each finding: severity (fact, warning, error), subject and text.

    Raises:
        UsageError: an argument is not of its type, or a column is named without metadata.
        CannotCreate: the page cannot be written.
    """
    if metadata is None and is_anndata(table):
        metadata = table.obs
    given = {"classifier": classifier, "ordinal": ordinal, "where": where}
    values = arguments(Inspect, {**given, "group_column": group_column, "metadata_column": column})
    page = None if report is None else path_argument("report", report, "None")
    with table_files("inspect", table, sequences, drop_empty_samples) as (files, folder):
        options = Inspect(
            table=files.table,
            sequences=files.sequences,
            drop_empty_samples=files.drop_empty_samples,
            tree=tree_file(tree, folder),
            metadata=metadata_file(metadata, folder),
            report=page,
            **values,
        )
        require_consistent(options)
        require_paths("inspect", values_of(options))
        if page is not None:
            require_page(page)
        inspection, target = inspect_files(files, options.tree, options.metadata), None
        if column is not None and inspection.metadata is not None:
            target = inspect_target(inspection, options, inspection.metadata, column)
        if page is not None:
            name = files.table.name if isinstance(table, (str, PathLike)) else "Table in memory"
            write_inspection(inspection, target, name, page)
    findings = [(one.severity, one.subject, one.text) for one in inspection.findings]
    return pd.DataFrame(findings, columns=["severity", "subject", "text"])
