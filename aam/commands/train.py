"""`aam train`: training of the models that predict metadata columns."""

from __future__ import annotations

import shlex

from aam.console import info
from aam.contract.options.commands.train import Train
from aam.data.metrics import summary
from aam.members.targets import train_targets
from aam.report.terminal import show


def run(options: Train) -> None:
    """Train the members; print the scores of the folds and the next command."""
    found = train_targets(options)
    for column, scored in found.items():
        if scored is None:  # the first rank prints
            return
        if scored.folds:
            show(summary(scored, column))
    info(f"Next: aam report --run-dir {shlex.quote(str(options.run.output_dir))}")
