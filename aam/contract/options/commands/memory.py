"""Options of `aam memory`: those of the run whose memory is predicted, and the GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import TrainNetwork
from aam.contract.options.field import GIBIBYTES, ONE_OR_MORE, option
from aam.contract.options.study import TableOptions
from aam.contract.options.training import RunOptions


@dataclass(frozen=True)
class UnusedRunOptions(RunOptions):
    """The run folder of a run whose memory is predicted; nothing is read from it or written."""

    output_dir: Path = option("Accepted without effect.", default=Path("run"), role="output")
    overwrite: bool = option("Accepted without effect.", default=False)
    resume_from: Literal["auto"] | Path | None = option(
        "Accepted without effect.", default=None, role="input"
    )


@dataclass(frozen=True)
class StackOptions:
    """The GPU on which the run will compute."""

    check_report: Path | None = option(
        "Report of `aam check --json` on such a GPU, which measures the memory that driver and "
        "libraries take. By default the report that the launcher passes, else 1 GiB is assumed.",
        default=None,
        role="input",
    )


@dataclass(frozen=True)
class GpuOptions(StackOptions):
    """The GPU for which settings are found."""

    device_memory: float | None = option(
        "Memory of a GPU in GiB: also find the largest --batch-size and --asv-chunk for it.",
        default=None,
        takes=GIBIBYTES,
        basic=True,
    )
    json: bool = option(
        "Print the memory of the step alone, as JSON; in bytes.", default=False, basic=True
    )


@dataclass(frozen=True, kw_only=True)
class MemoryPretrain(Pretrain):
    """Predict the peak memory of a step of `aam pretrain` on a GPU, without one.

    Takes the options of `aam pretrain`; nothing is trained or written. --processes is the number
    of all GPUs.

    Examples:
        aam memory pretrain --table table.biom --tree tree.nwk --batch-size 32
        aam memory pretrain --table table.biom --embedding-dim 768 --asv-chunk 256 \
        --device-memory 16
    """

    run: UnusedRunOptions
    gpu: GpuOptions


@dataclass(frozen=True, kw_only=True)
class MemoryTrain(TrainNetwork):
    """Predict the peak memory of a step of the network in `aam train` on a GPU, without one.

    Takes the options of `aam train`; nothing is trained or written. --processes is the number of
    all GPUs. The members kernel and forest use no GPU.

    Examples:
        aam memory train --table table.biom --metadata metadata.tsv \
        --metadata-column age --pretrained-encoder run --freeze-base
        aam memory train --table table.biom --metadata metadata.tsv \
        --metadata-column age --fsdp --processes 8 --device-memory 16
    """

    run: UnusedRunOptions
    gpu: GpuOptions


@dataclass(frozen=True, kw_only=True)
class MemoryPredict:
    """Predict the peak memory of `aam predict` or `aam embed` on a GPU, without one.

    Examples:
        aam memory predict --table new.biom --model age
        aam memory predict --table new.biom --model age --batch-size 256
    """

    input: TableOptions
    model: Path = option("Checkpoint or run folder with a network.", role="input")
    batch_size: int = option("Samples in a batch.", default=32, takes=ONE_OR_MORE, basic=True)
    gpu: StackOptions
