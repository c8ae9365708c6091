"""Commands of `aam`: options, one-line summary and group in the help page."""

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aam.contract.errors import UsageError
from aam.contract.options.command_line import CONFIG, parse_options, require_all
from aam.contract.options.field import (
    ABOVE_ZERO,
    BELOW_ONE,
    FEATURES,
    GIBIBYTES,
    INSIDE_ONE,
    ONE_OR_MORE,
    UP_TO_ONE,
    WEIGHTS,
    OptionSpec,
    option,
    specs,
)
from aam.contract.options.groups import (
    DEVICE_HELP,
    DROP_MISSING_HELP,
    MIDPOINT_HELP,
    AttnImplementation,
    Device,
    DeviceOptions,
    LoopOptions,
    LossType,
    MaskOptions,
    Metric,
    MixedPrecision,
    ModelOptions,
    PhylogenyOptions,
    RunOptions,
    SampleOptions,
    ScaleOptions,
    SpeedOptions,
    SplitOptions,
    TableOptions,
    TargetOptions,
    TrainLoopOptions,
    TransformName,
)
from aam.contract.suggestions import nearest


@dataclass(frozen=True)
class Simulate:
    """Simulate a study with known effects: tree, sequences, counts and metadata.

    Examples:
        aam simulate --output-dir study
        aam simulate --output-dir small --samples 60 --asvs 300 --seed 1
    """

    output_dir: Path = option("Folder for table.biom, tree.nwk and metadata.tsv.", role="output")
    samples: int = option("Number of samples.", default=200, basic=True)
    asvs: int = option("Number of ASVs, the tips of the tree.", default=2000, basic=True)
    length: int = option("Nucleotides of each sequence.", default=150)
    richness: int = option("Approximate number of ASVs in a sample.", default=185)
    depth: int = option("Mean number of reads in a sample.", default=10_000)
    sites: int = option("Number of sites (categories).", default=3)
    subjects: int = option("Number of subjects.", default=40)
    seed: int = option("Seed; the same seed gives the same study.", default=42, basic=True)
    overwrite: bool = option("Replace an existing study in the folder.", default=False, basic=True)


@dataclass(frozen=True)
class Pretrain:
    """Pretrain an encoder without labels, on masked nucleotides and UniFrac distances.

    Examples:
        aam pretrain --table table.biom --tree tree.nwk --output-dir run
        aam pretrain --config pretrain.yaml --output-dir run2 --seed 2
    """

    input: TableOptions
    phylogeny: PhylogenyOptions
    run: RunOptions
    sample: SampleOptions
    model: ModelOptions
    task: MaskOptions
    split: SplitOptions
    loop: LoopOptions
    speed: SpeedOptions
    device: DeviceOptions
    scale: ScaleOptions
    metadata: Path | None = option(
        "Sample metadata; only needed for --group-column.",
        default=None,
        role="input",
        basic=True,
    )
    pretrained_encoder: Path | None = option(
        "Checkpoint or run folder to start from, of this or another study; it determines the "
        "sizes of the encoder.",
        default=None,
        role="input",
        basic=True,
    )


MemberName = Literal["kernel", "forest", "transformer"]


