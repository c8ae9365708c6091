"""Options of the commands that test a GPU and its software or measure another command."""

from pathlib import Path
from typing import ClassVar, Literal

from aam.contract.dataclass import dataclass
from aam.contract.options import (
    GIBIBYTES,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    Range,
    basic_option,
    option,
    required_option,
)
from aam.contract.options.groups import DEVICE_HELP, AttnImplementation, Device, MixedPrecision

ABOVE_ZERO = Range("more than 0", 0, open_below=True)

PartName = Literal["host", "check", "golden", "memory", "speed", "unified", "ranks", "interruption",
                   "launch", "nodes"]  # fmt: skip
"""Parts of `aam acceptance`."""


@dataclass(frozen=True)
class Check:
    """Test whether this GPU, driver and PyTorch compute attention correctly.

    Examples:
        aam check
        aam check --quick --json
    """

    device: Device = basic_option(DEVICE_HELP, default="auto")
    quick: bool = basic_option("Only small tests, without timing: takes seconds.", default=False)
    json: bool = basic_option("Print the report as JSON.", default=False)
    timeout: float = option(
        "Seconds without a result until a GPU counts as hanging.",
        default=120.0,
        takes=ABOVE_ZERO,
    )


@dataclass(frozen=True)
class GoldenOptions:
    """Device, attention and precision; a faulty attention kernel is used all the same."""

    device: Device = basic_option(DEVICE_HELP, default="auto")
    attn_implementation: AttnImplementation = option(
        "Attention kernel of PyTorch ('sdpa': same as auto).", default="auto"
    )
    mixed_precision: MixedPrecision = option(
        "Precision of matrix products; 'auto': bf16 on a GPU that supports it, else none.",
        default="none",
    )


@dataclass(frozen=True)
class GoldenGenerate:
    """Compute a small fixed case on this machine and save the result of every stage.

    Examples:
        aam golden generate golden --device cpu
        aam golden generate golden --overwrite
    """

    stack: GoldenOptions
    golden_dir: Path = required_option(
        "Folder for the golden files; `--golden-dir` can be omitted.", role="output", first=True
    )
    overwrite: bool = basic_option("Replace existing golden files in the folder.", default=False)


@dataclass(frozen=True)
class GoldenCompare:
    """Compute the same case and print the first stage that differs; exit status 1 if any.

    Examples:
        aam golden compare golden
        aam golden compare golden --device cpu --json
    """

    stack: GoldenOptions
    golden_dir: Path = required_option(
        "Folder of `aam golden generate`; `--golden-dir` can be omitted.", first=True
    )
    json: bool = basic_option("Print the comparison as JSON.", default=False)


@dataclass(frozen=True)
class Acceptance:
    """Measure correctness, memory and speed of this host and image.

    Each part runs commands with a time limit; a failed part does not stop the others. --output-dir
    gets acceptance.json, report.html and settings.yaml. The same command continues with the
    unfinished parts; with another image it adds a run to the file. The ranks of a job on two nodes
    measure the part `nodes` together.

    Examples:
        aam acceptance --output-dir accepted
        aam acceptance --output-dir accepted --minutes 20 --parts host check golden
    """

    starts_ranks: ClassVar[bool] = True

    output_dir: Path = required_option("Folder for the results.", role="output")
    parts: tuple[PartName, ...] = basic_option(
        "Parts to measure; all by default.", default=(), metavar="PART"
    )
    minutes: float = basic_option(
        "Time for all parts; the next start continues with unfinished parts.",
        default=60.0,
        takes=ABOVE_ZERO,
    )
    device: Device = basic_option(DEVICE_HELP, default="auto")
    size: Literal["auto", "small", "full"] = basic_option(
        "Size of the simulated study and number of settings; 'auto': small on a CPU.",
        default="auto",
    )
    reference: Path | None = basic_option(
        "acceptance.json of a GPU of this model, to compare the measured speeds with."
    )
    overwrite: bool = basic_option("Measure finished parts again.", default=False)


