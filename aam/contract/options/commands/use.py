"""Options of the commands that use a trained model or its results."""

from pathlib import Path
from typing import ClassVar, Literal

from aam.contract.dataclass import dataclass
from aam.contract.options import ONE_OR_MORE, basic_option, option, required_option
from aam.contract.options.groups import (
    DROP_EMPTY_SAMPLES,
    GROUP_VALUES,
    MAX_MEMORY_GB,
    RELABEL,
    RELABEL_FILE,
    AsvVectorOptions,
    DeviceOptions,
    GroupValues,
    RankOptions,
    TableOptions,
)


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict a metadata column for the samples of a table with a trained model.

    Examples:
        aam predict age new.biom --output ages.tsv --explain why.tsv
        aam predict --table new.biom --model age --output ages.tsv \
        --prediction-passes 10 --overwrite
    """

    leading: ClassVar = ("--model", "--table")

    input: TableOptions
    device: DeviceOptions
    scale: RankOptions
    model: Path = required_option("Checkpoint or run folder of `aam train`.")
    output: Path = required_option("Predictions file to write (TSV).", role="output")
    vectors: AsvVectorOptions
    metadata: Path | None = option(
        "Sample metadata, for a model that reads metadata columns. Only samples that meet --where "
        "of the training are predicted."
    )
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    prediction_passes: int = option(
        "Rarefactions to average; more than one also give a standard deviation.",
        default=1,
        takes=ONE_OR_MORE,
    )
    explain: Path | None = basic_option(
        "Table to write (TSV): the largest effects of ASVs and metadata columns on each "
        "prediction, and a remainder; they add up to the prediction.",
        role="output",
    )
    taxonomy: Path | None = option(
        "Taxonomy of the ASVs, as in `aam train`: --explain adds up the ASVs of a taxon.",
        needs=("--explain",),
    )
    force: bool = option("Predict even if the table has no ASV of the training.", default=False)
    overwrite: bool = basic_option("Replace an existing output file.", default=False)


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Compute the embedding of every sample and draw a PCoA plot.

    Examples:
        aam embed --table table.biom --model run --output-dir embedding
        aam embed --table table.biom --model run --output-dir embedding \
        --metadata metadata.tsv --color-by age
    """

    input: TableOptions
    device: DeviceOptions
    scale: RankOptions
    model: Path = required_option("Checkpoint or run folder of `aam pretrain` or `aam train`.")
    output_dir: Path = required_option(
        "Folder for embeddings.tsv, ordination.txt (PCoA) and pcoa.png.", role="output"
    )
    vectors: AsvVectorOptions
    metadata: Path | None = basic_option("Sample metadata.")
    color_by: str | None = basic_option(
        "Metadata column for the colours of the plot.", needs=("--metadata",)
    )
    categories: tuple[str, ...] = option(
        "Metadata columns whose numbers are categories.",
        default=(),
        only_with=("--color-by",),
    )
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    overwrite: bool = basic_option("Replace existing files.", default=False)


@dataclass(frozen=True)
class ImportanceOptions:
    """Rank the ASVs of a table by importance for a model's predictions.

    Examples:
        aam importance age table.biom --output age/importance.tsv --taxonomy taxonomy.qza
        aam importance --table table.biom --model age --output importance.tsv \
        --method permutation --metadata metadata.tsv --group-column subject
    """

    leading: ClassVar = ("--model", "--table")

    input: TableOptions
    device: DeviceOptions
    model: Path = required_option("Checkpoint or run folder of `aam train`.")
    output: Path = required_option(
        "Table to write (TSV); QIIME 2 reads it as feature metadata.", role="output"
    )
    taxonomy: Path | None = basic_option(
        "Taxonomy of the ASVs: TSV of QIIME 2 (Feature ID, Taxon), .qza, or folder of `aam "
        "prepare`."
    )
    method: Literal["effects", "permutation"] = basic_option(
        "effects: derivatives of the kernel, impurity decrease of the forest, integrated gradients "
        "of the transformer; permutation: also permute the reads of the first ASVs.",
        default="effects",
    )
    attention: str | None = basic_option(
        "Write the attention of the transformer to the ASVs of this sample instead, and a picture "
        "(.png) beside --output.",
        metavar="SAMPLE",
    )
    clades: Path | None = basic_option(
        "Table to write (TSV): importance summed over the ASVs of each taxon.",
        role="output",
        needs=("--taxonomy",),
        excludes=("--attention",),
    )
    first: int = option(
        "Number of ASVs to permute.",
        default=100,
        takes=ONE_OR_MORE,
        only_with=("--method permutation",),
    )
    metadata: Path | None = option(
        "Sample metadata, for a model that reads metadata columns and for --group-column. Only "
        "samples that meet --where of the training are used."
    )
    group_column: str | None = option(
        "Metadata column of groups; reads are permuted within groups.",
        needs=("--metadata",),
        only_with=("--method permutation",),
    )
    overwrite: bool = basic_option("Replace an existing output file.", default=False)


