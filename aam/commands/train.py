"""`aam train`: training of the models that predict metadata columns."""

from __future__ import annotations

from pathlib import Path

from aam.contract.options.commands.train import Train
from aam.contract.options.commands.use import ImportanceOptions
from aam.contract.preflight import check_run_folder, is_usable, target_folders
from aam.members.option_checks import resolve


def run(options: Train) -> None:
    """Train the members; print the scores of the folds, and write the report.

    Args:
        options: data, target, members and run folder of `aam train`.

    Raises:
        AamError: see `check_run_folder`, `resolve` and `train_targets`.
    """
    # Both checks come before the imports of PyTorch and scikit-learn, which take 3 CPU-seconds.
    check_run_folder(options.run.output_dir, is_usable(options.run))
    options = resolve(options)
    from aam.commands import importance
    from aam.data.metrics import summary
    from aam.pipeline.targets import train_targets
    from aam.report.page import write_reports
    from aam.report.terminal import show

    found = train_targets(options)
    for column, scored in found.items():
        if scored is None:  # the first rank prints
            return
        if scored.folds:
            show(summary(scored, column))
    folders = target_folders(options.run.output_dir) or [options.run.output_dir]
    if options.uses_network:
        for folder in folders:
            importance.run(_importance_options(options, folder))
    write_reports(folders)


def _importance_options(options: Train, folder: Path) -> ImportanceOptions:
    """Return the options of `aam importance` for a run with a network, see `write_results`."""
    return ImportanceOptions(
        input=options.input,
        device=options.device,
        model=folder,
        output=folder / "importance.tsv",
        taxonomy=options.taxonomy,
        metadata=options.target.metadata,
        overwrite=True,
    )
