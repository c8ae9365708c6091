"""Groups of options that several commands have, and the registry of the members of `aam train`.

Study (table, phylogeny, ASVs, split, target), computation (device, attention backend, precision,
processes) and training (sizes of the network, tasks, optimizer loop, run folder). Options have the
names of the public AAM program if they mean the same. The module needs no library.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from aam.contract.dataclass import dataclass
from aam.contract.options import (
    BELOW_ONE,
    EVERY_MEMBER,
    GIBIBYTES,
    ONE_OR_MORE,
    WEIGHTS,
    ZERO_OR_MORE,
    Range,
    basic_option,
    option,
    required_option,
    resumable_option,
)

_PROCESSES = Range("0 to 1024", 0, 1024)
_UP_TO_ONE = Range("0 to 1", 0, 1)
_WIDTHS = Range("1 to 65536", 1, 65_536)

# --- members


@dataclass(frozen=True)
class MemberEntry:
    """Declaration of a member."""

    title: str  # noun in messages and reports
    help: str  # description of the model for help pages
    module: str = ""  # module with `MEMBER`, imported on use; "" for a network
    default: bool = False  # whether it is trained by default
    network: bool = False  # whether it is a network: on a GPU or in several processes
    method: str = ""  # description in the methods paragraph; "" for its title
    references: tuple[str, ...] = ()  # keys of `aam/report/references.bib`


KERNEL, TRANSFORMER = "kernel", "transformer"  # names of members
MEMBERS = {
    KERNEL: MemberEntry(
        "sequence kernel",
        "ridge regression on kernels of the sequences and clades",
        "aam.members.kernel",
        default=True,
        method="a kernel ridge regression on ASV sequences and clades",
        references=("saunders1998",),
    ),
    "forest": MemberEntry(
        "random forest",
        "random forest on relative abundances",
        "aam.members.forest",
        default=True,
        method="a random forest on relative abundances of ASVs and clades",
        references=("breiman2001", "pedregosa2011"),
    ),
    TRANSFORMER: MemberEntry(
        "transformer",
        "the network",
        network=True,
        method="a transformer on the nucleotides and abundances of the ASVs",
        references=("vaswani2017", "paszke2019"),
    ),
}
"""Registry of members by name; a member is a module and an entry."""

MemberName = Annotated[str, MEMBERS]


def networks(members: tuple[str, ...]) -> tuple[str, ...]:
    """Return the members that are networks."""
    return tuple(name for name in members if MEMBERS[name].network)


def default_members() -> tuple[str, ...]:
    """Return the members that are trained by default."""
    return tuple(name for name, entry in MEMBERS.items() if entry.default)


# --- study

Metric = Literal[
    "unifrac", "unweighted", "weighted", "weighted_normalized", "generalized", "faith_pd"
]

TargetType = Literal["regression", "classification", "ordinal"]

GroupValues = Literal["auto", "same", "distinct"]

# Options of several groups and commands.
TABLE_HELP = "Feature table: BIOM, TSV, QIIME 2 artifact (.qza), or the folder of `aam prepare`."
SEQUENCES = basic_option(
    "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes."
)
GROUP_VALUES: GroupValues = option(
    "Whether equal values of --group-column in two studies are one subject. auto: yes if their "
    "samples are more similar than expected by chance. Samples of a held-out subject are left out "
    "of training.",
    default="auto",
    only_with=("--group-column",),
)
DROP_MISSING_ASVS = option(
    "Leave out ASVs that are missing in the tree instead of rejecting the table.", default=False
)
DROP_EMPTY_SAMPLES = option(
    "Leave out samples without reads instead of rejecting the table.", default=False
)
RELABEL = basic_option(
    "Rename in the metadata, in order, as a,b: COLUMN=NEW renames a column, COLUMN:VALUE=NEW a "
    "value, such as a class.",
    default=(),
    metavar="PAIR",
    needs=("--metadata",),
)
RELABEL_FILE = option(
    "The same from a TSV with the columns column, value (empty to rename the column) and new.",
    needs=("--metadata",),
)
MAX_MEMORY_GB = option(
    "Memory limit in GiB for reading table, tree and sequences (each), and for tiles of `aam "
    "unifrac`. 'auto': half of the available memory; 1 GiB for tiles.",
    default="auto",
    takes=GIBIBYTES,
    resumable=True,
)
UNIFRAC_ALPHA = option(
    "Alpha of generalized UniFrac, 0 to 1.",
    default=0.5,
    takes=_UP_TO_ONE,
    only_with=("--unifrac-metric generalized",),
)
ROOT_AT_MIDPOINT = option(
    "Root an unrooted tree at the midpoint of its two most distant tips. Without the option an "
    "unrooted tree is rejected.",
    default=False,
)


@dataclass(frozen=True)
class TableOptions:
    """The feature table and its sequences."""

    table: Path = required_option(TABLE_HELP)
    sequences: Path | None = SEQUENCES
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    max_memory_gb: float | Literal["auto"] = MAX_MEMORY_GB


@dataclass(frozen=True)
class AsvVectorOptions:
    """The folder of ASV vectors that commands share."""

    asv_vectors_dir: Path | None = option(
        "Folder for the vectors of encoded ASVs: commands with the same encoder read them instead "
        "of encoding the ASVs again.",
        role="output",
        resumable=True,
    )
    asv_vectors_dtype: Literal["float32", "float16"] = option(
        "Number type in --asv-vectors-dir. float16 halves its size and rounds all vectors to three "
        "digits, newly encoded ones too.",
        default="float32",
        needs=("--asv-vectors-dir",),
    )


@dataclass(frozen=True)
class PhylogenyOptions:
    """The source of UniFrac: a tree, or a distance matrix of another program."""

    tree: Path | None = basic_option(
        "Rooted phylogeny of the ASVs: Newick or .qza. UniFrac is computed from it batch by batch."
    )
    unifrac_matrix: Path | None = option(
        "Distance matrix instead of a tree: lsmat/TSV, .qza, ssu HDF5, CSV, or .npy (table order).",
        excludes=("--tree", "--unifrac-metric faith_pd"),
    )
    unifrac_metric: Metric = option(
        "Distance between samples to learn, or Faith PD ('unifrac': unweighted).",
        default="unweighted",
    )
    unifrac_alpha: float = UNIFRAC_ALPHA
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT


@dataclass(frozen=True)
class SampleOptions:
    """Rarefaction and selection of the ASVs of a sample."""

    rarefy_depth: int | Literal["auto"] = basic_option(
        "Rarefaction depth: reads drawn from each sample; samples with fewer are left out of "
        "training. 'auto': the depth that keeps 95 % of the samples, at most 5000. 0: all reads.",
        default="auto",
        takes=ZERO_OR_MORE,
    )
    rarefy_each_epoch: bool = option(
        "Rarefy the training samples again in each epoch (augmentation), validation samples once.",
        default=True,
    )
    token_limit: int = option(
        "Most ASVs of a sample that the model reads, by abundance.",
        default=1024,
        takes=ONE_OR_MORE,
    )
    max_bp: int | Literal["auto"] = option(
        "Maximum sequence length in nucleotides; longer sequences are truncated. 'auto': the "
        "longest in the table.",
        default="auto",
        takes=ONE_OR_MORE,
        only_for=EVERY_MEMBER,
    )


@dataclass(frozen=True)
class SplitOptions:
    """Split into training and validation samples."""

    test_size: float = basic_option(
        "Fraction of validation samples. With one fold the scores are from them; with several "
        "folds they stop the transformer. 0: none, only with several --folds.",
        default=0.2,
    )
    group_column: str | None = basic_option(
        "Metadata column of groups, such as subjects: each group is entirely in one of training, "
        "validation and test set. The model stores hashes of the values, see docs/new_samples.md.",
        needs=("--metadata",),
    )
    stratify: bool = option(
        "Keep the proportions of the classes in training, validation and test set, if classes and "
        "groups are large enough; not for numbers or several targets.",
        default=True,
    )
    splits: Path | None = basic_option(
        "splits.tsv of another run, for the same training and validation samples."
    )


@dataclass(frozen=True)
class TargetOptions:
    """The metadata column to predict."""

    metadata: Path = required_option("Sample metadata: TSV in QIIME 2 format.")
    metadata_column: str = required_option(
        "Metadata column to predict; several as a,b in `aam train`."
    )
    classifier: bool = basic_option(
        "Predict a category instead of a number; `aam train` and `aam search` do so by default for "
        "words.",
        default=False,
    )
    positive_class: str | None = option(
        "Positive class of the effects, the ROC curve and the calibration curve, of two classes. "
        "Default: the class not called control, healthy, normal, no, negative, absent, baseline, 0 "
        "or false, else the second by name.",
        only_with=("--classifier",),
        metavar="CLASS",
    )
    ordinal: tuple[str, ...] = basic_option(
        "Predict an ordered category: all categories of the column, lowest first, as a,b,c.",
        default=(),
        excludes=("--classifier",),
        metavar="CATEGORY",
    )
    where: str | None = basic_option(
        "Use only samples that meet a condition on the metadata: COLUMN=VALUE, also with !=, <, "
        "<=, >, >=, or 'COLUMN in (A, B)'; join several by ' and '."
    )

    @property
    def type(self) -> TargetType:
        """Type of the target; it decides the metrics."""
        if self.classifier:
            return "classification"
        return "ordinal" if self.ordinal else "regression"

    @property
    def levels(self) -> tuple[str, ...]:
        """Categories of an ordinal target, lowest first; else empty."""
        return listed(self.ordinal)


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an option, separated by blanks or commas.

    Commas count in a single value, and at the end of all values but the last.

    >>> listed(["low,mid,high"]), listed(["low,", "high"]), listed(["low, at rest", "high"])
    (('low', 'mid', 'high'), ('low', 'high'), ('low, at rest', 'high'))
    """
    if values and all(value.rstrip().endswith(",") for value in values[:-1]):
        values = " ".join(values).split(",")
    return tuple(value.strip() for value in values)


