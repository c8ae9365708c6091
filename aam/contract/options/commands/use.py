"""Options of the commands that read a trained model or its results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.device import DeviceOptions, RankOptions
from aam.contract.options.field import ONE_OR_MORE, option
from aam.contract.options.study import TAXONOMY, AsvVectorOptions, TableOptions


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict a metadata column for the samples of a table with a trained model.

    Examples:
        aam predict --table new.biom --model age --output ages.tsv --explain why.tsv
        aam predict --table new.biom --model age --output ages.tsv \
        --prediction-passes 10 --overwrite
    """

    input: TableOptions
    device: DeviceOptions
    scale: RankOptions
    model: Path = option("Checkpoint or run folder of `aam train`.", role="input")
    output: Path = option("Predictions file to write (TSV).", role="output")
    vectors: AsvVectorOptions
    metadata: Path | None = option(
        "Sample metadata; required by a model that reads metadata columns. Restricts the table to "
        "samples that meet the training's --where.",
        default=None,
        role="input",
    )
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    prediction_passes: int = option(
        "Rarefactions to average over; with several, the standard deviation is written too.",
        default=1,
        takes=ONE_OR_MORE,
    )
    explain: Path | None = option(
        "Table to write (TSV): the ASVs and metadata columns that moved the prediction of each "
        "sample most, with a remainder; they add up to the prediction.",
        default=None,
        role="output",
        basic=True,
    )
    taxonomy: Path | None = option(
        "Taxonomy of the ASVs, TSV of QIIME 2 or .qza: --explain sums the ASVs of a taxon.",
        default=None,
        role="input",
        needs=("--explain",),
    )
    force: bool = option(
        "Predict also where no ASV of the table occurs in the training data.", default=False
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Compute the embedding of every sample, and a PCoA plot.

    Examples:
        aam embed --table table.biom --model run --output-dir embedding
        aam embed --table table.biom --model run --output-dir embedding \
        --metadata metadata.tsv --color-by age
    """

    input: TableOptions
    device: DeviceOptions
    scale: RankOptions
    model: Path = option("Checkpoint or run folder of `aam pretrain` or `aam train`.", role="input")
    output_dir: Path = option(
        "Folder for embeddings.tsv, ordination.txt (PCoA) and pcoa.png.", role="output"
    )
    vectors: AsvVectorOptions
    metadata: Path | None = option("Sample metadata.", default=None, role="input", basic=True)
    color_by: str | None = option(
        "Metadata column that colours the plot.",
        default=None,
        basic=True,
        needs=("--metadata",),
    )
    categories: tuple[str, ...] = option(
        "Metadata columns whose numbers are names of categories.",
        default=(),
        only_with=("--color-by",),
    )
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    overwrite: bool = option("Replace existing files.", default=False, basic=True)


@dataclass(frozen=True)
class ImportanceOptions:
    """Rank the ASVs of a table by how much a model's predictions depend on them.

    Examples:
        aam importance --table table.biom --model age --output age/importance.tsv \
        --taxonomy taxonomy.qza
        aam importance --table table.biom --model age --output importance.tsv \
        --method permutation --metadata metadata.tsv --group-column subject
    """

    input: TableOptions
    device: DeviceOptions
    model: Path = option("Checkpoint or run folder of `aam train`.", role="input")
    output: Path = option(
        "Table to write (TSV), which QIIME 2 reads as feature metadata.", role="output"
    )
    taxonomy: Path | None = TAXONOMY
    method: Literal["effects", "permutation"] = option(
        "effects: derivatives of the kernel, impurity decrease of the forest and integrated "
        "gradients of the transformer; permutation: also permute the reads of the first ASVs, and "
        "rank them by the change of the predictions.",
        default="effects",
        basic=True,
    )
    attention: str | None = option(
        "Sample: write the attention of the transformer to each of its ASVs instead, and a picture "
        "of it beside --output (.png).",
        default=None,
        metavar="SAMPLE",
        basic=True,
    )
    clades: Path | None = option(
        "Table to write (TSV): the importance summed over the ASVs of each taxon of each rank.",
        default=None,
        role="output",
        basic=True,
        needs=("--taxonomy",),
        excludes=("--attention",),
    )
    first: int = option(
        "Number of ASVs whose reads are permuted.",
        default=100,
        takes=ONE_OR_MORE,
        only_with=("--method permutation",),
    )
    metadata: Path | None = option(
        "Sample metadata; required by a model that reads metadata columns, and for --group-column. "
        "Restricts the table to samples that meet the training's --where.",
        default=None,
        role="input",
    )
    group_column: str | None = option(
        "Metadata column of groups within which reads are permuted.",
        default=None,
        needs=("--metadata",),
        only_with=("--method permutation",),
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Export:
    """Export the ASV encoder of each network of a model as ONNX.

    ONNX Runtime runs each file, and its output is compared with that of PyTorch.

    Examples:
        aam export --model runs/age-transformer --output-dir onnx
        aam export --model encoder --output-dir onnx --overwrite
    """

    model: Path = option("Checkpoint or run folder of `aam pretrain` or `aam train`.", role="input")
    output_dir: Path = option("Folder for asv_encoder.onnx.", role="output")
    overwrite: bool = option("Replace existing files.", default=False, basic=True)


@dataclass(frozen=True)
class Evaluate:
    """Compute the metrics of predictions against metadata.

    Examples:
        aam evaluate --predictions ages.tsv --metadata metadata.tsv \
        --metadata-column age
        aam evaluate --predictions classes.tsv --metadata metadata.tsv \
        --metadata-column diagnosis --classifier --output metrics.json --by site sex
    """

    predictions: Path = option(
        "Predictions file (TSV) of `aam predict` or of a run folder.", role="input"
    )
    metadata: Path = option("Sample metadata with the true values.", role="input")
    metadata_column: str = option("Metadata column that was predicted.")
    by: tuple[str, ...] = option(
        "Metadata columns: also the metrics of each value; many numbers are put into four bins.",
        default=(),
        metavar="COLUMN",
        basic=True,
    )
    classifier: bool = option("The column is a category.", default=False, basic=True)
    ordinal: tuple[str, ...] = option(
        "The column is an ordered category: all of its categories, the lowest first, as a,b,c.",
        default=(),
        excludes=("--classifier",),
        metavar="CATEGORY",
        basic=True,
    )
    where: str | None = option(
        "Score only samples whose metadata meet a condition, as in `aam train`.", default=None
    )
    output: Path | None = option(
        "JSON file for the metrics.", default=None, role="output", basic=True
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run, as `aam train` does, with other colours or a unit.

    Examples:
        aam report age
        aam report age --color-by sex site --unit months
    """

    run_dir: Path = option(
        "Run folder of `aam pretrain` or `aam train`; `--run-dir` can be omitted.",
        role="input",
        first=True,
    )
    output: Path | None = option(
        "HTML file to write; report.html in the run folder by default.",
        default=None,
        role="output",
        basic=True,
    )
    metadata: Path | None = option(
        "Sample metadata for colours; the metadata of the run by default.",
        default=None,
        role="input",
        basic=True,
    )
    color_by: tuple[str, ...] = option(
        "Metadata columns to choose from as colours of the embedding, and to score by; the target, "
        "the group column and columns with few values by default.",
        default=(),
        metavar="COLUMN",
        basic=True,
    )
    categories: tuple[str, ...] = option(
        "Metadata columns whose numbers are names of categories.", default=()
    )
    unit: str = option("Unit of a numeric target, such as months.", default="", basic=True)


@dataclass(frozen=True)
class Compare:
    """Compare runs: a table of their metrics on common samples, and an HTML page.

    Examples:
        aam compare run1 run2
        aam compare run1 run2 run3 --output compare.html
    """

    run_dirs: tuple[Path, ...] = option(
        "Run folders of `aam train`; `--run-dirs` can be omitted.", role="input", first=True
    )
    output: Path | None = option("HTML file to write.", default=None, role="output", basic=True)
