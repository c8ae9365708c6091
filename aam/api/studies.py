"""Studies in memory: `inspect`, `join_studies` and `unifrac`, as the commands do with files."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import biom
import numpy as np
import pandas as pd
from scipy import sparse

from aam import wings
from aam.api.arguments import (
    MetadataTable,
    Sequences,
    Table,
    TemporaryFiles,
    arguments,
    checked_ids,
    is_anndata,
    library_call,
    path_argument,
    require_paths,
    require_type,
    short_repr,
    table_files,
)
from aam.contract.errors import UsageError, first_few
from aam.contract.options import build, flag_of, values_of
from aam.contract.options.commands.studies import Inspect, Prepare, Unifrac
from aam.contract.options.conditions import require_consistent
from aam.contract.options.groups import Device, Metric, TableOptions
from aam.data.joined_metadata import RELABEL_HEADER
from aam.data.metadata import ID_HEADER, as_numbers, read_metadata
from aam.data.prepare import prepare
from aam.data.sequences import decode
from aam.data.study import load_study
from aam.data.study_inspection import inspect as inspect_files
from aam.pipeline.preview import inspect_target
from aam.report.inspection import write_inspection
from aam.report.page import require_page

if TYPE_CHECKING:  # scikit-bio takes a CPU-second to import
    from skbio import DistanceMatrix, TreeNode


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
    """Inspect a study before any training: errors, warnings and facts, as `aam inspect` does.

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
    """
    if metadata is None and is_anndata(table):
        metadata = table.obs
    target_options = {"classifier": classifier, "ordinal": ordinal, "where": where}
    columns = {"group_column": group_column, "metadata_column": column}
    values = arguments(Inspect, target_options | columns)
    page = None if report is None else path_argument("report", report, "None")
    with table_files("inspect", table, sequences, drop_empty_samples) as (input, files):
        paths = {"--tree": files.tree(tree), "--metadata": files.metadata(metadata)}
        values = {flag_of(name): value for name, value in values.items()}
        options = build(Inspect, values_of(input) | values | paths | {"--report": page})
        require_consistent(options)
        require_paths("inspect", values_of(options))
        if page is not None:
            require_page(page)
        inspection = inspect_files(input, options.tree, options.metadata)
        target = inspect_target(inspection, options)
        if page is not None:
            name = input.table.name if isinstance(table, (str, PathLike)) else "Table in memory"
            write_inspection(inspection, target, name, page)
    findings = [
        (finding.severity, finding.subject, finding.text) for finding in inspection.findings
    ]
    return pd.DataFrame(findings, columns=["severity", "subject", "text"])


def unifrac(
    table: Table,
    tree: str | PathLike[str] | TreeNode,
    metric: Metric = "unweighted",
    *,
    alpha: float = 0.5,
    drop_missing_asvs: bool = False,
    root_at_midpoint: bool = False,
    device: Device = "auto",
) -> DistanceMatrix:
    """Compute the UniFrac distances between all samples of a table, in float64.

    Unweighted UniFrac: Lozupone and Knight (2005); weighted: Lozupone et al. (2007); generalized:
    Chen et al. (2012).

    Args:
        table: see `aam.api.arguments.Table`; reads of N samples.
        tree: rooted phylogeny with branch lengths: Newick, .qza or TreeNode. Its tips are the
            feature ids; there may be more.
        metric: `unweighted`, `weighted`, `weighted_normalized` or `generalized`.
        alpha: exponent of generalized UniFrac, 0 to 1.
        drop_missing_asvs: leave out features that are not in the tree.
        root_at_midpoint: root an unrooted tree between its two most distant tips.
        device: device of the computation.

    Returns:
        N x N distances with the sample ids.

    >>> from skbio import TreeNode
    >>> reads = pd.DataFrame([[5, 5, 0], [0, 5, 5]], ["one", "two"], ["a", "b", "c"])
    >>> tree = TreeNode.read(["((a:1,b:1):1,c:2);"])
    >>> round(float(unifrac(reads, tree, device="cpu")["one", "two"]), 3)
    0.6
    """
    from skbio import DistanceMatrix

    if metric == "faith_pd":
        raise UsageError("Faith PD is no distance", "metric='faith_pd'", "use `aam unifrac`")
    with table_files("unifrac", table) as (input, files):
        values = {"unifrac_metric": metric, "unifrac_alpha": alpha, "device": device}
        values |= {"drop_missing_asvs": drop_missing_asvs, "root_at_midpoint": root_at_midpoint}
        names = {"unifrac_metric": "metric", "unifrac_alpha": "alpha"}
        checked = arguments(Unifrac, values, names)
        tree = files.tree(tree)
        options = Unifrac(input=input, tree=tree, output=Path("unwritten.tsv"), **checked)
        distances = wings.network().unifrac_matrix(options)
    return DistanceMatrix(distances.values, distances.ids)


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

    ASVs are joined by their sequence, cut to their common length. Sample ids that occur in two
    studies get the name of the study, as `a.S1`. A sample with the same reads as a sample of an
    earlier study is left out. What the studies share is logged; columns that differ are warnings.

    Args:
        tables: table of each of two or more studies by its name, see `aam.api.arguments.Table`.
        metadata: metadata of each study by its name. Of AnnData, None takes `obs`.
        sequences: sequences by the name of a study, for features whose ids are hashes.
        relabel: other names in the metadata: of a column, `{"Class": "class"}`, or of its values,
            `{"class": {"CD": "case"}}`; in this order.
        trim_length: nucleotides to keep of each sequence, 0 for all. `auto`: if lengths differ
            between studies, the length that 99 % of the ASVs of each study have; else all.
        drop_empty_samples: leave out samples without reads instead of refusing the table.

    Returns:
        Reads of all samples, features named by their sequence; and the metadata in the order of
        its samples, with the column `study`. Columns of numbers are float64.

    >>> asv = "TACGGAGGATCC"
    >>> first = pd.DataFrame([[5, 1]], ["s1"], [asv, asv[:-1] + "T"])
    >>> second = pd.DataFrame([[7]], ["s1"], [asv])
    >>> table, metadata = join_studies({"a": first, "b": second})
    >>> table.ids().tolist(), metadata.study.tolist()
    (['a.s1', 'b.s1'], ['a', 'b'])
    """
    mappings = {"tables": tables, "metadata": metadata, "sequences": sequences, "relabel": relabel}
    for name, value in mappings.items():
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
    with library_call("join_studies") as files:
        paths, fastas, described = [], [], []
        for number, (name, table) in enumerate(tables.items(), start=1):
            # Any text is the name of a study, but not of a folder: `..`, or one of 300 letters.
            of_study = files.folder / f"{number} {quote(names[number - 1], safe='')[:50]}"
            of_study.mkdir()
            of_study_files = TemporaryFiles(of_study)
            path, fasta = of_study_files.table(table, (sequences or {}).get(name))
            paths.append(path)
            fastas += [] if fasta is None else [fasta]
            file = of_study_files.metadata((metadata or {}).get(name))
            described += [] if file is None else [file]
        if 0 < len(fastas) < len(tables):
            evidence = f"{len(fastas)} of {len(tables)} studies"
            remedy = "give them for every study; {id: id} if the ids are the sequences"
            raise UsageError("Sequences are missing for some studies", evidence, remedy)
        store = files.folder / "joined.aam"
        store.mkdir()
        options = Prepare(
            table=tuple(paths),
            sequences=tuple(fastas),
            metadata=tuple(described),
            studies=tuple(names),
            relabel_file=_relabel_file(relabel, files.folder),
            **arguments(Prepare, values),
        )
        # Joined as files: one implementation, with the same checks and messages.
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
    if multiline := [row for row in rows if set("\t\r\n") & set("".join(row))]:
        raise UsageError(
            "Invalid relabel", short_repr(multiline[0]), "give names of one line without tabs"
        )
    path = folder / "relabel.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def _column(values: list[str]) -> pd.Series[float] | list[str | None]:
    """Return the values of a column as numbers if all are, else as text; None is missing."""
    as_floats = as_numbers(values)
    present = np.array([value != "" for value in values])
    if present.any() and np.isfinite(as_floats[present]).all():
        return as_floats
    return [value or None for value in values]
