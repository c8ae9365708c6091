"""Options of the commands that read or write a study without a model."""

from pathlib import Path
from typing import ClassVar, Literal

from aam.contract.dataclass import dataclass
from aam.contract.options import ZERO_OR_MORE, basic_option, option, required_option
from aam.contract.options.groups import (
    DROP_EMPTY_SAMPLES,
    DROP_MISSING_ASVS,
    MAX_MEMORY_GB,
    RELABEL,
    RELABEL_FILE,
    ROOT_AT_MIDPOINT,
    SEQUENCES,
    TABLE_HELP,
    UNIFRAC_ALPHA,
    Device,
    MemberName,
    Metric,
    TableOptions,
)


@dataclass(frozen=True)
class Prepare:
    """Join studies, or store a large study, in a folder that every command reads as --table.

    The folder replaces table, sequences and tree, and metadata and taxonomy if present. ASVs with
    the same sequence in several tables become one ASV.

    Examples:
        aam prepare --table table.biom --tree tree.nwk --output study.aam
        aam prepare --table a.biom --table b.biom --metadata a.tsv --metadata b.tsv --studies a,b \
        --output both.aam
    """

    table: tuple[Path, ...] = required_option(
        "Feature table: BIOM, TSV, or QIIME 2 artifact (.qza); once per table.", repeated=True
    )
    sequences: tuple[Path, ...] = basic_option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes; once "
        "per table, or once for all.",
        default=(),
        repeated=True,
    )
    tree: Path | None = basic_option("Rooted phylogeny: Newick or .qza.")
    metadata: tuple[Path, ...] = basic_option(
        "Sample metadata to store: TSV in QIIME 2 format; once per table, or once for all.",
        default=(),
        repeated=True,
    )
    taxonomy: tuple[Path, ...] = basic_option(
        "Taxonomy to store, for --taxonomy of other commands: TSV of QIIME 2 or .qza; once per "
        "table, or once for all.",
        default=(),
        repeated=True,
    )
    output: Path | None = basic_option("Folder to write, such as study.aam.", role="output")
    studies: tuple[str, ...] = basic_option(
        "Names of the studies, one per table, as a,b: the metadata get a column `study`, and ASVs "
        "are cut to the common length.",
        default=(),
        metavar="STUDY",
    )
    relabel: tuple[str, ...] = RELABEL
    relabel_file: Path | None = RELABEL_FILE
    trim_length: int | Literal["auto"] = basic_option(
        "Nucleotides to keep of each sequence; equal ASVs are then joined. 0: all. 'auto': if the "
        "lengths of --studies differ, the length that 99 % of the ASVs of each have; else all.",
        default="auto",
        takes=ZERO_OR_MORE,
    )
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT
    max_memory_gb: float | Literal["auto"] = MAX_MEMORY_GB
    verify: bool = basic_option(
        "Write nothing; check the files in the folder of --table against their checksums.",
        default=False,
    )
    overwrite: bool = basic_option("Replace an existing output.", default=False)


@dataclass(frozen=True)
class Example:
    """Write a simulated study with known effects, for the tutorial.

    By default 150 samples of 50 subjects whose communities depend on pH. --studies: several studies
    of one disease, as different as real studies, in folders a, b, ... The same options give the
    same study on every machine; truth.json has its effects.

    Examples:
        aam example --output-dir study
        aam example --output-dir studies --studies 4 --samples 60
    """

    output_dir: Path = required_option(
        "Folder for table.biom, tree.nwk, metadata.tsv, taxonomy.tsv and truth.json.", role="output"
    )
    samples: int = basic_option("Number of samples, per study.", default=150)
    studies: int = basic_option(
        "Case-control studies (column 'disease'), as different as real studies; 0: one study "
        "without a disease.",
        default=0,
    )
    asvs: int = basic_option("Number of ASVs, the tips of the tree.", default=500)
    length: int = option("Nucleotides of each sequence.", default=150)
    richness: int = option("Approximate number of ASVs in a sample.", default=60)
    depth: int = option("Mean number of reads in a sample.", default=4000)
    sites: int = option("Number of sites (categories).", default=3)
    subjects: int = option(
        "Number of subjects, per study; 0: one per three samples, with --studies one per sample.",
        default=0,
    )
    planted: int = option(
        "ASVs whose log abundances add up to the column 'response'; 0: no such column.", default=0
    )
    seed: int = basic_option("Random seed; the same seed gives the same study.", default=42)
    overwrite: bool = basic_option("Replace an existing study in the folder.", default=False)


