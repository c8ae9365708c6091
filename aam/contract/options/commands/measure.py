"""Options of the commands that measure another command: `aam tune` and `aam profile`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import TrainNetwork
from aam.contract.options.field import ABOVE_ZERO, ONE_OR_MORE, ZERO_OR_MORE, option

Subject = Literal[
    "threads",
    "workers",
    "prefetch",
    "attention",
    "recompute",
    "chunks",
    "compile",
    "precision",
    "batch-size",
]


@dataclass(frozen=True)
class TuneOptions:
    """What is tried, how it is measured, and when it counts as the same training.

    Every run is a process of its own.
    """

    measure_only: bool = option(
        "Measure the speed and memory of each setting against the given options and write "
        "bench.json; losses are not compared, and nothing is chosen.",
        default=False,
        basic=True,
    )
    subjects: tuple[Subject, ...] = option(
        "What to vary; everything that the device has by default.", default=(), basic=True
    )
    rounds: int = option(
        "Runs of each setting, in turns with the one it is compared with.",
        default=3,
        takes=ONE_OR_MORE,
        basic=True,
    )
    steps: int = option(
        "Steps of a run, warm-up included.", default=25, takes=ONE_OR_MORE, basic=True
    )
    warmup_steps: int = option(
        "First steps of a run that are not measured.", default=5, takes=ZERO_OR_MORE
    )
    compare_by: Literal["seconds", "cpu-seconds"] = option(
        "Time that counts. 'cpu-seconds': for a machine that others use at the same time; it does "
        "not show what threads gain.",
        default="seconds",
        basic=True,
    )
    step_timeout: float = option(
        "Seconds without a step after which a run counts as hanging.",
        default=600.0,
        takes=ABOVE_ZERO,
    )
    parity_steps: int = option(
        "Steps of the runs that compare the loss late in training, on the last third of them.",
        default=150,
        takes=ONE_OR_MORE,
        basic=True,
    )


@dataclass(frozen=True, kw_only=True)
class TunePretrain(Pretrain):
    """Find faster settings of `aam pretrain` that train the same network.

    Takes the options of `aam pretrain`. --output-dir gets settings.yaml, for --config, tune.json
    and report.html; an interrupted search continues.

    Examples:
        aam tune pretrain --table table.biom --tree tree.nwk --output-dir tuned
        aam tune pretrain --table table.biom --tree tree.nwk --output-dir speed \
        --subjects workers attention --measure-only
    """

    measure: TuneOptions


@dataclass(frozen=True, kw_only=True)
class TuneTrain(TrainNetwork):
    """Find faster settings of `aam train` that train the same network.

    Takes the options of `aam train`; only the transformer is measured.

    Examples:
        aam tune train --table table.biom --metadata metadata.tsv \
        --metadata-column age --output-dir tuned
        aam tune train --table table.biom --metadata metadata.tsv \
        --metadata-column age --output-dir tuned --subjects threads workers
    """

    measure: TuneOptions


@dataclass(frozen=True)
class WorkloadOptions:
    """A program that writes a line of JSON for each step (docs/performance.md), and its values."""

    workload: str = option(
        "Command line with {name} where a value goes; `--workload` can be omitted.", first=True
    )
    values: tuple[str, ...] = option(
        "Values to try, as name=VALUE,VALUE; the first is the default.", default=(), basic=True,
        metavar="NAME=VALUES",
    )  # fmt: skip
    half: tuple[str, ...] = option(
        "Names whose values change the precision: their losses may differ more.",
        default=(),
        metavar="NAME",
    )
    output_dir: Path = option("Folder for the measurements and the report.", role="output")
    overwrite: bool = option("Replace the measurements in the folder.", default=False, basic=True)


@dataclass(frozen=True)
class TuneWorkload:
    """Find faster values for any program that logs its steps, with the same losses.

    Examples:
        aam tune workload "python train.py --kernel {kernel}" --values kernel=math,flash \
        --output-dir tuned
        aam tune workload "python train.py --precision {precision}" \
        --values precision=fp32,fp16 --half precision --output-dir tuned
    """

    program: WorkloadOptions
    measure: TuneOptions


@dataclass(frozen=True)
class ProfileOptions:
    """Steps that torch.profiler records."""

    profile_steps: int = option(
        "Steps to record, after the warm-up.", default=5, takes=ONE_OR_MORE, basic=True
    )
    warmup_steps: int = option("Steps before them.", default=5, takes=ZERO_OR_MORE)
    kernels: int = option(
        "Kernels to list, longest first.", default=10, takes=ONE_OR_MORE, basic=True
    )
    json: bool = option("Print the result as JSON.", default=False, basic=True)


@dataclass(frozen=True, kw_only=True)
class ProfilePretrain(Pretrain):
    """Show what limits `aam pretrain`: torch.profiler records some steps of it.

    Takes the options of `aam pretrain`. --output-dir gets trace.json.gz, which `aam profile` and
    https://ui.perfetto.dev read.

    Examples:
        aam profile pretrain --table table.biom --tree tree.nwk --output-dir profile
        aam profile pretrain --table table.biom --tree tree.nwk --output-dir profile --json
    """

    profile: ProfileOptions


@dataclass(frozen=True, kw_only=True)
class ProfileTrain(TrainNetwork):
    """Show what limits `aam train`: torch.profiler records some steps of it.

    Takes the options of `aam train`; only the transformer is profiled.

    Examples:
        aam profile train --table table.biom --metadata metadata.tsv \
        --metadata-column age --output-dir profile
        aam profile train --table table.biom --metadata metadata.tsv \
        --metadata-column age --output-dir profile --json
    """

    profile: ProfileOptions
