"""Options of `aam inspect`."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import option
from aam.contract.options.members import MemberName


@dataclass(frozen=True)
class Inspect:
    """Look at a study before any training: all that is wrong or noteworthy, in seconds.

    With a metadata column also what `aam train` would do with it: samples, splits, columns that
    may leak, time and memory. Nothing is trained or changed. The exit status is that of the first
    error.

    Examples:
        aam inspect table.biom --metadata metadata.tsv --metadata-column age --report age.html
        aam inspect table.qza --sequences rep-seqs.qza --tree tree.qza --json
    """

    table: Path = option(
        "Feature table: BIOM, TSV, QIIME 2 artifact (.qza), or the folder of `aam prepare`; "
        "`--table` can be omitted.",
        role="input",
        first=True,
    )
    sequences: Path | None = option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes.",
        default=None,
        role="input",
        basic=True,
    )
    tree: Path | None = option(
        "Phylogeny of the ASVs: Newick or .qza.", default=None, role="input", basic=True
    )
    metadata: Path | None = option(
        "Sample metadata: TSV as QIIME 2 reads it.", default=None, role="input", basic=True
    )
    metadata_column: str | None = option(
        "Metadata column to predict.", default=None, basic=True, needs=("--metadata",)
    )
    classifier: bool = option(
        "Inspect the column as categories. Without the option: if most values are words.",
        default=False,
        basic=True,
        needs=("--metadata-column",),
    )
    ordinal: tuple[str, ...] = option(
        "Inspect it as ordered categories, the lowest first, as a,b,c.",
        default=(),
        excludes=("--classifier",),
        needs=("--metadata-column",),
        metavar="CATEGORY",
    )
    where: str | None = option(
        "Inspect the column in the samples that meet a condition, see `aam train`.",
        default=None,
        needs=("--metadata-column",),
    )
    group_column: str | None = option(
        "Metadata column of groups that no split divides, such as subjects.",
        default=None,
        basic=True,
        needs=("--metadata-column",),
    )
    members: tuple[MemberName, ...] = option(
        "Models to train. {choices}.", default=(), needs=("--metadata-column",)
    )
    json: bool = option("Print the findings as JSON.", default=False, basic=True)
    report: Path | None = option(
        "HTML page to write: the findings, with pictures of reads, ASVs, overlaps and columns.",
        default=None,
        role="output",
        basic=True,
    )