@dataclass(frozen=True)
class CovariateOptions:
    """Metadata columns that the model reads with the counts."""

    categorical_columns: tuple[str, ...] = basic_option(
        "Metadata columns that the model reads as categories, such as a site; several as a,b. "
        "Metadata alone and counts alone are scored too.",
        default=(),
        metavar="COLUMN",
    )
    numeric_columns: tuple[str, ...] = basic_option(
        "Metadata columns that the model reads as numbers, such as an age; several as a,b.",
        default=(),
        metavar="COLUMN",
    )
    categorical_embed_dim: int = option(
        "Length of the vector of a category, and of the vector of all numbers.",
        default=16,
        takes=_WIDTHS,
        only_for=TRANSFORMER,
        only_with=("--categorical-columns or --numeric-columns",),
    )
    categorical_fusion: Literal["concat", "add"] = option(
        "How metadata vectors join each ASV. concat: by a linear layer; add: by a sum.",
        default="concat",
        only_for=TRANSFORMER,
        only_with=("--categorical-columns or --numeric-columns",),
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Metadata columns that the model reads."""
        return self.categorical_columns + self.numeric_columns


# --- computation

MixedPrecision = Literal["none", "bf16", "fp16", "auto"]

CompileModel = Literal["off", "auto", "force"]

AttnImplementation = Literal["auto", "sdpa", "math", "mem_efficient", "flash"]

Device = Literal["auto", "cpu", "cuda"]

DEVICE_HELP = (
    "Device for the computation. 'gpu' or 'cuda': a GPU of any vendor; 'auto': a GPU if available."
)


def uses_network(options: object) -> bool:
    """Return whether a command computes with the network: on a GPU or in several processes."""
    return bool(getattr(options, "uses_network", True))


@dataclass(frozen=True)
class DeviceOptions:
    """Device, data loading and attention backend."""

    device: Device = resumable_option(DEVICE_HELP, default="auto", basic=True)
    num_workers: int | Literal["auto"] = resumable_option(
        "Data loader processes; 'auto': none on a CPU, up to 4 for a GPU.",
        default="auto",
        takes=_PROCESSES,
    )
    cpu_threads: int | Literal["auto"] = resumable_option(
        "CPU threads; 'auto': OMP_NUM_THREADS, else one per core.",
        default="auto",
        takes=ONE_OR_MORE,
    )
    attn_implementation: AttnImplementation = resumable_option(
        "Attention kernel of PyTorch ('sdpa': same as auto).", default="auto"
    )
    check: bool = resumable_option(
        "Test before the run whether this GPU computes attention correctly; wrong backends are not "
        "used.",
        default=True,
    )


@dataclass(frozen=True)
class SpeedOptions:
    """Precision, compilation and memory of the training."""

    mixed_precision: MixedPrecision = resumable_option(
        "Precision of matrix products; fp16 has loss scaling. 'auto': bf16 on a GPU that supports "
        "it, else none.",
        default="none",
    )
    report_fp32_fallbacks: bool = resumable_option(
        "List the modules that run in fp32 under mixed precision.", default=False
    )
    compile_model: CompileModel = resumable_option(
        "Compile the nucleotide encoder with torch.compile. 'auto' (or no value): not on ROCm, "
        "whose Triton has a fault; 'force': on ROCm too.",
        default="off",
        implied="auto",
    )
    gradient_checkpointing: bool = resumable_option(
        "Recompute activations in the backward pass: less memory, a third more time.", default=False
    )
    asv_chunk: int | Literal["auto"] = resumable_option(
        "Most distinct ASVs of a batch that are encoded at once, to save memory. 0: all; 'auto': "
        "the most that fit.",
        default=0,
        takes=ZERO_OR_MORE,
    )
    prefetch_factor: int = resumable_option(
        "Batches that each data loader process loads ahead.", default=2, takes=ONE_OR_MORE
    )
    tuned_for: str | None = resumable_option(
        "Study, device and versions of the measurements of `aam tune`; runs with others are "
        "refused."
    )

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes attention; with `auto` it may."""
        return self.gradient_checkpointing or self.asv_chunk != 0

    @property
    def chunk_size(self) -> int:
        """Most ASVs of a chunk; 0 (all at once) before `auto` is resolved."""
        return 0 if self.asv_chunk == "auto" else self.asv_chunk


@dataclass(frozen=True)
class RankOptions:
    """Several processes, started by --processes, `aam-launch --gpus`, torchrun or srun."""

    processes: int = resumable_option(
        "Processes to start on this machine, one per GPU or group of CPU cores; 0: none (a single "
        "process, or processes of torchrun or srun).",
        default=0,
        takes=_PROCESSES,
    )
    rank_timeout: float = resumable_option(
        "Seconds without a heartbeat until a process counts as failed and the others stop.",
        default=60.0,
        takes=Range("more than 0 and at most 1000000", 0, 1e6, open_below=True),
    )


@dataclass(frozen=True)
class ScaleOptions(RankOptions):
    """Training in several processes."""

    distributed: bool = resumable_option(
        "Split every batch among the processes; each holds the whole network (DDP).", default=False
    )
    fsdp: bool = resumable_option(
        "Split every batch among the processes; each holds a shard of the network (FSDP).",
        default=False,
        excludes=("--distributed",),
    )
    fsdp_sharded_checkpoint: bool = resumable_option(
        "No effect: a checkpoint is one file for any number of processes.", default=False
    )
    data_parallel: bool = resumable_option(
        "Split every batch among all GPUs of this machine; starts one process per GPU.",
        default=False,
        excludes=("--distributed", "--fsdp"),
    )


# --- training

LossType = Literal["mse", "mae", "huber", "quantile", "asymmetric"]

LoggerName = Literal["tensorboard", "mlflow", "wandb"]

TransformName = Literal["none", "minmax", "zscore", "log-minmax", "log-zscore"]


@dataclass(frozen=True)
class ModelOptions:
    """Sizes of the network."""

    embedding_dim: int = option("Length of the embedding vectors.", default=128, takes=_WIDTHS)
    attention_heads: int = option(
        "Attention heads; a divisor of --embedding-dim.", default=4, takes=_WIDTHS
    )
    attention_layers: int = option(
        "Transformer layers of the nucleotide encoder, and of the sample encoder.",
        default=2,
        takes=Range("1 to 1000", 1, 1000),
    )
    nucleotide_patch: Literal[1, 3, 5] = option("Nucleotides in a token of the encoder.", default=5)
    dropout: float = option("Dropout outside attention, below 1.", default=0.1, takes=BELOW_ONE)


@dataclass(frozen=True)
class MaskOptions:
    """The self-supervised tasks and their weights in the loss."""

    nuc_mask_ratio: float = option(
        "Fraction of nucleotides that are masked.", default=0.15, takes=BELOW_ONE
    )
    penalty: float = option("Weight of the UniFrac loss.", default=1.0, takes=WEIGHTS)
    nuc_penalty: float = option("Weight of the masked-nucleotide loss.", default=1.0, takes=WEIGHTS)
    count_penalty: float = option(
        "Weight of the loss of hidden abundances: the network predicts the abundances of 15 % of "
        "the ASVs of each sample. 0: none are hidden.",
        default=0.0,
        takes=WEIGHTS,
    )


_epochs = partial(basic_option, "Passes over training samples.", takes=ONE_OR_MORE, resumable=True)
_learning_rate = partial(
    basic_option,
    "Highest learning rate, after the warm-up; then a cosine decay to zero.",
    takes=Range("more than 0 and at most 1000000", 0, 1e6, open_below=True),
)
_weight_decay = partial(option, "Weight decay of the linear layers.", takes=WEIGHTS)


@dataclass(frozen=True)
class LoopOptions:
    """The training loop."""

    epochs: int = _epochs(default=40)
    batch_size: int | Literal["auto"] = basic_option(
        "Samples in a batch over all processes. 'auto': the largest batch that fits into memory "
        "and divides --global-batch-size.",
        default=16,
        takes=ONE_OR_MORE,
    )
    global_batch_size: int = option(
        "Samples in an optimizer step; the gradients of several batches are added up.",
        default=16,
        takes=ONE_OR_MORE,
        only_with=("--batch-size auto",),
    )
    gradient_accumulation_steps: int = option(
        "Batches whose gradients are summed for one optimizer step.",
        default=1,
        takes=ONE_OR_MORE,
        excludes=("--batch-size auto",),
    )
    even_batches: bool = option(
        "Distribute samples so that batches have similar numbers of distinct ASVs: the largest "
        "batch needs less memory.",
        default=False,
    )
    lr: float = _learning_rate(default=1e-3)
    warmup_fraction: float = option(
        "Fraction of the optimizer steps in which the learning rate rises.",
        default=0.1,
        takes=_UP_TO_ONE,
    )
    weight_decay: float = _weight_decay(default=0.01)
    max_grad_norm: float = option(
        "Gradient norm to clip at; 0: no clipping.", default=1.0, takes=ZERO_OR_MORE
    )
    patience: int = option(
        "Early stopping: epochs without improvement on the validation samples; 0: off.",
        default=20,
        takes=ZERO_OR_MORE,
        resumable=True,
    )
    seed: int = basic_option(
        "Random seed of splits, initial weights, masks, rarefaction and sample order.",
        default=42,
        takes=Range("0 to 4294967295", 0, 2**32 - 1),
        only_for=EVERY_MEMBER,
    )

    @property
    def batch_samples(self) -> int:
        """Samples in a batch; --global-batch-size before `auto` is resolved."""
        return self.global_batch_size if self.batch_size == "auto" else self.batch_size


@dataclass(frozen=True)
class TrainLoopOptions(LoopOptions):
    """The training loop.

    Fewer and smaller steps and more weight decay than in pretraining: labels overfit sooner.
    """

    epochs: int = _epochs(default=50)
    lr: float = _learning_rate(default=3e-4)
    weight_decay: float = _weight_decay(default=0.1)


@dataclass(frozen=True)
class RunOptions:
    """The run folder."""

    output_dir: Path = required_option(
        "Folder for checkpoints, metrics, predictions and report; created if it does not exist.",
        role="output",
        resumable=True,
    )
    overwrite: bool = resumable_option(
        "Replace an existing run in the folder: only the files that its run.json lists.",
        default=False,
        basic=True,
    )
    resume_from: Literal["auto"] | Path | None = resumable_option(
        "Continue from this checkpoint or run folder. 'auto': from the last complete checkpoint of "
        "--output-dir, if any.",
        basic=True,
    )
    logger: tuple[LoggerName, ...] = resumable_option(
        "Loggers of the run; mlflow and wandb need their packages. metrics.csv is always written.",
        default=("tensorboard",),
    )
    checkpoint_every_n_steps: int = resumable_option(
        "Write last.ckpt after this many optimizer steps too; 0: only at the end of epochs.",
        default=0,
        takes=ZERO_OR_MORE,
    )
