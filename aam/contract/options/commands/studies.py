"""Options of the commands that read or write a study: no model is involved."""

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
    UNIFRAC_ALPHA,
    Device,
    MemberName,
    Metric,
    TableOptions,
)


@dataclass(frozen=True)
class Prepare:
    """Join studies, or store a large one, in a folder that every command reads as --table.

    The folder replaces table, sequences and tree, and --metadata and --taxonomy if these are given
    here. ASVs of several tables with the same sequence are one ASV.

    Examples:
        aam prepare --table table.biom --tree tree.nwk --output study.aam
        aam prepare --table a.biom --table b.biom --metadata a.tsv --metadata b.tsv --studies a,b \
        --output both.aam
    """

    table: tuple[Path, ...] = required_option(
        "Feature table: BIOM, TSV, or QIIME 2 artifact (.qza); once for each table.", repeated=True
    )
    sequences: tuple[Path, ...] = basic_option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes; once "
        "for each table, or once for all.",
        default=(),
        repeated=True,
    )
    tree: Path | None = basic_option("Rooted phylogeny: Newick or .qza.")
    metadata: tuple[Path, ...] = basic_option(
        "Sample metadata to store with the samples: TSV as QIIME 2 reads it; once for each table, "
        "or once for all.",
        default=(),
        repeated=True,
    )
    taxonomy: tuple[Path, ...] = basic_option(
        "Taxonomy to store, for --taxonomy of other commands: TSV of QIIME 2 or .qza; once for "
        "each table, or once for all.",
        default=(),
        repeated=True,
    )
    output: Path | None = basic_option("Folder to write, such as study.aam.", role="output")
    studies: tuple[str, ...] = basic_option(
        "Names of the studies, one for each table, as a,b: the metadata get a column `study`, and "
        "ASVs are cut to their common length.",
        default=(),
        metavar="STUDY",
    )
    relabel: tuple[str, ...] = RELABEL
    relabel_file: Path | None = RELABEL_FILE
    trim_length: int | Literal["auto"] = basic_option(
        "Nucleotides to keep of each sequence; ASVs that are then equal are joined. 0: all. "
        "'auto': with --studies of different lengths, what 99 % of the ASVs of each have; else "
        "all.",
        default="auto",
        takes=ZERO_OR_MORE,
    )
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT
    max_memory_gb: float | Literal["auto"] = MAX_MEMORY_GB
    verify: bool = basic_option(
        "Write nothing; compare the files of the folder given as --table with their checksums.",
        default=False,
    )
    overwrite: bool = basic_option("Replace an existing output.", default=False)


@dataclass(frozen=True)
class Example:
    """Write a simulated study with known effects, on which the commands of the tutorial run.

    By default 150 samples of 50 subjects, whose communities follow a pH. With --studies several
    studies of one disease, as different as real ones, in folders a, b and so on. The same
    options give the same study everywhere; truth.json has its effects.

    Examples:
        aam example --output-dir study
        aam example --output-dir studies --studies 4 --samples 60
    """

    output_dir: Path = required_option(
        "Folder for table.biom, tree.nwk, metadata.tsv, taxonomy.tsv and truth.json.", role="output"
    )
    samples: int = basic_option("Number of samples, of each study.", default=150)
    studies: int = basic_option(
        "Studies with cases and controls (column 'disease'), as different as real ones; 0: one "
        "study without a disease.",
        default=0,
    )
    asvs: int = basic_option("Number of ASVs, the tips of the tree.", default=500)
    length: int = option("Nucleotides of each sequence.", default=150)
    richness: int = option("Approximate number of ASVs in a sample.", default=60)
    depth: int = option("Mean number of reads in a sample.", default=4000)
    sites: int = option("Number of sites (categories).", default=3)
    subjects: int = option(
        "Number of subjects, of each study; 0: one for three samples, for each with --studies.",
        default=0,
    )
    planted: int = option(
        "ASVs whose log abundances sum to the column 'response'; 0: no such column.", default=0
    )
    seed: int = basic_option("Seed; the same seed gives the same study.", default=42)
    overwrite: bool = basic_option("Replace an existing study in the folder.", default=False)


@dataclass(frozen=True)
class Inspect:
    """Look at a study before any training: all that is wrong or noteworthy, in seconds.

    With a metadata column also what `aam train` would do with it: samples, splits, columns that
    may leak, time and memory. Nothing is trained or changed. The exit status is that
    of the first error.

    Examples:
        aam inspect table.biom metadata.tsv age --report age.html
        aam inspect table.qza --sequences rep-seqs.qza --tree tree.qza --json
    """

    leading: ClassVar = ("--table", "--metadata", "--metadata-column")

    table: Path = required_option(
        "Feature table: BIOM, TSV, QIIME 2 artifact (.qza), or the folder of `aam prepare`."
    )
    sequences: Path | None = basic_option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes."
    )
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    tree: Path | None = basic_option("Phylogeny of the ASVs: Newick or .qza.")
    metadata: Path | None = basic_option("Sample metadata: TSV as QIIME 2 reads it.")
    metadata_column: str | None = basic_option("Metadata column to predict.", needs=("--metadata",))
    classifier: bool = basic_option(
        "Inspect the column as categories. Without the option: if most values are words.",
        default=False,
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
        needs=("--metadata-column",),
    )
    group_column: str | None = basic_option(
        "Metadata column of groups that no split divides, such as subjects.",
        needs=("--metadata-column",),
    )
    study_column: str | None = basic_option(
        "Metadata column of studies; models of the others predict each.",
        needs=("--metadata-column",),
    )
    members: tuple[MemberName, ...] = option(
        "Models to train. {choices}.", default=(), needs=("--metadata-column",)
    )
    json: bool = basic_option("Print the findings as JSON.", default=False)
    report: Path | None = basic_option(
        "HTML page to write: the findings, with pictures of reads, ASVs, overlaps and columns.",
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
        "Rooted phylogeny: Newick or .qza; a folder of `aam prepare` contains one."
    )
    output: Path = required_option(
        "Matrix to write: .tsv or .lsmat, .npy (with the ids in a .txt), or .h5 of ssu; "
        "Faith PD is always a TSV.",
        role="output",
    )
    unifrac_metric: Metric = basic_option("UniFrac variant, or Faith PD.", default="unweighted")
    unifrac_alpha: float = UNIFRAC_ALPHA
    engine: Literal["auto", "torch", "ssu", "unifrac"] = option(
        "'ssu' runs the program of unifrac-binaries, 'unifrac' its Python package; 'auto' is "
        "torch.",
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