@dataclass(frozen=True)
class Train:
    """Train a model that predicts a metadata column, from scratch or a pretrained encoder.

    Examples:
        aam train --table table.biom --metadata metadata.tsv \
        --metadata-column age --pretrained-encoder run --output-dir age
        aam train --table table.biom --metadata metadata.tsv \
        --metadata-column diagnosis --classifier --folds 5 --output-dir cv
    """

    input: TableOptions
    target: TargetOptions
    phylogeny: PhylogenyOptions
    run: RunOptions
    sample: SampleOptions
    model: ModelOptions
    task: MaskOptions
    split: SplitOptions
    loop: TrainLoopOptions
    speed: SpeedOptions
    device: DeviceOptions
    scale: ScaleOptions
    pretrained_encoder: Path | None = option(
        "Checkpoint or run folder of `aam pretrain` to start from; it determines the sizes of the "
        "encoder.",
        default=None,
        role="input",
        basic=True,
    )
    freeze_base: bool = option(
        "Do not train the pretrained encoder; every ASV is encoded once.",
        default=False,
        basic=True,
    )
    members: tuple[MemberName, ...] = option(
        "Models to train; several are combined. kernel: ridge regression on the exact kernel of "
        "the sequences; forest: random forest on relative abundances; transformer: the network. "
        "Without the option: kernel and forest, or with --pretrained-encoder the transformer.",
        default=(),
        basic=True,
        resumable=True,
    )
    folds: int | Literal["auto"] = option(
        "Cross-validation: number of folds, each predicted by models of the others; 1: one split. "
        "'auto': 5, or 1 with the transformer, which takes long to train.",
        default="auto",
        basic=True,
    )
    profile_features: int = option(
        "Features of the community profile, an input besides the encoder; 0: no profile.",
        default=1024,
        takes=FEATURES,
    )
    profile_dropout: float = option(
        "Dropout of the layers that read the profile.", default=0.7, takes=BELOW_ONE
    )
    target_penalty: float = option("Weight of the target's loss.", default=1.0, takes=WEIGHTS)
    target_transform: TransformName = option(
        "Transform of a numeric target, fitted on training samples and undone in every result.",
        default="zscore",
    )
    loss_type: LossType = option(
        "Loss of a numeric target, on the transformed scale.", default="huber"
    )
    quantiles: tuple[float, ...] = option(
        "Quantiles for --loss-type quantile.", default=(0.1, 0.5, 0.9), takes=INSIDE_ONE
    )
    over_penalty: float = option(
        "Asymmetric loss: weight of predictions above the true value.", default=1.0, takes=WEIGHTS
    )
    under_penalty: float = option(
        "Asymmetric loss: weight of predictions below the true value.", default=1.0, takes=WEIGHTS
    )
    class_weights: Literal["none", "balanced"] = option(
        "Weight of classes in the loss; balanced: inverse to their frequency.", default="none"
    )
    best_metric: Literal["val_loss", "r2", "mae", "accuracy", "f1"] = option(
        "Validation metric that chooses the best epoch (best.ckpt).", default="val_loss"
    )


