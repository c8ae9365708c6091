"""The options that several commands share, one small dataclass a subject.

Names are those of the public AAM program where the meaning is the same.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.field import (
    BELOW_ONE,
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
    Range,
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


@dataclass(frozen=True)
class TableOptions:
    """The feature table and its sequences."""

    table: Path = option(
        "Feature table: BIOM 1 or 2.1, TSV, or QIIME 2 artifact (.qza); or a folder of `aam "
        "prepare`, which has sequences and tree in it.",
        role="input",
    )
    sequences: Path | None = option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes.",
        default=None,
        role="input",
    )
    drop_empty_samples: bool = option(
        "Leave out samples without reads instead of refusing the table.", default=False
    )
    max_memory_gb: float | Literal["auto"] = option(
        "Memory in GiB that reading table, tree and sequences may take, each, and the tiles of "
        "`aam unifrac`. 'auto': half of what is available, and 1 GiB for tiles.",
        default="auto",
        takes=Range("more than 0, at most 1048576", 0, 2**20, open_below=True),
        resumable=True,
    )


@dataclass(frozen=True)
class PhylogenyOptions:
    """Where UniFrac comes from: a tree, or a matrix made elsewhere."""

    tree: Path | None = option(
        "Rooted phylogeny of the ASVs: Newick or .qza. UniFrac is computed from it batch by batch.",
        default=None,
        role="input",
    )
    unifrac_matrix: Path | None = option(
        "Distance matrix instead of a tree: lsmat/TSV, .qza, ssu HDF5, CSV, or .npy (table order).",
        default=None,
        role="input",
    )
    unifrac_metric: Metric = option(
        "Phylogenetic measure to learn ('unifrac' is another word for unweighted).",
        default="unweighted",
    )
    unifrac_alpha: float = option(
        "Alpha of generalized UniFrac, 0 to 1.", default=0.5, takes=UP_TO_ONE
    )
    drop_missing_asvs: bool = option(
        "Leave out ASVs that the tree lacks instead of refusing the table.", default=False
    )
    root_at_midpoint: bool = option(
        "Root the tree between the two tips that are farthest apart; trees without a root are "
        "refused otherwise.",
        default=False,
    )


@dataclass(frozen=True)
class SampleOptions:
    """How the reads of a sample become a set of ASVs."""

    rarefy_depth: int | Literal["auto"] = option(
        "Reads drawn from each sample; shallower samples are left out of training. 'auto': the "
        "depth that keeps 95 % of the samples, at most 5000. 0: all reads.",
        default="auto",
        takes=ZERO_OR_MORE,
    )
    rarefy_each_epoch: bool = option(
        "Draw the training reads anew in each epoch (augmentation); validation stays fixed.",
        default=True,
    )
    token_limit: int = option(
        "Most ASVs of one sample that the model sees.", default=1024, takes=ONE_OR_MORE
    )
    asv_sampling: Literal["abundance", "first", "random"] = option(
        "Which ASVs stay when a sample has more than the token limit (first: by id).",
        default="abundance",
    )
    max_bp: int | Literal["auto"] = option(
        "Longest sequence in nucleotides; the rest is cut off. 'auto': the longest of the table.",
        default="auto",
        takes=ONE_OR_MORE,
    )


@dataclass(frozen=True)
class ModelOptions:
    """The shape of the network."""

    embedding_dim: int = option("Width of every embedding.", default=128, takes=WIDTHS)
    attention_heads: int = option(
        "Attention heads; must divide the width.", default=4, takes=WIDTHS
    )
    attention_layers: int = option(
        "Transformer layers of the nucleotide encoder and of the sample encoder, each.",
        default=2,
        takes=LAYERS,
    )
    nucleotide_patch: Literal[1, 3, 5] = option(
        "Nucleotides that one token of the nucleotide encoder stands for.", default=5
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
        "Passes over the training samples.", default=100, takes=ONE_OR_MORE, resumable=True
    )
    batch_size: int = option(
        "Samples in a batch: of all processes together, each takes its share.",
        default=16,
        takes=ONE_OR_MORE,
    )
    gradient_accumulation_steps: int = option(
        "Batches to one optimiser step.", default=1, takes=ONE_OR_MORE
    )
    even_batches: bool = option(
        "Deal samples out so that every batch holds about as many distinct ASVs: the largest "
        "batch, and the memory for it, is smaller.",
        default=False,
    )
    lr: float = option("Peak learning rate.", default=1e-3, takes=RATES)
    warmup_fraction: float = option(
        "Part of all optimiser steps over which the learning rate rises.",
        default=0.1,
        takes=UP_TO_ONE,
    )
    weight_decay: float = option("Weight decay of the linear layers.", default=0.01, takes=WEIGHTS)
    max_grad_norm: float = option(
        "Gradient norm to clip at; 0 never clips.", default=1.0, takes=ZERO_OR_MORE
    )
    optimizer: Literal["adamw", "adam", "sgd"] = option("Optimiser.", default="adamw")
    scheduler: Literal["warmup_cosine", "constant", "plateau"] = option(
        "Learning rate after the warm-up: cosine to zero, constant, or lowered on plateaus.",
        default="warmup_cosine",
    )
    patience: int = option(
        "Epochs without a better validation before training stops; 0 never stops early.",
        default=20,
        takes=ZERO_OR_MORE,
        resumable=True,
    )
    seed: int = option(
        "Seed of splits, weights, masks, rarefactions and order.", default=42, takes=SEEDS
    )


@dataclass(frozen=True)
class TrainLoopOptions(LoopOptions):
    """The training loop.

    With labels a small study is learnt by heart sooner than understood: fewer and smaller steps,
    more decay than without.
    """

    epochs: int = option(
        "Passes over the training samples.", default=50, takes=ONE_OR_MORE, resumable=True
    )
    lr: float = option("Peak learning rate.", default=3e-4, takes=RATES)
    weight_decay: float = option("Weight decay of the linear layers.", default=0.1, takes=WEIGHTS)


@dataclass(frozen=True)
class DeviceOptions:
    """What computes, and how."""

    device: Literal["auto", "cpu", "cuda"] = option(
        "'cuda' means any GPU, AMD's too; 'auto' takes a GPU where there is one.",
        default="auto",
        resumable=True,
    )
    num_workers: int | Literal["auto"] = option(
        "Processes that prepare batches; 'auto': none on a CPU, up to 4 for a GPU.",
        default="auto",
        takes=PROCESSES,
        resumable=True,
    )
    attn_implementation: AttnImplementation = option(
        "Attention kernel ('sdpa' is another word for auto).", default="auto", resumable=True
    )
    check: bool = option(
        "Measure first whether this GPU computes attention right; a kernel that does not is not "
        "used.",
        default=True,
        resumable=True,
    )


@dataclass(frozen=True)
class SpeedOptions:
    """What trades memory, speed and precision while training."""

    mixed_precision: MixedPrecision = option(
        "Precision of the matrix products; fp16 with loss scaling. 'auto': bf16 on a GPU that has "
        "it, else none.",
        default="none",
        resumable=True,
    )
    report_fp32_fallbacks: bool = option(
        "List the modules that run in fp32 under mixed precision.", default=False, resumable=True
    )
    compile_model: CompileModel = option(
        "Compile the nucleotide encoder while training. 'auto', also meant by the flag alone: not "
        "with ROCm, whose Triton has a fault; 'force': there too.",
        default="off",
        alone="auto",
        resumable=True,
    )
    gradient_checkpointing: bool = option(
        "Recompute activations in the backward pass: less memory, a third more time.",
        default=False,
        resumable=True,
    )


@dataclass(frozen=True)
class ScaleOptions:
    """More than one process: --processes, `aam-launch --gpus`, torchrun or srun starts them."""

    distributed: bool = option(
        "Share every batch among the processes; each has the whole network (DDP).",
        default=False,
        resumable=True,
    )
    fsdp: bool = option(
        "Share every batch among the processes; each has a part of the network (FSDP).",
        default=False,
        resumable=True,
    )
    fsdp_sharded_checkpoint: bool = option(
        "With --fsdp: every process writes its part of a checkpoint, which is a folder then.",
        default=False,
        resumable=True,
    )
    data_parallel: bool = option(
        "Share every batch among all GPUs of this machine; they are started too.",
        default=False,
        resumable=True,
    )
    sync_batchnorm: bool = option(
        "Taken and without effect: there is no batch norm in the network.",
        default=False,
        resumable=True,
    )
    processes: int = option(
        "Processes to start on this machine, one for each GPU or for some cores each; 0: they are "
        "started already, or there is one.",
        default=0,
        takes=PROCESSES,
        resumable=True,
    )
    rank_timeout: float = option(
        "Seconds of silence after which a process counts as dead and the others stop.",
        default=60.0,
        takes=SECONDS,
        resumable=True,
    )


@dataclass(frozen=True)
class RunOptions:
    """The run folder."""

    output_dir: Path = option(
        "Folder of the run; made if it is not there.", role="output", resumable=True
    )
    overwrite: bool = option(
        "Replace a run that is already in the folder.", default=False, resumable=True
    )
    resume_from: Literal["auto"] | Path | None = option(
        "Continue from this checkpoint, or from the last one of this run folder. 'auto': from the "
        "last whole one of --output-dir, or start where there is none.",
        default=None,
        role="input",
        resumable=True,
    )
    checkpoint_every_n_steps: int = option(
        "Also write last.ckpt after this many optimiser steps; 0: at the end of epochs only.",
        default=0,
        takes=ZERO_OR_MORE,
        resumable=True,
    )


@dataclass(frozen=True)
class SplitOptions:
    """Which samples train and which judge."""

    test_size: float = option("Part of the samples held out for validation.", default=0.2)
    group_column: str | None = option(
        "Metadata column whose values stay together on one side (a subject, a study).", default=None
    )
    stratify: bool = option("Give both sides the same mix of classes.", default=False)
    splits: Path | None = option(
        "splits.tsv of another run, to use the same samples for the same purpose.",
        default=None,
        role="input",
    )


@dataclass(frozen=True)
class TargetOptions:
    """What a study asks."""

    metadata: Path = option("Sample metadata (TSV, QIIME 2's rules).", role="input")
    metadata_column: str = option("Column to predict.")
    classifier: bool = option("Predict a category instead of a number.", default=False)
    where: str | None = option("Use only samples whose metadata meets COLUMN=VALUE.", default=None)
