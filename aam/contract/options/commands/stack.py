"""Options of `aam check` and `aam golden`, which examine a stack."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.device import DEVICE_HELP, AttnImplementation, Device, MixedPrecision
from aam.contract.options.field import ABOVE_ZERO, option


@dataclass(frozen=True)
class Check:
    """Measure whether this GPU, driver and PyTorch compute attention correctly.

    Examples:
        aam check
        aam check --quick --json
    """

    device: Device = option(DEVICE_HELP, default="auto", basic=True)
    quick: bool = option("Small probes without timing; takes seconds.", default=False, basic=True)
    json: bool = option("Print the report as JSON.", default=False, basic=True)
    timeout: float = option(
        "Seconds without a result after which a GPU counts as hanging.",
        default=120.0,
        takes=ABOVE_ZERO,
    )


@dataclass(frozen=True)
class GoldenOptions:
    """Device, attention and precision; a wrong attention kernel is not replaced."""

    device: Device = option(DEVICE_HELP, default="auto", basic=True)
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
    golden_dir: Path = option(
        "Folder for the golden files; `--golden-dir` can be omitted.", role="output", first=True
    )
    overwrite: bool = option(
        "Replace existing golden files in the folder.", default=False, basic=True
    )


@dataclass(frozen=True)
class GoldenCompare:
    """Compute the same case here and print the first stage that differs; exit status 1 if any.

    Examples:
        aam golden compare golden
        aam golden compare golden --device cpu --json
    """

    stack: GoldenOptions
    golden_dir: Path = option(
        "Folder of `aam golden generate`; `--golden-dir` can be omitted.", role="input", first=True
    )
    json: bool = option("Print the comparison as JSON.", default=False, basic=True)
