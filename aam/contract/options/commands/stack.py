"""Options of `aam check`, `aam golden` and `aam acceptance`, which examine a stack."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from aam.contract.options import ABOVE_ZERO, basic_option, option, required_option
from aam.contract.options.device import DEVICE_HELP, AttnImplementation, Device, MixedPrecision

PartName = Literal[
    "host",
    "check",
    "golden",
    "attention",
    "memory",
    "speed",
    "unified",
    "profile",
    "ranks",
    "interruption",
    "launch",
    "settings",
    "nodes",
]
"""Names of `aam.acceptance.parts.PARTS`."""


@dataclass(frozen=True)
class Check:
    """Measure whether this GPU, driver and PyTorch compute attention correctly.

    Examples:
        aam check
        aam check --quick --json
    """

    device: Device = basic_option(DEVICE_HELP, default="auto")
    quick: bool = basic_option("Small probes without timing; takes seconds.", default=False)
    json: bool = basic_option("Print the report as JSON.", default=False)
    timeout: float = option(
        "Seconds without a result after which a GPU counts as hanging.",
        default=120.0,
        takes=ABOVE_ZERO,
    )


@dataclass(frozen=True)
class GoldenOptions:
    """Device, attention and precision; a wrong attention kernel is not replaced."""

    device: Device = basic_option(DEVICE_HELP, default="auto")
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
    golden_dir: Path = required_option(
        "Folder for the golden files; `--golden-dir` can be omitted.", role="output", first=True
    )
    overwrite: bool = basic_option("Replace existing golden files in the folder.", default=False)


@dataclass(frozen=True)
class GoldenCompare:
    """Compute the same case here and print the first stage that differs; exit status 1 if any.

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
    """Measure correctness, memory and speed of this host and image, for one file to keep.

    Each part runs commands with a time limit; one that fails leaves the others as they are.
    --output-dir gets acceptance.json, report.html and settings.yaml. The same command goes on with
    the parts that are left, and with another image it adds a run to the file. Several ranks, as
    those of a job of two nodes, measure the part `nodes` together.

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
        "Time for all parts; what does not fit is left for the next start.",
        default=60.0,
        takes=ABOVE_ZERO,
    )
    device: Device = basic_option(DEVICE_HELP, default="auto")
    size: Literal["auto", "small", "full"] = basic_option(
        "Size of the simulated study and number of settings; 'auto': small on a CPU.",
        default="auto",
    )
    reference: Path | None = basic_option(
        "An acceptance.json of such a GPU, with whose speeds those measured here are compared."
    )
    overwrite: bool = basic_option("Measure parts again that are finished.", default=False)
