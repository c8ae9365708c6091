"""Options that several commands share, one dataclass for each subject.

Names are those of the public AAM program where the meaning is the same.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.field import (
    BELOW_ONE,
    GIBIBYTES,
    LAYERS,
    ONE_OR_MORE,
    PROCESSES,
    RATES,
    SECONDS,
    SEEDS,
    UP_TO_ONE,
    WEIGHTS,
    WIDTHS,
    ZERO_OR_MORE,
    option,
)

Metric = Literal[
    "unifrac", "unweighted", "weighted", "weighted_normalized", "generalized", "faith_pd"
]
MixedPrecision = Literal["none", "bf16", "fp16", "auto"]
CompileModel = Literal["off", "auto", "force"]
LossType = Literal["mse", "mae", "huber", "quantile", "asymmetric"]
TransformName = Literal["none", "minmax", "zscore", "log-minmax", "log-zscore"]
AttnImplementation = Literal["auto", "sdpa", "math", "mem_efficient", "flash"]
Device = Literal["auto", "cpu", "cuda"]

DEVICE_HELP = (
    "Where to compute. 'cuda': a GPU, also one of AMD; 'auto': a GPU if there is one, else the CPU."
)
DROP_MISSING_HELP = "Leave out ASVs that are not in the tree instead of rejecting the table."
MIDPOINT_HELP = (
    "Root an unrooted tree at the midpoint between its two most distant tips; otherwise a tree "
    "without a root is rejected."
)


@dataclass(frozen=True)
class TableOptions:
    """The feature table and its sequences."""

    table: Path = option(
        "Feature table: BIOM, TSV, or QIIME 2 artifact (.qza); or the folder of `aam prepare`, "
        "which contains sequences and tree.",
        role="input",
    )
    sequences: Path | None = option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes.",
        default=None,
        role="input",
        basic=True,
    )
    drop_empty_samples: bool = option(
        "Leave out samples without reads instead of rejecting the table.", default=False
    )
    max_memory_gb: float | Literal["auto"] = option(
        "Memory limit in GiB for reading each of table, tree and sequences, and for the tiles of "
        "`aam unifrac`. 'auto': half of the available memory, and 1 GiB for tiles.",
        default="auto",
        takes=GIBIBYTES,
        resumable=True,
    )


@dataclass(frozen=True)
class PhylogenyOptions:
    """The source of UniFrac: a tree, or a distance matrix of another program."""

    tree: Path | None = option(
        "Rooted phylogeny of the ASVs: Newick or .qza. UniFrac is computed from it batch by batch.",
        default=None,
        role="input",
        basic=True,
    )
    unifrac_matrix: Path | None = option(
        "Distance matrix instead of a tree: lsmat/TSV, .qza, ssu HDF5, CSV, or .npy (table order).",
        default=None,
        role="input",
        basic=True,
    )
    unifrac_metric: Metric = option(
        "Distance between samples to learn, or Faith PD ('unifrac' is the same as unweighted).",
        default="unweighted",
        basic=True,
    )
    unifrac_alpha: float = option(
        "Alpha of generalized UniFrac, 0 to 1.", default=0.5, takes=UP_TO_ONE
    )
    drop_missing_asvs: bool = option(DROP_MISSING_HELP, default=False)
    root_at_midpoint: bool = option(
        MIDPOINT_HELP,
        default=False,
    )


@dataclass(frozen=True)
class SampleOptions:
    """Rarefaction and selection of the ASVs of a sample."""

    rarefy_depth: int | Literal["auto"] = option(
        "Reads drawn from each sample; shallower samples are left out of training. 'auto': the "
        "depth that keeps 95 % of the samples, at most 5000. 0: all reads.",
        default="auto",
        takes=ZERO_OR_MORE,
        basic=True,
    )
    rarefy_each_epoch: bool = option(
        "Rarefy the training samples again in each epoch (augmentation); validation samples once.",
        default=True,
    )
    token_limit: int = option(
        "Maximum number of ASVs of one sample that the model reads.",
        default=1024,
        takes=ONE_OR_MORE,
    )
    asv_sampling: Literal["abundance", "first", "random"] = option(
        "ASVs to keep of a sample with more than --token-limit: the most abundant, the first by "
        "id, or random ones.",
        default="abundance",
    )
    max_bp: int | Literal["auto"] = option(
        "Maximum sequence length in nucleotides; longer ones are truncated. 'auto': the longest of "
        "the table.",
        default="auto",
        takes=ONE_OR_MORE,
    )


@dataclass(frozen=True)
class ModelOptions:
    """Sizes of the network."""

    embedding_dim: int = option("Length of the embedding vectors.", default=128, takes=WIDTHS)
    attention_heads: int = option(
        "Attention heads; must divide --embedding-dim.", default=4, takes=WIDTHS
    )
    attention_layers: int = option(
        "Transformer layers of the nucleotide encoder and of the sample encoder, each.",
        default=2,
        takes=LAYERS,
    )
    nucleotide_patch: Literal[1, 3, 5] = option(
        "Nucleotides that the encoder reads as one token.", default=5
    )
    dropout: float = option(
        "Dropout outside attention, 0 to below 1.", default=0.1, takes=BELOW_ONE
    )


@dataclass(frozen=True)
class MaskOptions:
    """The self-supervised tasks and their weights in the loss."""

    nuc_mask_ratio: float = option(
        "Fraction of nucleotides that are masked.", default=0.15, takes=BELOW_ONE
    )
    nuc_mask_strategy: Literal["random", "span"] = option(
        "Mask single nucleotides, or spans of 3 to 5.", default="random"
    )
    penalty: float = option("Weight of the UniFrac loss.", default=1.0, takes=WEIGHTS)
    nuc_penalty: float = option("Weight of the masked-nucleotide loss.", default=1.0, takes=WEIGHTS)


@dataclass(frozen=True)
class LoopOptions:
    """The training loop."""

    epochs: int = option(
        "Passes over the training samples.",
        default=40,
        takes=ONE_OR_MORE,
        resumable=True,
        basic=True,
    )
    batch_size: int = option(
        "Samples in a batch, of all processes together.",
        default=16,
        takes=ONE_OR_MORE,
        basic=True,
    )
    gradient_accumulation_steps: int = option(
        "Batches whose gradients are summed for one optimizer step.", default=1, takes=ONE_OR_MORE
    )
    even_batches: bool = option(
        "Distribute samples so that all batches have about the same number of distinct ASVs: the "
        "largest batch needs less memory.",
        default=False,
    )
    lr: float = option(
        "Highest learning rate, at the end of the warm-up.", default=1e-3, takes=RATES, basic=True
    )
    warmup_fraction: float = option(
        "Fraction of all optimizer steps over which the learning rate rises.",
        default=0.1,
        takes=UP_TO_ONE,
    )
    weight_decay: float = option("Weight decay of the linear layers.", default=0.01, takes=WEIGHTS)
    max_grad_norm: float = option(
        "Gradient norm to clip at; 0: no clipping.", default=1.0, takes=ZERO_OR_MORE
    )
    optimizer: Literal["adamw", "adam", "sgd"] = option("Optimization algorithm.", default="adamw")
    scheduler: Literal["warmup_cosine", "constant", "plateau"] = option(
        "Learning rate after the warm-up: cosine to zero, constant, or lowered on plateaus.",
        default="warmup_cosine",
    )
    patience: int = option(
        "Epochs without improvement on the validation samples before training stops; 0: no early "
        "stopping.",
        default=20,
        takes=ZERO_OR_MORE,
        resumable=True,
    )
    seed: int = option(
        "Random seed of splits, weights, masks, rarefaction and sample order.",
        default=42,
        takes=SEEDS,
        basic=True,
    )


@dataclass(frozen=True)
class TrainLoopOptions(LoopOptions):
    """The training loop.

    A small study is overfitted sooner with labels than without: fewer and smaller steps, more
    weight decay.
    """

    epochs: int = option(
        "Passes over the training samples.",
        default=50,
        takes=ONE_OR_MORE,
        resumable=True,
        basic=True,
    )
    lr: float = option(
        "Highest learning rate, at the end of the warm-up.", default=3e-4, takes=RATES, basic=True
    )
    weight_decay: float = option("Weight decay of the linear layers.", default=0.1, takes=WEIGHTS)


@dataclass(frozen=True)
class DeviceOptions:
    """Device, data loading and attention backend."""

    device: Device = option(
        DEVICE_HELP,
        default="auto",
        resumable=True,
        basic=True,
    )
    num_workers: int | Literal["auto"] = option(
        "Data loader processes; 'auto': none on a CPU, up to 4 for a GPU.",
        default="auto",
        takes=PROCESSES,
        resumable=True,
    )
    attn_implementation: AttnImplementation = option(
        "Attention kernel of PyTorch ('sdpa' is the same as auto).", default="auto", resumable=True
    )
    check: bool = option(
        "Before the run, measure whether this GPU computes attention correctly; a backend that "
        "does not is not used.",
        default=True,
        resumable=True,
    )


@dataclass(frozen=True)
class SpeedOptions:
    """Precision, compilation and memory of the training."""

    mixed_precision: MixedPrecision = option(
        "Precision of the matrix products; fp16 with loss scaling. 'auto': bf16 on a GPU that "
        "supports it, else none.",
        default="none",
        resumable=True,
    )
    report_fp32_fallbacks: bool = option(
        "List the modules that run in fp32 under mixed precision.", default=False, resumable=True
    )
    compile_model: CompileModel = option(
        "Compile the nucleotide encoder with torch.compile. 'auto' (also the flag without a "
        "value): except with ROCm, whose Triton has a fault; 'force': also with ROCm.",
        default="off",
        alone="auto",
        resumable=True,
    )
    gradient_checkpointing: bool = option(
        "Recompute activations in the backward pass: less memory, a third more time.",
        default=False,
        resumable=True,
    )
    asv_chunk: int = option(
        "Encode the distinct ASVs of a batch in chunks of at most this many, each recomputed in "
        "the backward pass: memory does not grow with the number of ASVs. 0: all at once.",
        default=0,
        takes=ZERO_OR_MORE,
        resumable=True,
    )

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes attention."""
        return self.gradient_checkpointing or self.asv_chunk > 0