Subject = Literal["threads", "workers", "prefetch", "attention", "recompute", "chunks", "compile",
                  "precision", "batch-size"]  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Predict the peak GPU memory of a step of another command, without a GPU.

    Takes a complete `aam pretrain`, `train`, `predict` or `embed`; nothing is trained or written.
    --processes of the command is the total number of GPUs. Kernel and forest use none.

    Examples:
        aam memory pretrain --table table.biom --tree tree.nwk --batch-size 32
        aam memory --device-memory 16 train --table table.biom \
        --metadata metadata.tsv --metadata-column age --fsdp --processes 8
    """

    device_memory: float | None = basic_option(
        "Memory of a GPU in GiB: also find the largest --batch-size and --asv-chunk for training.",
        takes=GIBIBYTES,
    )
    check_report: Path | None = option(
        "Report of `aam check --json` on this GPU model, for the memory of driver and libraries. "
        "Default: the launcher's value, else 1 GiB."
    )
    json: bool = basic_option("Print only the memory of the step as JSON, in bytes.", default=False)


@dataclass(frozen=True)
class Tune:
    """Find faster settings of a training command or program.

    Takes a complete `aam pretrain` or `aam train` and measures the transformer, or, after --, any
    program that writes a line of JSON per step (docs/performance.md). Every run is a process.
    --output-dir gets settings.yaml, for --config, and tune.json.

    Examples:
        aam tune --output-dir tuned pretrain --table table.biom --tree tree.nwk
        aam tune --output-dir tuned --values kernel=math,flash \
        -- python train.py --kernel {kernel}
    """

    output_dir: Path = required_option("Folder for measurements and settings.", role="output")
    overwrite: bool = basic_option("Replace the measurements in the folder.", default=False)
    subjects: tuple[Subject, ...] = basic_option(
        "Settings to vary; all that the device has by default.", default=()
    )
    rounds: int = basic_option(
        "Runs of each setting, alternating with its reference.",
        default=3,
        takes=ONE_OR_MORE,
    )
    steps: int = basic_option("Steps of a run, including warm-up.", default=25, takes=ONE_OR_MORE)
    warmup_steps: int = option("First steps of a run, not measured.", default=5, takes=ZERO_OR_MORE)
    compare_by: Literal["seconds", "cpu-seconds"] = basic_option(
        "Time to compare. 'cpu-seconds': for a machine in use by others; it cannot show the gain "
        "of threads.",
        default="seconds",
    )
    step_timeout: float = option(
        "Seconds without a step until a run counts as hanging.",
        default=600.0,
        takes=ABOVE_ZERO,
    )
    values: tuple[str, ...] = basic_option(
        "Values of a program to try, as name=VALUE,VALUE, the default first; they replace {name} "
        "in its command line.",
        default=(),
        metavar="NAME=VALUES",
    )
    half: tuple[str, ...] = option(
        "Names whose values change the precision: larger differences of the losses are accepted.",
        default=(),
        metavar="NAME",
        needs=("--values",),
    )


@dataclass(frozen=True)
class Profile:
    """Show the bottleneck of a run, from some steps of a command or the output of a profiler.

    torch.profiler records some steps of a complete `aam pretrain` or `aam train`. --output-dir gets
    trace.json.gz, for `aam profile` and https://ui.perfetto.dev. Without a command it reads kernel
    statistics and traces of rocprof, rocprofv3, nsys (CSV) and torch.profiler (Chrome trace).

    Examples:
        aam profile --output-dir profile pretrain --table table.biom --tree tree.nwk
        aam profile trace.json --compare trace_cuda.json --kernels 5
    """

    profile: Path | None = basic_option("Profiler output; `--profile` can be omitted.", first=True)
    compare: Path | None = basic_option(
        "Second profile of the same work, for example on CUDA instead of ROCm.",
        needs=("--profile",),
    )
    kernels: int = basic_option("Kernels to list, slowest first.", default=10, takes=ONE_OR_MORE)
    json: bool = basic_option("Print the result as JSON.", default=False)
    output_dir: Path | None = basic_option(
        "Folder for the trace of a command.", role="output", excludes=("--profile",)
    )
    overwrite: bool = basic_option(
        "Replace the trace in the folder.", default=False, needs=("--output-dir",)
    )
    profile_steps: int = basic_option(
        "Steps to record after the warm-up.", default=5, takes=ONE_OR_MORE, excludes=("--profile",)
    )
    warmup_steps: int = option(
        "Warm-up steps before recording.", default=5, takes=ZERO_OR_MORE, excludes=("--profile",)
    )
