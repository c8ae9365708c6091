"""`aam train` and `aam search`: the commands that train models of a target.

scikit-learn takes 2 CPU-seconds to import; a refusal does not wait for it.
"""

from __future__ import annotations

from aam.console import info
from aam.contract.options.commands.train import Search, Train
from aam.contract.preflight import check_run_folder


def run_train(options: Train) -> None:
    """Train the members for each target of --metadata-column, and print their scores."""
    run_options = options.run
    resumes = run_options.resume_from is not None
    check_run_folder(run_options.output_dir, run_options.overwrite, resumes)
    from aam.data.metadata import read_metadata
    from aam.members.option_checks import check_targets, resolve

    options = resolve(options)
    metadata = read_metadata(options.target.metadata)
    columns = metadata.listed((options.target.metadata_column,))
    if len(columns) > 1:
        check_targets(options, columns)
    from aam.pipeline.run import run
    from aam.pipeline.several_targets import options_of_targets, run_targets

    targets = options_of_targets(options, columns, metadata)
    if len(targets) > 1:
        run_targets(options, targets, metadata)
    else:
        run(targets[columns[0]], metadata=metadata)


def run_search(options: Search) -> None:
    """Search, and print the score of each fold and of the search."""
    from aam.pipeline.search import BEST, search

    result = search(options)
    if result is None:
        return

    def shown(score: float | None) -> str:
        return f"{result['metric']} {'not defined' if score is None else f'{score:.3f}'}"

    for number, fold in enumerate(result["folds"], start=1):
        info(
            f"Fold {number}: {shown(fold['outer'])} with {fold['values']} "
            f"({fold['inner']:.3f} in the inner folds that chose them)."
        )
    info(
        f"Score of the search: {shown(result['outer'])} on the held-out samples of "
        f"{len(result['folds'])} folds, which chose no option. To train with all samples, run aam "
        f"train --config {options.run.output_dir / BEST} with the other options of this search."
    )