@dataclass(frozen=True)
class ScaleOptions:
    """Several processes, started by --processes, `aam-launch --gpus`, torchrun or srun."""

    distributed: bool = option(
        "Split every batch among the processes; each holds the whole network (DDP).",
        default=False,
        resumable=True,
    )
    fsdp: bool = option(
        "Split every batch among the processes; each holds a shard of the network (FSDP).",
        default=False,
        resumable=True,
    )
    fsdp_sharded_checkpoint: bool = option(
        "With --fsdp: each process writes its shard; the checkpoint is a folder.",
        default=False,
        resumable=True,
    )
    data_parallel: bool = option(
        "Split every batch among all GPUs of this machine; starts one process for each.",
        default=False,
        resumable=True,
    )
    sync_batchnorm: bool = option(
        "Accepted without effect: the network has no batch norm.",
        default=False,
        resumable=True,
    )
    processes: int = option(
        "Processes to start on this machine, one for each GPU or each group of CPU cores; 0: start "
        "none (one process, or processes of torchrun or srun).",
        default=0,
        takes=PROCESSES,
        resumable=True,
    )
    rank_timeout: float = option(
        "Seconds without a heartbeat of a process after which it counts as failed and the others "
        "stop.",
        default=60.0,
        takes=SECONDS,
        resumable=True,
    )


