"""`aam train`: training of the models that predict a metadata column."""

from __future__ import annotations

import shlex

from aam.console import say
from aam.contract.options.commands.learn import Train
from aam.data.metrics import summary
from aam.members.train import train
from aam.report.terminal import show


def run(options: Train) -> None:
    """Train the members; print the scores of the folds and the next command."""
    scored = train(options)
    if scored is None:  # the first rank prints
        return
    if scored.folds:
        show(summary(scored, options.target.metadata_column))
    say(f"Next: aam report --run-dir {shlex.quote(str(options.run.output_dir))}")
