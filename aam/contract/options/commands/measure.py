"""Options of the commands that measure another one: `aam memory`, `aam tune` and `aam profile`.

The command that is measured follows with its own options, see `aam.contract.options.command_line`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options import (
    ABOVE_ZERO,
    GIBIBYTES,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    basic_option,
    option,
    required_option,
)

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
class Memory:
    """Predict the peak memory of a step of another command on a GPU, without one.

    Takes `aam pretrain`, `train`, `predict` or `embed` as it is; nothing is trained or written.
    --processes of the command is the number of all GPUs. The members kernel and forest use none.

    Examples:
        aam memory pretrain --table table.biom --tree tree.nwk --batch-size 32
        aam memory --device-memory 16 train --table table.biom \
        --metadata metadata.tsv --metadata-column age --fsdp --processes 8
    """

    device_memory: float | None = basic_option(
        "Memory of a GPU in GiB: also find the largest --batch-size and --asv-chunk of a training "
        "for it.",
        takes=GIBIBYTES,
    )
    check_report: Path | None = option(
        "Report of `aam check --json` on such a GPU, which measures the memory that driver and "
        "libraries take. By default the report that the launcher passes, else 1 GiB is assumed."
    )
    json: bool = basic_option(
        "Print the memory of the step alone, as JSON; in bytes.", default=False
    )


@dataclass(frozen=True)
class Tune:
    """Find faster settings of a command or program that trains the same network.

    Takes `aam pretrain` or `aam train` as it is, of which the transformer is measured, or after --
    any program that writes a line of JSON for each step (docs/performance.md). Every run is a
    process of its own. --output-dir gets settings.yaml, for --config, and tune.json.

    Examples:
        aam tune --output-dir tuned pretrain --table table.biom --tree tree.nwk
        aam tune --output-dir tuned --values kernel=math,flash \
        -- python train.py --kernel {kernel}
    """

    output_dir: Path = required_option(
        "Folder for the measurements and the settings.", role="output"
    )
    overwrite: bool = basic_option("Replace the measurements in the folder.", default=False)
    subjects: tuple[Subject, ...] = basic_option(
        "What to vary; everything that the device has by default.", default=()
    )
    rounds: int = basic_option(
        "Runs of each setting, in turns with the one it is compared with.",
        default=3,
        takes=ONE_OR_MORE,
    )
    steps: int = basic_option("Steps of a run, warm-up included.", default=25, takes=ONE_OR_MORE)
    warmup_steps: int = option(
        "First steps of a run that are not measured.", default=5, takes=ZERO_OR_MORE
    )
    compare_by: Literal["seconds", "cpu-seconds"] = basic_option(
        "Time that counts. 'cpu-seconds': for a machine that others use at the same time; it does "
        "not show what threads gain.",
        default="seconds",
    )
    step_timeout: float = option(
        "Seconds without a step after which a run counts as hanging.",
        default=600.0,
        takes=ABOVE_ZERO,
    )
    values: tuple[str, ...] = basic_option(
        "Values of a program to try, as name=VALUE,VALUE; the first is the default, and {name} in "
        "its command line stands for them.",
        default=(),
        metavar="NAME=VALUES",
    )
    half: tuple[str, ...] = option(
        "Names whose values change the precision: their losses may differ more.",
        default=(),
        metavar="NAME",
        needs=("--values",),
    )


@dataclass(frozen=True)
class Profile:
    """Show what limits a run, from some steps of a command or the output of a profiler.

    Of `aam pretrain` or `aam train`, taken as it is, torch.profiler records some steps.
    --output-dir gets trace.json.gz, which `aam profile` and https://ui.perfetto.dev read. Otherwise
    it reads kernel statistics and traces of rocprof, rocprofv3 and nsys (CSV) and of
    torch.profiler (Chrome trace).

    Examples:
        aam profile --output-dir profile pretrain --table table.biom --tree tree.nwk
        aam profile trace.json --compare trace_cuda.json --kernels 5
    """

    profile: Path | None = basic_option(
        "Output of a profiler; `--profile` can be omitted.", first=True
    )
    compare: Path | None = basic_option(
        "A second profile of the same work, for example on CUDA instead of ROCm.",
        needs=("--profile",),
    )
    kernels: int = basic_option("Kernels to list, longest first.", default=10, takes=ONE_OR_MORE)
    json: bool = basic_option("Print the result as JSON.", default=False)
    output_dir: Path | None = basic_option(
        "Folder for the trace of a command.", role="output", excludes=("--profile",)
    )
    overwrite: bool = basic_option(
        "Replace the trace in the folder.", default=False, needs=("--output-dir",)
    )
    profile_steps: int = basic_option(
        "Steps to record, after the warm-up.", default=5, takes=ONE_OR_MORE, excludes=("--profile",)
    )
    warmup_steps: int = option(
        "Steps before them.", default=5, takes=ZERO_OR_MORE, excludes=("--profile",)
    )