@dataclass(frozen=True)
class RunOptions:
    """The run folder."""

    output_dir: Path = option(
        "Folder for checkpoints, metrics, predictions and report; made if it does not exist.",
        role="output",
        resumable=True,
    )
    overwrite: bool = option(
        "Replace an existing run in the folder.",
        default=False,
        resumable=True,
        basic=True,
    )
    resume_from: Literal["auto"] | Path | None = option(
        "Continue from this checkpoint, or from the last one of this run folder. 'auto': from the "
        "last complete one of --output-dir; start from the beginning if there is none.",
        default=None,
        role="input",
        resumable=True,
        basic=True,
    )
    checkpoint_every_n_steps: int = option(
        "Also write last.ckpt after this many optimizer steps; 0: at the end of epochs only.",
        default=0,
        takes=ZERO_OR_MORE,
        resumable=True,
    )


@dataclass(frozen=True)
class SplitOptions:
    """Division into training and validation samples."""

    test_size: float = option("Fraction of the samples that validate.", default=0.2)
    group_column: str | None = option(
        "Metadata column of groups, such as subjects: samples of one group stay together, either "
        "in training or in validation.",
        default=None,
        basic=True,
    )
    stratify: bool = option(
        "Keep the proportions of the classes in training and validation samples.", default=False
    )
    splits: Path | None = option(
        "splits.tsv of another run, to use the same training and validation samples.",
        default=None,
        role="input",
    )


@dataclass(frozen=True)
class TargetOptions:
    """The metadata column to predict."""

    metadata: Path = option("Sample metadata: TSV as QIIME 2 reads it.", role="input")
    metadata_column: str = option("Metadata column to predict.")
    classifier: bool = option("Predict a category instead of a number.", default=False, basic=True)
    where: str | None = option(
        "Use only samples whose metadata meet a condition: COLUMN=VALUE, also with !=, <, <=, >, "
        ">=, or 'COLUMN in (A, B)'; several joined by ' and '.",
        default=None,
        basic=True,
    )
