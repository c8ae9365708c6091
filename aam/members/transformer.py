"""The transformer of `aam train`, imported only where it is a member.

PyTorch's distributed packages take a CPU-second to import, which a kernel and a
forest do without.
"""

from __future__ import annotations

import dataclasses

from aam.console import info
from aam.contract.options.commands.train import Train
from aam.contract.preflight import COUNTS_ALONE
from aam.members.input_comparison import NO_COLUMNS
from aam.performance.memory.fit import automatic
from aam.performance.memory.runs import training_run
from aam.training.train import HeldOut
from aam.training.train import train as train_network


def train(options: Train, compare_inputs: bool) -> tuple[HeldOut | None, HeldOut | None]:
    """Train the transformer, with --batch-size and --asv-chunk that fit into memory.

    Args:
        options: of the command.
        compare_inputs: train it again without metadata if it reads metadata.

    Returns:
        Its predictions of the held-out samples, and those of the transformer that reads the counts
        alone; None for one that was not trained, and on ranks other than the first.

    Raises:
        AamError: see `aam.training.train` and `automatic`.
    """
    options = automatic(options, training_run)
    trained = train_network(options)
    if not (compare_inputs and options.covariates.columns):
        return trained, None
    folder, run = options.run.output_dir, options.run
    info("Training the transformer again with the counts alone, to compare the inputs.")
    counts = train_network(
        dataclasses.replace(
            options,
            covariates=dataclasses.replace(options.covariates, **NO_COLUMNS),
            split=dataclasses.replace(options.split, splits=folder / "splits.tsv"),
            run=dataclasses.replace(
                run,
                output_dir=folder / COUNTS_ALONE,
                resume_from=run.resume_from and "auto",
            ),
        )
    )
    return trained, counts
