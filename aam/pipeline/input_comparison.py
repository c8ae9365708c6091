"""Comparison of the inputs of a model: metadata alone, counts alone, and both.

A site or a season that predicts by itself must not be taken for biology. The same members are
fitted to the same splits with the metadata columns alone and with the counts alone, and combined in
the same way; paired differences say whether either adds something to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aam.console import info, warn
from aam.contract.options.members import default_members
from aam.members.base import F64
from aam.members.ensemble import combine_results
from aam.members.evaluation import compare, shown_metrics
from aam.members.member import CrossValidated, Estimator, TrainingSamples, estimator
from aam.members.scores import Folds

METADATA, COUNTS, BOTH = "metadata alone", "counts alone", "metadata and counts"


def predict_alone(
    members: Mapping[str, Estimator[Any]],
    samples: TrainingSamples,
    folds: Folds,
    of_counts: Mapping[str, CrossValidated],
) -> dict[str, F64]:
    """Return the held-out predictions [M, C] of the members without counts, and without metadata.

    Without an estimator among the members, all default estimators read the metadata alone.
    """

    def predict(
        title: str, members: Mapping[str, Estimator[Any]], alone: TrainingSamples
    ) -> dict[str, CrossValidated]:
        weighed = len(members) > 1
        return {
            name: member.cross_validate(alone, folds, False, title, weighed)
            for name, member in members.items()
        }

    # No network is fitted to the metadata alone: without an estimator among the members, the
    # default ones are.
    of_metadata = members or {name: estimator(name) for name in default_members()}
    metadata = predict(METADATA, of_metadata, samples.metadata_alone)
    counts = predict(COUNTS, members, samples.counts_alone) | dict(of_counts)
    return {
        title: combine_results(results, folds).predictions_MC
        for title, results in ((METADATA, metadata), (COUNTS, counts))
    }


def compare_inputs(
    columns: Sequence[str], predictions: Mapping[str, F64], folds: Folds
) -> dict[str, Any]:
    """Score each input on the held-out samples."""
    drawn = {name: folds.drawn(predictions_MC) for name, predictions_MC in predictions.items()}
    differences = [compare(drawn, BOTH, one, folds.units) for one in (METADATA, COUNTS)]
    adds = [one["beyond_noise"] and one["value"] > 0 for one in differences]
    return {
        "columns": list(columns),
        "models": {
            name: {metric: asdict(score) for metric, score in model.score().items()}
            for name, model in drawn.items()
        },
        "differences": differences,
        "conclusion": " ".join(
            (
                "The counts add to the metadata."
                if adds[0]
                else "The metadata alone predict as well: the counts add nothing beyond noise, and "
                "the scores are no evidence of a signal of the microbiome.",
                "The metadata add to the counts."
                if adds[1]
                else "The metadata add nothing to the counts beyond noise: a model without them "
                "needs the table alone.",
            )
        ),
        "counts_add": adds[0],
    }


def show_inputs(inputs: Mapping[str, Any], part: str) -> None:
    """Print the scores of each input, the differences and the conclusion."""
    info(f"Metadata that the model reads: {', '.join(inputs['columns'])}.")
    for name, metrics in inputs["models"].items():
        info(f"{name}, {part}: {shown_metrics(metrics)}")
    for difference in inputs["differences"]:
        info(f"{difference['sentence']}.")
    (info if inputs["counts_add"] else warn)(inputs["conclusion"])
