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
from aam.members.base import F64, Samples
from aam.members.cross_validation import cross_validate
from aam.members.ensemble import combine_members
from aam.members.estimators import ESTIMATORS
from aam.members.evaluation import compare, shown_metrics
from aam.members.folds import Folds
from aam.members.relations import AsvRelations

NO_COLUMNS: dict[str, Any] = {"categorical_columns": (), "numeric_columns": ()}
"""Options of a model that reads the counts alone."""

METADATA, COUNTS, BOTH = "metadata alone", "counts alone", "metadata and counts"


def predict_alone(
    members: Sequence[str],
    samples: Samples,
    relations: AsvRelations,
    folds: Folds,
    counts_alone: Mapping[str, F64],
) -> dict[str, F64]:
    """Return the held-out predictions [M, C] of the members without counts, and without metadata.

    Without an estimator among the members, all estimators read the metadata alone.

    Args:
        members: names of estimators.
        samples: counts and covariates.
        relations: of the ASVs of the samples.
        folds: labels and splits.
        counts_alone: held-out predictions of other members that read the counts alone.
    """

    def predict(
        title: str, names: Sequence[str], alone: Samples, relations: AsvRelations
    ) -> dict[str, F64]:
        return {
            name: cross_validate(
                f"{name}, {title}", ESTIMATORS[name], alone, relations, folds, final=False
            ).predictions_MC
            for name in names
        }

    without = samples.metadata_alone
    no_asvs = AsvRelations(without.tokens_FL)
    metadata = predict(METADATA, members or list(ESTIMATORS), without, no_asvs)
    counts = predict(COUNTS, members, samples.counts_alone, relations) | dict(counts_alone)
    return {
        title: combine_members(predictions, folds).predictions_MC
        for title, predictions in ((METADATA, metadata), (COUNTS, counts))
    }


def compare_inputs(
    columns: Sequence[str], predictions: Mapping[str, F64], folds: Folds
) -> dict[str, Any]:
    """Score each input on the held-out samples; the entry `inputs` of scores.json.

    Args:
        columns: of the metadata.
        predictions: of `METADATA`, `COUNTS` and `BOTH`, [M, C].
        folds: labels and splits.
    """
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
