"""Every command of `aam`: its options, its one-line summary and its place in the help."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.field import (
    ABOVE_ZERO,
    BELOW_ONE,
    FEATURES,
    INSIDE_ONE,
    ONE_OR_MORE,
    UP_TO_ONE,
    WEIGHTS,
    option,
)
from aam.contract.options.groups import (
    AttnImplementation,
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


@dataclass(frozen=True)
class Simulate:
    """Make a study whose truth is known: tree, sequences, counts and metadata."""

    output_dir: Path = option("Folder for table.biom, tree.nwk and metadata.tsv.", role="output")
    samples: int = option("Number of samples.", default=200)
    asvs: int = option("Number of ASVs, the tips of the tree.", default=2000)
    length: int = option("Nucleotides of each sequence.", default=150)
    richness: int = option("ASVs that a sample holds, about.", default=185)
    depth: int = option("Mean number of reads of a sample.", default=10_000)
    sites: int = option("Levels of the site factor.", default=3)
    subjects: int = option("Subjects that the samples come from.", default=40)
    seed: int = option("Seed; the same seed gives the same study.", default=42)
    overwrite: bool = option("Replace a study that is already in the folder.", default=False)


@dataclass(frozen=True)
class Pretrain:
    """Learn without labels from masked nucleotides and UniFrac distances."""

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
        "Sample metadata; only needed for --group-column.", default=None, role="input"
    )
    pretrained_encoder: Path | None = option(
        "Checkpoint or run folder to start from, of this study or of another; it decides the "
        "encoder's shape.",
        default=None,
        role="input",
    )


@dataclass(frozen=True)
class Train:
    """Learn to predict a metadata column, from scratch or from a pretrained encoder."""

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
        "Checkpoint or run folder of `aam pretrain` to start from; it decides the encoder's shape.",
        default=None,
        role="input",
    )
    freeze_base: bool = option(
        "Keep the pretrained encoder as it is; every ASV is encoded once and remembered.",
        default=False,
    )
    folds: int = option(
        "Cross-validation: train this many models, each tested on another part; 1: one model.",
        default=1,
    )
    profile_features: int = option(
        "Features of the community profile, which is read beside the encoder; 0 leaves it out.",
        default=1024,
        takes=FEATURES,
    )
    profile_dropout: float = option(
        "Dropout of what reads the profile.", default=0.7, takes=BELOW_ONE
    )
    target_penalty: float = option("Weight of the target's loss.", default=1.0, takes=WEIGHTS)
    target_transform: TransformName = option(
        "Transform of a numeric target, fitted on the training samples and undone in every number "
        "shown.",
        default="zscore",
    )
    loss_type: LossType = option(
        "Loss of a numeric target, on the transformed scale.", default="huber"
    )
    quantiles: tuple[float, ...] = option(
        "Quantiles for --loss-type quantile.", default=(0.1, 0.5, 0.9), takes=INSIDE_ONE
    )
    over_penalty: float = option(
        "Asymmetric loss: weight of predictions above.", default=1.0, takes=WEIGHTS
    )
    under_penalty: float = option(
        "Asymmetric loss: weight of predictions below.", default=1.0, takes=WEIGHTS
    )
    class_weights: Literal["none", "balanced"] = option(
        "Weigh classes by their inverse frequency.", default="none"
    )
    best_metric: Literal["val_loss", "r2", "mae", "accuracy", "f1"] = option(
        "Validation figure that chooses best.ckpt.", default="val_loss"
    )


@dataclass(frozen=True)
class Predict:
    """Predict a column for the samples of a table from a checkpoint alone."""

    input: TableOptions
    device: DeviceOptions
    model: Path = option("Checkpoint or run folder of `aam train`.", role="input")
    output: Path = option("TSV of predictions to write.", role="output")
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    prediction_passes: int = option(
        "Rarefactions to average over; their spread is written too when there are several.",
        default=1,
        takes=ONE_OR_MORE,
    )
    overwrite: bool = option("Replace the output file.", default=False)


@dataclass(frozen=True)
class Embed:
    """Write the embedding of every sample, and a PCoA picture of them."""

    input: TableOptions
    device: DeviceOptions
    model: Path = option("Checkpoint or run folder of `aam pretrain` or `aam train`.", role="input")
    output_dir: Path = option(
        "Folder for embeddings.tsv, ordination.txt (PCoA) and pcoa.png.", role="output"
    )
    metadata: Path | None = option("Sample metadata.", default=None, role="input")
    color_by: str | None = option("Metadata column that colours the picture.", default=None)
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE)
    overwrite: bool = option("Replace files that are already there.", default=False)


@dataclass(frozen=True)
class Evaluate:
    """Measure predictions against metadata."""

    predictions: Path = option("TSV of `aam predict` or of a run folder.", role="input")
    metadata: Path = option("Sample metadata that holds the truth.", role="input")
    metadata_column: str = option("Column that was predicted.")
    classifier: bool = option("The column is a category.", default=False)
    output: Path | None = option("JSON file for the figures.", default=None, role="output")
    overwrite: bool = option("Replace the output file.", default=False)


@dataclass(frozen=True)
class Baseline:
    """Train a random forest on the same split, to know what a model has to beat."""

    input: TableOptions
    target: TargetOptions
    split: SplitOptions
    output_dir: Path = option("Folder for predictions.tsv and metrics.json.", role="output")
    folds: int = option("Cross-validation: number of parts; 1: one split.", default=1)
    n_estimators: int = option("Trees of the forest.", default=200)
    max_features: float = option("Part of the ASVs each split of a tree may use.", default=0.3)
    min_samples_leaf: int = option("Fewest samples of a leaf.", default=2)
    seed: int = option("Seed of the split and the forest.", default=42)
    n_jobs: int = option("Processor cores; -1 for all.", default=-1)
    overwrite: bool = option("Replace files that are already there.", default=False)


@dataclass(frozen=True)
class Unifrac:
    """Compute a whole UniFrac matrix (or Faith PD) of a table."""

    input: TableOptions
    tree: Path | None = option(
        "Rooted phylogeny: Newick or .qza; a folder of `aam prepare` has its own.",
        default=None,
        role="input",
    )
    output: Path = option(
        "Matrix to write: .tsv or .lsmat, .npy (ids in a .txt beside it), or .h5 as ssu writes it; "
        "Faith PD is always a TSV.",
        role="output",
    )
    unifrac_metric: Metric = option("Which measure.", default="unweighted")
    unifrac_alpha: float = option(
        "Alpha of generalized UniFrac, 0 to 1.", default=0.5, takes=UP_TO_ONE
    )
    engine: Literal["auto", "torch", "ssu"] = option(
        "'ssu' runs the program of unifrac-binaries; 'auto' takes torch.", default="auto"
    )
    drop_missing_asvs: bool = option(
        "Leave out ASVs that the tree lacks instead of refusing the table.", default=False
    )
    root_at_midpoint: bool = option(
        "Root the tree between the two tips that are farthest apart; trees without a root are "
        "refused otherwise.",
        default=False,
    )
    device: Literal["auto", "cpu", "cuda"] = option("Where torch computes.", default="auto")
    overwrite: bool = option("Replace the output file.", default=False)


@dataclass(frozen=True)
class Report:
    """Draw one self-contained HTML page about a run folder."""

    run_dir: Path = option("Run folder of `aam pretrain` or `aam train`.", role="input")
    output: Path | None = option(
        "Page to write; report.html in the run folder by default.", default=None, role="output"
    )
    metadata: Path | None = option(
        "Sample metadata for colours; by default the file that the run was trained with.",
        default=None,
        role="input",
    )
    color_by: str | None = option(
        "Metadata column that colours the embedding; the target by default.", default=None
    )


@dataclass(frozen=True)
class Check:
    """Measure whether this GPU, driver and PyTorch compute attention right."""

    device: Literal["auto", "cpu", "cuda"] = option(
        "'cuda' means any GPU, AMD's too; 'auto' takes a GPU where there is one.", default="auto"
    )
    quick: bool = option("Small probes and no times: seconds.", default=False)
    json: bool = option("Print the report as JSON.", default=False)
    timeout: float = option(
        "Seconds without a result after which a GPU is taken to hang.",
        default=120.0,
        takes=ABOVE_ZERO,
    )


@dataclass(frozen=True)
class Prepare:
    """Write a study once as files that every command maps as its --table.

    The folder stands for table, sequences and tree, and for --metadata where that was given here.
    """

    input: TableOptions
    tree: Path | None = option("Rooted phylogeny: Newick or .qza.", default=None, role="input")
    metadata: Path | None = option(
        "Sample metadata (TSV, QIIME 2's rules) to keep with the samples.",
        default=None,
        role="input",
    )
    output: Path | None = option("Folder to write, such as study.aam.", default=None, role="output")
    drop_missing_asvs: bool = option(
        "Leave out ASVs that the tree lacks instead of refusing the table.", default=False
    )
    root_at_midpoint: bool = option(
        "Root the tree between the two tips that are farthest apart; trees without a root are "
        "refused otherwise.",
        default=False,
    )
    verify: bool = option(
        "Write nothing; compare every byte of the folder that --table names with its checksums.",
        default=False,
    )
    overwrite: bool = option("Replace the output.", default=False)


@dataclass(frozen=True)
class GoldenOptions:
    """What computes the golden case; nothing is checked first, and no backend replaced if wrong."""

    device: Literal["auto", "cpu", "cuda"] = option(
        "'cuda' means any GPU, AMD's too; 'auto' takes a GPU where there is one.", default="auto"
    )
    attn_implementation: AttnImplementation = option(
        "Attention kernel ('sdpa' is another word for auto).", default="auto"
    )
    mixed_precision: MixedPrecision = option(
        "Precision of the matrix products; 'auto': bf16 on a GPU that has it, else none.",
        default="none",
    )


@dataclass(frozen=True)
class GoldenGenerate:
    """Compute a small fixed case on this stack and keep every stage of it."""

    stack: GoldenOptions
    golden_dir: Path = option(
        "Folder for the golden files; `--golden-dir` may be left out.", role="output", first=True
    )
    overwrite: bool = option("Replace the golden files of the folder.", default=False)


@dataclass(frozen=True)
class GoldenCompare:
    """Compute the same case here and name the first stage that differs; status 1 if any."""

    stack: GoldenOptions
    golden_dir: Path = option(
        "Folder of `aam golden generate`; `--golden-dir` may be left out.", role="input", first=True
    )
    json: bool = option("Print the comparison as JSON.", default=False)


COMMANDS: dict[str, dict[str, type]] = {
    "Learn": {"pretrain": Pretrain, "train": Train},
    "Use": {"predict": Predict, "embed": Embed, "evaluate": Evaluate, "report": Report},
    "Compare": {"baseline": Baseline, "unifrac": Unifrac},
    "Large studies": {"prepare": Prepare},
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


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Take the name of a command, of one or two words, off the front of a command line.

    What is no command comes back as its first word.
    """
    two = " ".join(words[:2])
    if len(words) > 1 and find(two) is not None:
        return two, list(words[2:])
    return (words[0] if words else ""), list(words[1:])
