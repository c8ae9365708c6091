"""Results of `aam train`: ensemble checkpoint, predictions.tsv, scores.json and printed scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aam.console import info, warn
from aam.contract.files import atomic_write
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.data.batches import BatchPlan
from aam.data.metadata import read_metadata
from aam.data.metrics import ScoredPredictions
from aam.members import checkpoint
from aam.members.base import F64, Labels, Model
from aam.members.confounding import confounders, warning
from aam.members.cross_validation import CrossValidated, HeldOut, held_out
from aam.members.ensemble import Combined, combine_members
from aam.members.evaluation import ENSEMBLE, evaluate, shown_metrics, unit_of
from aam.members.input_comparison import BOTH, compare_inputs, show_inputs
from aam.members.tables import held_out_table, interval_columns, member_columns
from aam.members.training_data import describe
from aam.training.callbacks.loggers import log_scores
from aam.training.inference.output_tables import write_table
from aam.training.inference.prediction import checkpoint_files
from aam.training.labelled_study import LabelledStudy, output_range


@dataclass(frozen=True)
class Estimates:
    """Fitted estimators by name, and the labels that they predict, in the units of the target.

    `alone` has the held-out predictions of metadata and counts alone; empty without covariates.
    `fold_importance` is float64 [K, F] of each estimator, see `effects.Importance.size_U`, of the
    models of K folds; empty with one split.
    """

    labels: Labels
    results: Mapping[str, CrossValidated]
    alone: Mapping[str, F64]
    fold_importance: Mapping[str, F64]


def write_results(
    options: Train, labelled: LabelledStudy, estimated: Estimates, others: dict[str, F64]
) -> tuple[dict[str, Any], ScoredPredictions]:
    """Combine all members; write the checkpoint, predictions.tsv and scores.json.

    The transformer alone has its own checkpoint and predictions.

    Args:
        options: of the command.
        labelled: the study.
        estimated: the estimators among the members.
        others: held-out predictions [M, C] of other members.

    Returns:
        Facts for the run record, and the ensemble's predictions of the held-out samples.
    """
    held, results = held_out(labelled.splits), estimated.results
    members = {name: result.predictions_MC for name, result in results.items()} | others
    combined = combine_members(members, estimated.labels, held)
    if results:
        _write_ensemble(options, labelled, estimated, others, members, held, combined)
    return _write_scores(options, labelled, estimated, members, held, combined)


def _write_ensemble(
    options: Train,
    labelled: LabelledStudy,
    estimated: Estimates,
    others: Mapping[str, F64],
    members: Mapping[str, F64],
    held: HeldOut,
    combined: Combined,
) -> None:
    """Write the checkpoint and predictions.tsv; `members` are the estimators and the others."""
    folder, column = options.run.output_dir, options.target.metadata_column
    labels, results = estimated.labels, estimated.results
    models: dict[str, Model[Any]] = {}
    for name, result in results.items():
        assert result.model is not None
        models[name] = result.model
    sampling = options.sample
    plan = BatchPlan(options.loop.seed, labelled.depth, sampling.token_limit, sampling.asv_sampling)
    (folder / "checkpoints").mkdir(exist_ok=True)
    checkpoint.save(
        folder / "checkpoints" / checkpoint.NAME,
        column,
        labels.classes,
        labels.levels,
        options.target_transform if not labels.classes else "none",
        output_range(options),
        combined.ensemble,
        labelled.study.tokens_FL,
        models,
        describe(labelled.study, labelled.splits, labels.groups, plan),
        checkpoint_files(folder) if others else [],
        to_plain(options),
        estimated.fold_importance,
    )
    limits = output_range(options)
    columns = interval_columns(combined.predictions_MC, combined.half_widths_M, limits)
    for name, predictions_MC in members.items():
        columns |= member_columns(name, predictions_MC, labels.classes, labels.levels)
    ids = labelled.study.table.sample_ids
    table = held_out_table(ids, held, labels, combined.predictions_MC, columns)
    write_table(folder / "predictions.tsv", table)


def _write_scores(
    options: Train,
    labelled: LabelledStudy,
    estimated: Estimates,
    members: Mapping[str, F64],
    held: HeldOut,
    combined: Combined,
) -> tuple[dict[str, Any], ScoredPredictions]:
    """Write scores.json and print the scores; return as `write_results`."""
    folder, column = options.run.output_dir, options.target.metadata_column
    labels, results = estimated.labels, estimated.results
    scores = evaluate(
        column,
        options.split.group_column,
        labels,
        labelled.splits,
        held,
        members,
        {name: result.cpu_seconds for name, result in results.items()},
        combined,
        options.loop.seed,
    )
    scored = held.scored(combined.predictions_MC, labels)
    inputs = labelled.covariates.columns if labelled.covariates else ()
    if estimated.alone:
        scores["inputs"] = compare_inputs(
            inputs,
            {**estimated.alone, BOTH: combined.predictions_MC},
            labels,
            held,
            unit_of(options.split.group_column),
            options.loop.seed,
        )
    scores["confounders"] = confounders(
        read_metadata(options.target.metadata),
        (column, options.split.group_column, *inputs),
        labelled.study.table.sample_ids,
        labelled.study.reads,
        labels,
        labelled.splits,
        held,
        scored,
        options.loop.seed,
    )
    with atomic_write(folder / "scores.json") as temporary:
        temporary.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    log_scores(options, _final_scores(scores))
    _show(scores)
    best = {
        f"{held.part}_{name}": found["value"]
        for name, found in scores["models"][ENSEMBLE]["metrics"].items()
    }
    return {"members": list(members), "best": best}, scored


def _final_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of all models for a tracker, such as `test_r2/forest`."""
    return {
        f"{scores['part']}_{metric}/{name}": found["value"]
        for name, model in scores["models"].items()
        for metric, found in model["metrics"].items()
        if found["value"] is not None
    }


def _show(scores: Mapping[str, Any]) -> None:
    """Print members, the scores of every model, differences to the ensemble, and the interval."""
    weights = {name: one["weight"] for name, one in scores["models"].items()}
    members = [name for name, weight in weights.items() if weight is not None]
    kept = [name for name in members if weights[name]]
    if left_out := [name for name in members if not weights[name]]:
        info(
            f"The ensemble is the {' and '.join(kept)}; left out: {', '.join(left_out)}, since the "
            "held-out predictions are better without it, or it predicts no better than the mean."
        )
    for name, model in scores["models"].items():
        if members == [name]:  # the ensemble is this member
            continue
        info(f"{name}, {scores['part']}: {shown_metrics(model['metrics'])}")
    for difference in scores["differences"]:
        if difference["model"] == ENSEMBLE:
            info(f"{difference['sentence']}.")
    if "inputs" in scores:
        show_inputs(scores["inputs"], scores["part"])
    for confounder in scores["confounders"]:
        warn(warning(confounder))
    interval = scores["interval"]
    if interval is not None:
        info(
            f"Prediction interval ({100 * interval['coverage']:.0f} %): ± "
            f"{interval['half_width']:.3g}; it holds {100 * interval['covered']:.0f} % of the "
            f"{scores['part']} samples."
        )
