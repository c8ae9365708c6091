"""Options of `aam inspect`."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import option


@dataclass(frozen=True)
class Inspect:
    """Look at a study before any training: all that is wrong or noteworthy, in seconds.

    Nothing is trained or changed. The exit status is that of the first error.

    Examples:
        aam inspect table.biom --metadata metadata.tsv --metadata-column age
        aam inspect table.qza --sequences rep-seqs.qza --tree tree.qza --output findings.json
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
    output: Path | None = option(
        "JSON file for the findings.", default=None, role="output", basic=True
    )
    overwrite: bool = option(
        "Replace an existing JSON file.", default=False, basic=True, only_with=("--output",)
    )
