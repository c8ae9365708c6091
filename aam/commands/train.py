"""`aam train`: training of the models that predict metadata columns."""

from __future__ import annotations

from aam.contract.options.commands.train import Train
from aam.contract.preflight import check_run_folder, is_usable
from aam.members.option_checks import resolve


def run(options: Train) -> None:
    """Train the members, and print the scores of the folds."""
    # Both checks come before the imports of PyTorch and scikit-learn, which take 3 CPU-seconds.
    check_run_folder(options.run.output_dir, is_usable(options.run))
    options = resolve(options)
    from aam.data.metrics import summary
    from aam.pipeline.targets import train_targets
    from aam.report.terminal import show

    # The scores follow when all is written: a terminal that fails costs no result.
    for column, scored in train_targets(options).items():
        if scored is not None and scored.folds:  # the first rank prints
            show(summary(scored, column))
