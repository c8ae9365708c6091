"""Options about the training: sizes of the network, tasks, optimizer loop and run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options import (
    BELOW_ONE,
    EVERY_MEMBER,
    LAYERS,
    ONE_OR_MORE,
    RATES,
    SEEDS,
    UP_TO_ONE,
    WEIGHTS,
    WIDTHS,
    ZERO_OR_MORE,
    basic_option,
    option,
    required_option,
    resumable_option,
)

LossType = Literal["mse", "mae", "huber", "quantile", "asymmetric"]

LoggerName = Literal["tensorboard", "mlflow", "wandb"]

TransformName = Literal["none", "minmax", "zscore", "log-minmax", "log-zscore"]


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
    penalty: float = option("Weight of the UniFrac loss.", default=1.0, takes=WEIGHTS)
    nuc_penalty: float = option("Weight of the masked-nucleotide loss.", default=1.0, takes=WEIGHTS)
    count_penalty: float = option(
        "Weight of the loss of hidden abundances: the relative abundances of 15 % of the ASVs of "
        "each sample are hidden from the network, which predicts their logarithm. 0: none is.",
        default=0.0,
        takes=WEIGHTS,
    )


@dataclass(frozen=True)
class LoopOptions:
    """The training loop."""

    epochs: int = basic_option(
        "Passes over the training samples.", default=40, takes=ONE_OR_MORE, resumable=True
    )
    batch_size: int | Literal["auto"] = basic_option(
        "Samples in a batch, of all processes together. 'auto': the largest batch that fits into "
        "memory and divides --global-batch-size.",
        default=16,
        takes=ONE_OR_MORE,
    )
    global_batch_size: int = option(
        "Samples of an optimizer step, for which the gradients of several batches are summed.",
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
        "Distribute samples so that all batches have about the same number of distinct ASVs: the "
        "largest batch needs less memory.",
        default=False,
    )
    lr: float = basic_option(
        "Highest learning rate, at the end of the warm-up; it then falls to zero as a cosine.",
        default=1e-3,
        takes=RATES,
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
    patience: int = option(
        "Epochs without improvement on the validation samples before training stops; 0: no early "
        "stopping.",
        default=20,
        takes=ZERO_OR_MORE,
        resumable=True,
    )
    seed: int = basic_option(
        "Random seed of splits, weights, masks, rarefaction and sample order.",
        default=42,
        takes=SEEDS,
        only_for=EVERY_MEMBER,
    )

    @property
    def batch_samples(self) -> int:
        """Samples in a batch; those of an optimizer step while `auto` is not replaced."""
        return self.global_batch_size if self.batch_size == "auto" else self.batch_size


@dataclass(frozen=True)
class TrainLoopOptions(LoopOptions):
    """The training loop.

    A small study is overfitted sooner with labels than without: fewer and smaller steps, more
    weight decay.
    """

    epochs: int = basic_option(
        "Passes over the training samples.", default=50, takes=ONE_OR_MORE, resumable=True
    )
    lr: float = basic_option(
        "Highest learning rate, at the end of the warm-up; it then falls to zero as a cosine.",
        default=3e-4,
        takes=RATES,
    )
    weight_decay: float = option("Weight decay of the linear layers.", default=0.1, takes=WEIGHTS)


@dataclass(frozen=True)
class RunOptions:
    """The run folder."""

    output_dir: Path = required_option(
        "Folder for checkpoints, metrics, predictions and report; made if it does not exist.",
        role="output",
        resumable=True,
    )
    overwrite: bool = resumable_option(
        "Replace an existing run in the folder: the files that its run.json lists, and no others.",
        default=False,
        basic=True,
    )
    resume_from: Literal["auto"] | Path | None = resumable_option(
        "Continue from this checkpoint, or from the last one of this run folder. 'auto': from the "
        "last complete one of --output-dir; start from the beginning if there is none.",
        basic=True,
    )
    logger: tuple[LoggerName, ...] = resumable_option(
        "Loggers of the run: files in the run folder (tensorboard), or a tracker that is installed "
        "(mlflow, wandb), which also gets the final scores. metrics.csv is always written.",
        default=("tensorboard",),
    )
    checkpoint_every_n_steps: int = resumable_option(
        "Also write last.ckpt after this many optimizer steps; 0: at the end of epochs only.",
        default=0,
        takes=ZERO_OR_MORE,
    )