@dataclass(frozen=True)
class Export:
    """Export the ASV encoder of each network of a model as ONNX.

    The output of each file in ONNX Runtime is compared with PyTorch.

    Examples:
        aam export --model runs/age-transformer --output-dir onnx
        aam export --model encoder --output-dir onnx --overwrite
    """

    model: Path = required_option("Checkpoint or run folder of `aam pretrain` or `aam train`.")
    output_dir: Path = required_option("Folder for asv_encoder.onnx.", role="output")
    overwrite: bool = basic_option("Replace existing files.", default=False)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score predictions against metadata, or a model on the samples of another study.

    Examples:
        aam evaluate age other.biom other.tsv age --output age-elsewhere
        aam evaluate --predictions classes.tsv --metadata metadata.tsv \
        --metadata-column diagnosis --output metrics.json --by site sex
    """

    leading: ClassVar = ("--model", "--table", "--metadata", "--metadata-column")

    model: Path | None = basic_option(
        "Run folder of `aam train`: its model predicts the samples of --table; scores, predictions "
        "and a report are written. The model sets the type of the target.",
        needs=("--table", "--output"),
        excludes=("--predictions", "--classifier", "--ordinal"),
    )
    predictions: Path | None = basic_option(
        "Predictions file (TSV) of `aam predict` or a run folder, instead of --model."
    )
    table: Path | None = basic_option(
        "Feature table of the other study: BIOM, TSV, QIIME 2 artifact (.qza), or the folder of "
        "`aam prepare`.",
        needs=("--model",),
    )
    sequences: Path | None = basic_option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes.",
        needs=("--table",),
    )
    metadata: Path = required_option("Sample metadata with the true values.")
    metadata_column: str = required_option("Metadata column with the true values.")
    group_column: str | None = basic_option(
        "Metadata column of groups, such as subjects: their samples are not independent.",
        needs=("--model",),
    )
    study_column: str | None = basic_option(
        "Metadata column of the studies in --table: each is scored alone and summarised as in `aam "
        "train`.",
        needs=("--model",),
    )
    group_values: GroupValues = GROUP_VALUES
    by: tuple[str, ...] = basic_option(
        "Metadata columns: also score the samples of each value; many numbers are split into four "
        "bins.",
        default=(),
        metavar="COLUMN",
    )
    classifier: bool = basic_option(
        "The column is a category, the default for words.", default=False
    )
    ordinal: tuple[str, ...] = basic_option(
        "The column is an ordered category: all categories, lowest first, as a,b,c.",
        default=(),
        excludes=("--classifier",),
        metavar="CATEGORY",
    )
    relabel: tuple[str, ...] = RELABEL
    relabel_file: Path | None = RELABEL_FILE
    where: str | None = option("Score only samples that meet a condition, as in `aam train`.")
    output: Path | None = basic_option(
        "JSON file for the metrics; with --model the folder for scores, predictions and report.",
        role="output",
    )
    overwrite: bool = basic_option("Replace an existing output.", default=False)
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    max_memory_gb: float | Literal["auto"] = MAX_MEMORY_GB
    device: DeviceOptions

    @property
    def uses_network(self) -> bool:
        """Whether it may compute with the network of a model."""
        return self.model is not None


FigureFormat = Literal["pdf", "png", "svg", "tiff"]
FigureWidth = Literal["one-column", "two-column"]


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run again, with other colours, a unit, or figures as files.

    Examples:
        aam report age
        aam report age --color-by sex site --unit months
    """

    run_dir: Path = required_option(
        "Run folder of `aam pretrain` or `aam train`; `--run-dir` can be omitted.", first=True
    )
    output: Path | None = basic_option(
        "HTML file to write; report.html in the run folder by default.", role="output"
    )
    metadata: Path | None = basic_option(
        "Sample metadata for colours; the metadata of the run by default."
    )
    color_by: tuple[str, ...] = basic_option(
        "Metadata columns for colours of the embedding and scores by category. Default: target, "
        "group column and columns with few values.",
        default=(),
        metavar="COLUMN",
    )
    categories: tuple[str, ...] = option(
        "Metadata columns whose numbers are categories.", default=()
    )
    unit: str = basic_option("Unit of a numeric target, such as months.", default="")
    figures: Path | None = basic_option(
        "Folder for the figures as files, each with its numbers as TSV.", role="output"
    )
    format: FigureFormat = option("Format of --figures.", default="pdf", only_with=("--figures",))
    width: FigureWidth = option(
        "Width of --figures in columns of a journal: 85 or 178 mm.",
        default="one-column",
        only_with=("--figures",),
    )
    methods: bool = basic_option(
        "Print the methods paragraph for a paper and its references.", default=False
    )


@dataclass(frozen=True)
class Compare:
    """Compare runs: table of metrics on common samples, and an HTML page.

    Examples:
        aam compare run1 run2
        aam compare run1 run2 run3 --output compare.html
    """

    run_dirs: tuple[Path, ...] = required_option(
        "Run folders of `aam train`; `--run-dirs` can be omitted.", first=True
    )
    output: Path | None = basic_option("HTML file to write.", role="output")
