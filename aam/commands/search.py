"""`aam search`: hyper-parameters by nested cross-validation."""

from __future__ import annotations

from aam.console import info
from aam.contract.options.commands.search import Search
from aam.pipeline.search import BEST, search


def run(options: Search) -> None:
    """Search, and print the score of each fold and of the search."""
    result = search(options)
    if result is None:
        return
    for number, fold in enumerate(result["folds"], start=1):
        info(
            f"Fold {number}: {result['metric']} {fold['outer']:.3f} with {fold['values']} "
            f"(inner folds, which chose them: {fold['inner']:.3f})."
        )
    info(
        f"Score of the search: {result['metric']} {result['outer']:.3f}, the mean of "
        f"{len(result['folds'])} folds whose samples chose nothing. Train with all samples: "
        f"aam train --config {options.run.output_dir / BEST}, and the other options of this search."
    )