@dataclass(frozen=True)
class Predict:
    """Predict a metadata column for the samples of a table with a trained model.

    Examples:
        aam predict --table new.biom --model age --output ages.tsv
        aam predict --table new.biom --model age --output ages.tsv \
        --prediction-passes 10 --overwrite
    """

    input: TableOptions
    device: DeviceOptions
    model: Path = option("Checkpoint or run folder of `aam train`.", role="input")
    output: Path = option("Predictions file to write (TSV).", role="output")
    metadata: Path | None = option(
        "Sample metadata; restricts the table to samples that meet the training's --where.",
        default=None,
        role="input",
    )
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    prediction_passes: int = option(
        "Rarefactions to average over; with several, the standard deviation is written too.",
        default=1,
        takes=ONE_OR_MORE,
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Embed:
    """Compute the embedding of every sample, and a PCoA plot.

    Examples:
        aam embed --table table.biom --model run --output-dir embedding
        aam embed --table table.biom --model run --output-dir embedding \
        --metadata metadata.tsv --color-by age
    """

    input: TableOptions
    device: DeviceOptions
    model: Path = option("Checkpoint or run folder of `aam pretrain` or `aam train`.", role="input")
    output_dir: Path = option(
        "Folder for embeddings.tsv, ordination.txt (PCoA) and pcoa.png.", role="output"
    )
    metadata: Path | None = option("Sample metadata.", default=None, role="input", basic=True)
    color_by: str | None = option(
        "Metadata column that colours the plot.", default=None, basic=True
    )
    categories: tuple[str, ...] = option(
        "Metadata columns whose numbers are names of categories.", default=()
    )
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    overwrite: bool = option("Replace existing files.", default=False, basic=True)


@dataclass(frozen=True)
class Importance:
    """Rank the ASVs of a table by how much a model's predictions depend on them.

    Examples:
        aam importance --table table.biom --model age --output age/importance.tsv
        aam importance --table table.biom --model age --output importance.tsv \
        --taxonomy taxonomy.qza
    """

    input: TableOptions
    model: Path = option(
        "Run folder of `aam train` with the member kernel or forest, or its ensemble.ckpt.",
        role="input",
    )
    output: Path = option(
        "Table to write (TSV), which QIIME 2 reads as feature metadata.", role="output"
    )
    taxonomy: Path | None = option(
        "Taxonomy of the ASVs: TSV of QIIME 2 (Feature ID, Taxon) or .qza.",
        default=None,
        role="input",
        basic=True,
    )
    metadata: Path | None = option(
        "Sample metadata; restricts the table to samples that meet the training's --where.",
        default=None,
        role="input",
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Evaluate:
    """Compute the metrics of predictions against metadata.

    Examples:
        aam evaluate --predictions ages.tsv --metadata metadata.tsv \
        --metadata-column age
        aam evaluate --predictions classes.tsv --metadata metadata.tsv \
        --metadata-column diagnosis --classifier --output metrics.json
    """

    predictions: Path = option(
        "Predictions file (TSV) of `aam predict` or of a run folder.", role="input"
    )
    metadata: Path = option("Sample metadata with the true values.", role="input")
    metadata_column: str = option("Metadata column that was predicted.")
    classifier: bool = option("The column is a category.", default=False, basic=True)
    where: str | None = option(
        "Score only samples whose metadata meet a condition, as in `aam train`.", default=None
    )
    output: Path | None = option(
        "JSON file for the metrics.", default=None, role="output", basic=True
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Baseline:
    """Train a random forest or a sequence kernel on the same split, as a baseline for a model.

    Examples:
        aam baseline --table table.biom --metadata metadata.tsv \
        --metadata-column age --output-dir forest
        aam baseline --member kernel --table table.biom --metadata metadata.tsv \
        --metadata-column age --splits age/splits.tsv --output-dir kernel
    """

    input: TableOptions
    target: TargetOptions
    split: SplitOptions
    output_dir: Path = option("Folder for predictions.tsv and metrics.json.", role="output")
    member: Literal["forest", "kernel"] = option(
        "'forest': random forest on relative abundances; 'kernel': ridge regression on the exact "
        "kernel of the sequences.",
        default="forest",
        basic=True,
    )
    folds: int = option("Cross-validation: number of folds; 1: one split.", default=1, basic=True)
    n_estimators: int = option("Number of trees.", default=200, basic=True)
    max_features: float = option(
        "Fraction of the ASVs considered at each split of a tree.", default=0.3
    )
    min_samples_leaf: int = option("Minimum number of samples in a leaf.", default=2)
    seed: int = option("Random seed of the split and the forest.", default=42)
    n_jobs: int = option("CPU cores; -1: all.", default=-1)
    overwrite: bool = option("Replace existing files.", default=False, basic=True)


@dataclass(frozen=True)
class Unifrac:
    """Compute the UniFrac distance matrix or the Faith PD of a table.

    Examples:
        aam unifrac --table table.biom --tree tree.nwk --output d.tsv
        aam unifrac --table table.biom --tree tree.nwk --output pd.tsv \
        --unifrac-metric faith_pd
    """

    input: TableOptions
    tree: Path | None = option(
        "Rooted phylogeny: Newick or .qza; a folder of `aam prepare` contains one.",
        default=None,
        role="input",
        basic=True,
    )
    output: Path = option(
        "Matrix to write: .tsv or .lsmat, .npy (with the ids in a .txt), or .h5 of ssu; "
        "Faith PD is always a TSV.",
        role="output",
    )
    unifrac_metric: Metric = option(
        "UniFrac variant, or Faith PD.", default="unweighted", basic=True
    )
    unifrac_alpha: float = option(
        "Alpha of generalized UniFrac, 0 to 1.", default=0.5, takes=UP_TO_ONE
    )
    engine: Literal["auto", "torch", "ssu"] = option(
        "'ssu' runs the program of unifrac-binaries; 'auto' is torch.", default="auto"
    )
    drop_missing_asvs: bool = option(DROP_MISSING_HELP, default=False)
    root_at_midpoint: bool = option(MIDPOINT_HELP, default=False)
    device: Device = option("Device for torch.", default="auto")
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Report:
    """Write an HTML report of a run folder.

    Examples:
        aam report --run-dir age
        aam report --run-dir age --color-by sex site --unit months
    """

    run_dir: Path = option("Run folder of `aam pretrain` or `aam train`.", role="input")
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


@dataclass(frozen=True)
class Check:
    """Measure whether this GPU, driver and PyTorch compute attention correctly.

    Examples:
        aam check
        aam check --quick --json
    """

    device: Device = option(DEVICE_HELP, default="auto", basic=True)
    quick: bool = option("Small probes without timing; takes seconds.", default=False, basic=True)
    json: bool = option("Print the report as JSON.", default=False, basic=True)
    timeout: float = option(
        "Seconds without a result after which a GPU counts as hanging.",
        default=120.0,
        takes=ABOVE_ZERO,
    )


@dataclass(frozen=True)
class Prepare:
    """Write a study as a folder that every command memory-maps as its --table.

    The folder replaces table, sequences and tree, and --metadata if that is given here.

    Examples:
        aam prepare --table table.biom --tree tree.nwk --output study.aam
        aam prepare --table study.aam --verify
    """

    input: TableOptions
    tree: Path | None = option(
        "Rooted phylogeny: Newick or .qza.", default=None, role="input", basic=True
    )
    metadata: Path | None = option(
        "Sample metadata to store with the samples: TSV as QIIME 2 reads it.",
        default=None,
        role="input",
        basic=True,
    )
    output: Path | None = option(
        "Folder to write, such as study.aam.", default=None, role="output", basic=True
    )
    drop_missing_asvs: bool = option(DROP_MISSING_HELP, default=False)
    root_at_midpoint: bool = option(MIDPOINT_HELP, default=False)
    verify: bool = option(
        "Write nothing; compare the files of the folder given as --table with their checksums.",
        default=False,
        basic=True,
    )
    overwrite: bool = option("Replace an existing output.", default=False, basic=True)


@dataclass(frozen=True)
class Profile:
    """Show what limits a run on a GPU, from the output of a profiler.

    Reads kernel statistics and traces of rocprof, rocprofv3 (CSV, JSON, rocpd), nsys (CSV) and
    torch.profiler (Chrome trace).

    Examples:
        aam profile results_stats.csv
        aam profile trace.json --compare trace_cuda.json --kernels 5
    """

    profile: Path = option(
        "Output of the profiler; `--profile` can be omitted.", role="input", first=True
    )
    compare: Path | None = option(
        "A second profile of the same work, for example on CUDA instead of ROCm.",
        default=None,
        role="input",
        basic=True,
    )
    kernels: int = option(
        "Kernels to list, longest first.", default=10, takes=ONE_OR_MORE, basic=True
    )
    json: bool = option("Print the result as JSON.", default=False, basic=True)


@dataclass(frozen=True)
class Memory:
    """Predict the peak memory of a pretraining step on a GPU, without one.

    Takes the options of `aam pretrain` that decide it; nothing is trained or written.

    Examples:
        aam memory --table table.biom --tree tree.nwk --batch-size 32
        aam memory --table table.biom --embedding-dim 768 --asv-chunk 256 --device-memory 16
    """

    input: TableOptions
    phylogeny: PhylogenyOptions
    sample: SampleOptions
    model: ModelOptions
    task: MaskOptions
    loop: LoopOptions
    speed: SpeedOptions
    device_memory: float | None = option(
        "Memory of a GPU in GiB: also find the largest --batch-size for it.",
        default=None,
        takes=GIBIBYTES,
        basic=True,
    )


@dataclass(frozen=True)
class GoldenOptions:
    """Device, attention and precision; a wrong attention kernel is not replaced."""

    device: Device = option(DEVICE_HELP, default="auto", basic=True)
    attn_implementation: AttnImplementation = option(
        "Attention kernel of PyTorch ('sdpa' is the same as auto).", default="auto"
    )
    mixed_precision: MixedPrecision = option(
        "Precision of the matrix products; 'auto': bf16 on a GPU that supports it, else none.",
        default="none",
    )


@dataclass(frozen=True)
class GoldenGenerate:
    """Compute a small fixed case on this stack and save the result of every stage.

    Examples:
        aam golden generate golden --device cpu
        aam golden generate golden --overwrite
    """

    stack: GoldenOptions
    golden_dir: Path = option(
        "Folder for the golden files; `--golden-dir` can be omitted.", role="output", first=True
    )
    overwrite: bool = option(
        "Replace existing golden files in the folder.", default=False, basic=True
    )


@dataclass(frozen=True)
class GoldenCompare:
    """Compute the same case here and print the first stage that differs; exit status 1 if any.

    Examples:
        aam golden compare golden
        aam golden compare golden --device cpu --json
    """

    stack: GoldenOptions
    golden_dir: Path = option(
        "Folder of `aam golden generate`; `--golden-dir` can be omitted.", role="input", first=True
    )
    json: bool = option("Print the comparison as JSON.", default=False, basic=True)


COMMANDS: dict[str, dict[str, type]] = {
    "Learn": {"pretrain": Pretrain, "train": Train},
    "Use": {
        "predict": Predict,
        "embed": Embed,
        "importance": Importance,
        "evaluate": Evaluate,
        "report": Report,
    },
    "Compare": {"baseline": Baseline, "compare": Compare, "unifrac": Unifrac},
    "Large studies": {"prepare": Prepare},
    "Performance": {"profile": Profile, "memory": Memory},
    "Try": {"simulate": Simulate},
    "Trust": {
        "check": Check,
        "golden generate": GoldenGenerate,
        "golden compare": GoldenCompare,
    },
}
"""Group of the help page -> command name -> its options."""


def find(name: str) -> type | None:
    """Return the options class of the command called `name`, or None."""
    return next((group[name] for group in COMMANDS.values() if name in group), None)


def names() -> tuple[str, ...]:
    """List the command names in the order of the help page."""
    return tuple(name for group in COMMANDS.values() for name in group)


@functools.cache
def options_of(command: str) -> tuple[OptionSpec, ...]:
    """Return the options of a command; none for an unknown name."""
    kind = find(command)
    return specs(kind) if kind is not None else ()


def parse_command(
    command: str,
    argv: Sequence[str],
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Return flag -> value of the options that a command line gives to a command of `aam`.

    --config is replaced by the options in its file. See `parse_options` for arguments and errors,
    `read_config` for those of the file.
    """
    options = (*options_of(command), CONFIG)
    given = parse_options(options, argv, command, program=program, others=others, incomplete=True)
    file = given.pop(CONFIG.flag, None)
    if file is not None:
        # PyYAML takes 10 ms, which only --config costs.
        from aam.contract.options.config_file import read_config

        given = {**read_config(file, options[:-1], command), **given}
    if not incomplete:
        require_all(options, given, command)
    return given


def split_command(
    argv: Sequence[str], more: Iterable[str] = (), program: str = "aam"
) -> tuple[str, list[str]]:
    """Split a command line into the name of its command, of one or two words, and the rest.

    Args:
        argv: the command and its options.
        more: commands besides those of `aam`.
        program: for messages.

    Raises:
        UsageError: there is no such command.
    """
    known = (*names(), *more)
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in known:
            return name, list(argv[words:])
    longer = [one for one in known if one.startswith(f"{name} ")]
    if longer:
        near = longer if len(argv) > 1 else ()
        remedy = nearest(" ".join(argv[:2]), near, f"give `{'` or `'.join(longer)}`")
        raise UsageError("A command of two words", f"`{name}`", remedy)
    remedy = nearest(name, known, f"see `{program} --help`")
    raise UsageError("No such command", f"'{name}'", remedy)
