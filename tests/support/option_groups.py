"""Groups of options with their defaults, as a command line that gives the required ones alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aam.contract.options.device import DeviceOptions, ScaleOptions, SpeedOptions
from aam.contract.options.study import PhylogenyOptions, SampleOptions, SplitOptions, TableOptions
from aam.contract.options.training import LoopOptions, MaskOptions, ModelOptions, RunOptions


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
