"""Options of `aam acceptance`, which measures a host and an image."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from aam.contract.options.device import DEVICE_HELP, Device
from aam.contract.options.field import ABOVE_ZERO, option

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

    output_dir: Path = option("Folder for the results.", role="output")
    parts: tuple[PartName, ...] = option(
        "Parts to measure; all by default.", default=(), basic=True, metavar="PART"
    )
    minutes: float = option(
        "Time for all parts; what does not fit is left for the next start.",
        default=60.0,
        takes=ABOVE_ZERO,
        basic=True,
    )
    device: Device = option(DEVICE_HELP, default="auto", basic=True)
    size: Literal["auto", "small", "full"] = option(
        "Size of the simulated study and number of settings; 'auto': small on a CPU.",
        default="auto",
        basic=True,
    )
    reference: Path | None = option(
        "An acceptance.json of such a GPU, with whose speeds those measured here are compared.",
        default=None,
        role="input",
        basic=True,
    )
    overwrite: bool = option("Measure parts again that are finished.", default=False, basic=True)