@dataclass(frozen=True)
class Inspect:
    """Check a study before training: errors, warnings and facts, in seconds.

    With a metadata column also the plan of `aam train`: samples, splits, columns that may leak,
    time and memory. Nothing is trained or changed. The first error sets the exit status.

    Examples:
        aam inspect table.biom metadata.tsv age --report age.html
        aam inspect table.qza --sequences rep-seqs.qza --tree tree.qza --json
    """

    leading: ClassVar = ("--table", "--metadata", "--metadata-column")

    table: Path = required_option(TABLE_HELP)
    sequences: Path | None = SEQUENCES
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    tree: Path | None = basic_option("Phylogeny of the ASVs: Newick or .qza.")
    metadata: Path | None = basic_option("Sample metadata: TSV in QIIME 2 format.")
    metadata_column: str | None = basic_option("Metadata column to predict.", needs=("--metadata",))
    classifier: bool = basic_option(
        "Inspect the column as categories; the default if most values are words.",
        default=False,
        needs=("--metadata-column",),
    )
    ordinal: tuple[str, ...] = option(
        "Inspect the column as ordered categories, lowest first, as a,b,c.",
        default=(),
        excludes=("--classifier",),
        needs=("--metadata-column",),
        metavar="CATEGORY",
    )
    where: str | None = option(
        "Inspect only samples that meet a condition, see `aam train`.",
        needs=("--metadata-column",),
    )
    group_column: str | None = basic_option(
        "Metadata column of groups, such as subjects, that no split divides.",
        needs=("--metadata-column",),
    )
    study_column: str | None = basic_option(
        "Metadata column of studies; each is predicted by models of the others.",
        needs=("--metadata-column",),
    )
    members: tuple[MemberName, ...] = option(
        "Models to train. {choices}.", default=(), needs=("--metadata-column",)
    )
    json: bool = basic_option("Print the findings as JSON.", default=False)
    report: Path | None = basic_option(
        "HTML page to write: findings, and figures of reads, ASVs, overlaps and columns.",
        role="output",
    )


@dataclass(frozen=True)
class Unifrac:
    """Compute the UniFrac distance matrix or the Faith PD of a table.

    Examples:
        aam unifrac --table table.biom --tree tree.nwk --output d.tsv
        aam unifrac --table table.biom --tree tree.nwk --output pd.tsv \
        --unifrac-metric faith_pd
    """

    input: TableOptions
    tree: Path | None = basic_option(
        "Rooted phylogeny: Newick or .qza; not needed with a folder of `aam prepare`."
    )
    output: Path = required_option(
        "Matrix to write: .tsv or .lsmat, .npy (ids in a .txt), or .h5 of ssu; Faith PD is always "
        "a TSV.",
        role="output",
    )
    unifrac_metric: Metric = basic_option("UniFrac variant, or Faith PD.", default="unweighted")
    unifrac_alpha: float = UNIFRAC_ALPHA
    engine: Literal["auto", "torch", "ssu", "unifrac"] = option(
        "'ssu': program of unifrac-binaries; 'unifrac': its Python package; 'auto': torch.",
        default="auto",
        excludes={
            "ssu": "--unifrac-metric faith_pd",
            "unifrac": "--unifrac-metric faith_pd",
        },
    )
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT
    device: Device = option("Device for torch.", default="auto")
    overwrite: bool = basic_option("Replace an existing output file.", default=False)
