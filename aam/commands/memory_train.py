"""`aam memory train`: the predicted memory of a step of `aam train`, and where it fits."""

from __future__ import annotations

from aam.contract.options.commands.memory import MemoryTrain
from aam.performance.memory_report import show_training
from aam.performance.memory_runs import training_run


def run(options: MemoryTrain) -> None:
    """Print the memory of the step on the samples with most ASVs.

    Raises:
        AamError: see the readers.
    """
    show_training(training_run(options), options)
