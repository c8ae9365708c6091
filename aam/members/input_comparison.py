"""Comparison of the inputs of a model: metadata alone, counts alone, and both.

A site or a season that predicts by itself must not be taken for biology. The same members are
fitted to the same splits with the metadata columns alone and with the counts alone, and combined in
the same way; paired differences say whether either adds something to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aam.console import info, warn
from aam.data.splits import Split
from aam.members.base import F64, Labels, Samples
from aam.members.cross_validation import HeldOut, cross_validate, held_out
from aam.members.ensemble import combine_members
from aam.members.estimators import ESTIMATORS
from aam.members.evaluation import sentence, shown_metrics
from aam.members.scores import draw_groups, draw_metrics

NO_COLUMNS: dict[str, Any] = {
    "categorical_columns": (),
    "numeric_columns": (),
    "conditional_scaling": (),
}
"""Options of a model that reads the counts alone."""

METADATA, COUNTS, BOTH = "metadata alone", "counts alone", "metadata and counts"


def predict_alone(
    members: Sequence[str],
    samples: Samples,
    fitted: Labels,
    undone: Callable[[F64], F64],
    labels: Labels,
    splits: Sequence[Split],
    seed: int,
    counts_alone: Mapping[str, F64],
) -> dict[str, F64]:
    """Return the held-out predictions [M, C] of the members without counts, and without metadata.

    Without an estimator among the members, all estimators read the metadata alone.

    Args:
        members: names of estimators.
        samples: counts and covariates.
        fitted: labels that the estimators read.
        undone: function from their predictions to the units of `labels`.
        labels: in the units of the target.
        splits: one, or one per fold.
        seed: of the estimators.
        counts_alone: held-out predictions of other members that read the counts alone.
    """

    def predict(title: str, names: Sequence[str], alone: Samples) -> dict[str, F64]:
        return {
            name: undone(
                cross_validate(
                    f"{name}, {title}", ESTIMATORS[name], alone, fitted, splits, seed, final=False
                ).predictions_MC
            )
            for name in names
        }

    held = held_out(splits)
    metadata = predict(METADATA, members or list(ESTIMATORS), samples.metadata_alone)
    counts = predict(COUNTS, members, samples.counts_alone) | dict(counts_alone)
    return {
        title: combine_members(predictions, labels, held).predictions_MC
        for title, predictions in ((METADATA, metadata), (COUNTS, counts))
    }


def compare_inputs(
    columns: Sequence[str],
    predictions: Mapping[str, F64],
    labels: Labels,
    held: HeldOut,
    units: str,
    seed: int,
) -> dict[str, Any]:
    """Score each input on the held-out samples; the entry `inputs` of scores.json.

    Args:
        columns: of the metadata.
        predictions: of `METADATA`, `COUNTS` and `BOTH`, [M, C].
        labels: of all N samples.
        held: the held-out samples.
        units: of the groups, for sentences ("samples", "groups of infant").
        seed: of the bootstrap.
    """
    draws = draw_groups(labels.groups[held.rows], seed)
    drawn = {name: draw_metrics(held.scored(f, labels), draws) for name, f in predictions.items()}
    differences = []
    for reference in (METADATA, COUNTS):
        metric, ahead = drawn[BOTH].ahead_of(drawn[reference])
        differences.append(
            {
                "model": BOTH,
                "reference": reference,
                "metric": metric,
                **asdict(ahead),
                "beyond_noise": ahead.beyond_noise,
                "sentence": sentence(BOTH, reference, metric, ahead, f"{draws.groups} {units}"),
            }
        )
    adds = [one["beyond_noise"] and one["value"] > 0 for one in differences]
    return {
        "columns": list(columns),
        "models": {
            name: {metric: asdict(score) for metric, score in found.score().items()}
            for name, found in drawn.items()
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
