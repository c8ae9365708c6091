"""`aam memory pretrain`: the predicted memory of a step of `aam pretrain`, and where it fits."""

from __future__ import annotations

from aam.contract.options.commands.memory import MemoryPretrain
from aam.performance.memory_report import show_training
from aam.performance.memory_runs import pretraining_run


def run(options: MemoryPretrain) -> None:
    """Print the memory of the step on the samples with most ASVs.

    Raises:
        AamError: see the readers.
    """
    show_training(pretraining_run(options), options)
