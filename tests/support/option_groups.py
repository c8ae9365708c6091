"""Groups of options with their defaults, as a command line that gives the required ones alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aam.contract.options.groups import (
    DeviceOptions,
    LoopOptions,
    MaskOptions,
    ModelOptions,
    PhylogenyOptions,
    RunOptions,
    SampleOptions,
    ScaleOptions,
    SpeedOptions,
    SplitOptions,
    TableOptions,
)


def option_groups(table: Path, folder: Path, **changed: Any) -> dict[str, Any]:
    """Return the groups of `aam pretrain` by field name; `changed` replaces some."""
    return {
        "input": TableOptions(table=table),
        "phylogeny": PhylogenyOptions(),
        "run": RunOptions(output_dir=folder),
        "sample": SampleOptions(),
        "model": ModelOptions(),
        "task": MaskOptions(),
        "split": SplitOptions(),
        "loop": LoopOptions(),
        "speed": SpeedOptions(),
        "device": DeviceOptions(),
        "scale": ScaleOptions(),
        **changed,
    }
