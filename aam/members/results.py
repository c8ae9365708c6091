"""Results of `aam train`: ensemble checkpoint, predictions.tsv, scores.json and printed scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aam.console import info, warn
from aam.contract.files import write_json
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.data.batches import BatchPlan
from aam.data.metrics import ScoredPredictions
from aam.data.rarefaction import auto_depth
from aam.inference.output_tables import write_table
from aam.members import checkpoint
from aam.members.base import F64
from aam.members.checkpoint import EnsembleCheckpoint, StoredEnsemble
from aam.members.confounding import confounders, warning
from aam.members.cross_validation import CrossValidated
from aam.members.ensemble import Combined, combine_members
from aam.members.evaluation import ENSEMBLE, evaluate, shown_metrics
from aam.members.folds import Folds
from aam.members.input_comparison import BOTH, compare_inputs, show_inputs
from aam.members.relations import AsvRelations
from aam.members.tables import held_out_table, interval_columns, member_columns
from aam.members.training_data import describe
from aam.training.callbacks.loggers import log_scores
from aam.training.labelled_study import LabelledStudy
from aam.training.run_files import checkpoints
from aam.training.run_files.checkpoints import checkpoint_files


@dataclass(frozen=True)
class Estimates:
    """Predictions of held-out samples, and the estimators that are fitted.

    Attributes:
        folds: labels and splits.
        relations: of the ASVs of the study.
        results: of the estimators among the members, by name.
        others: held-out predictions [M, C] of other members.
        alone: held-out predictions [M, C] of metadata and counts alone; empty without covariates.
        fold_importance: float64 [K, F] of each estimator, see `effects.Importance.size_U`, of the
            models of K folds; empty with one split.
        quantiles: held-out predictions [M] of the transformer by column, `q_LEVEL`.
    """

    folds: Folds
    relations: AsvRelations
    results: Mapping[str, CrossValidated]
    others: Mapping[str, F64]
    alone: Mapping[str, F64]
    fold_importance: Mapping[str, F64]
    quantiles: Mapping[str, F64]


def write_results(
    options: Train, labelled: LabelledStudy, estimates: Estimates
) -> tuple[dict[str, Any], ScoredPredictions]:
    """Combine all members; write the checkpoint, predictions.tsv and scores.json.

    A transformer alone that predicts a number or classes has its own checkpoint.

    Returns:
        Facts for the run record, and the ensemble's predictions of the held-out samples.
    """
    folds, results = estimates.folds, estimates.results
    predictions = {name: result.predictions_MC for name, result in results.items()}
    combined = combine_members(predictions | dict(estimates.others), folds)
    if results or folds.labels.levels:
        _write_ensemble(options, labelled, estimates, combined)
    _write_predictions(options, labelled, estimates, combined)
    scores = _write_scores(options, labelled, estimates, combined)
    log_scores(options, _final_scores(scores))
    _show(scores)
    best = {
        f"{folds.part}_{name}": score["value"]
        for name, score in scores["models"][ENSEMBLE]["metrics"].items()
    }
    facts = {"members": list(combined.members), "best": best}
    return facts, folds.scored(combined.predictions_MC)


def _write_ensemble(
    options: Train, labelled: LabelledStudy, estimates: Estimates, combined: Combined
) -> None:
    """Write the checkpoint."""
    folder, folds, study = options.run.output_dir, estimates.folds, labelled.study
    labels = folds.labels
    models = {name: result.model for name, result in estimates.results.items() if result.model}
    files = checkpoint_files(folder) if estimates.others else []
    sampling = options.sample
    depth = labelled.depth or auto_depth(study.reads)  # for the richness of new samples
    plan = BatchPlan(folds.seed, depth, sampling.token_limit)
    column = options.target.metadata_column
    (folder / "checkpoints").mkdir(exist_ok=True)
    checkpoint.save(
        folder / "checkpoints" / checkpoint.NAME,
        EnsembleCheckpoint(
            StoredEnsemble.of(column, labels, folds.scale, combined.ensemble, to_plain(options)),
            study.tokens_FL,
            models,
            describe(study, estimates.relations, folds.splits, labels.groups, plan),
            [checkpoints.read(file) for file in files],
            estimates.fold_importance,
        ),
    )


def _write_predictions(
    options: Train, labelled: LabelledStudy, estimates: Estimates, combined: Combined
) -> None:
    """Write predictions.tsv, with the prediction intervals and the predictions of each member."""
    folds, labels = estimates.folds, estimates.folds.labels
    columns = interval_columns(combined.predictions_MC, combined.half_widths_M, folds.scale.range)
    for name, predictions_MC in combined.members.items():
        columns |= member_columns(name, predictions_MC, labels.classes, labels.levels)
    columns |= estimates.quantiles
    ids = labelled.study.table.sample_ids
    table = held_out_table(ids, folds, combined.predictions_MC, columns)
    write_table(options.run.output_dir / "predictions.tsv", table)


def _write_scores(
    options: Train, labelled: LabelledStudy, estimates: Estimates, combined: Combined
) -> dict[str, Any]:
    """Write scores.json, and return its content."""
    folder, column, folds = options.run.output_dir, options.target.metadata_column, estimates.folds
    seconds = {name: result.cpu_seconds for name, result in estimates.results.items()}
    scores = evaluate(column, folds, combined, seconds)
    inputs = labelled.covariates.columns if labelled.covariates else ()
    if estimates.alone:
        predictions = {**estimates.alone, BOTH: combined.predictions_MC}
        scores["inputs"] = compare_inputs(inputs, predictions, folds)
    scores["confounders"] = confounders(
        labelled.metadata,
        (column, folds.group_column, *inputs),
        labelled.study,
        folds,
        combined.predictions_MC,
    )
    write_json(folder / "scores.json", scores)
    return scores


def _final_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of all models for a tracker, such as `test_r2/forest`."""
    return {
        f"{scores['part']}_{metric}/{name}": score["value"]
        for name, model in scores["models"].items()
        for metric, score in model["metrics"].items()
        if score["value"] is not None
    }


def _show(scores: Mapping[str, Any]) -> None:
    """Print members, the scores of every model, differences to the ensemble, and the interval."""
    weights = {name: one["weight"] for name, one in scores["models"].items()}
    members = [name for name, weight in weights.items() if weight is not None]
    kept = [name for name in members if weights[name]]
    if left_out := [name for name in members if not weights[name]]:
        info(
            f"The ensemble is the {' and '.join(kept)}; left out: {', '.join(left_out)}, since the "
            "held-out predictions are better without it, or it is no better than a guess."
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
        unit = " ranks" if scores["kind"] == "ordinal" else ""
        info(
            f"Prediction interval ({100 * interval['coverage']:.0f} %): ± "
            f"{interval['half_width']:.3g}{unit}; it holds {100 * interval['covered']:.0f} % of "
            f"the {scores['part']} samples."
        )
