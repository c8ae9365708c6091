"""Results of `aam train`: model folder, predictions, scores and importance; printed scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aam.console import info, warn
from aam.contract.errors import DataError
from aam.contract.files import write_json
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.contract.options.members import networks
from aam.contract.preflight import MODEL
from aam.data.ordination import coordinates_of_kernel, write_ordination
from aam.data.table import auto_depth
from aam.data.taxonomy import read_taxonomy
from aam.inference.tables import write_table
from aam.members.base import F64
from aam.members.confounding import Association, confounders, warning
from aam.members.evaluation import DUMMY, ENSEMBLE, evaluate, shown_metrics
from aam.members.explanations import explain_held_out
from aam.members.importance import importance_table, q_values
from aam.members.kernel_features import Landmarks
from aam.members.learning_curve import learning_curve
from aam.members.member import Outputs, estimator
from aam.members.model_file import ModelFacts, TrainedModel
from aam.members.permutation_test import permutation_test
from aam.members.tables import held_out_table, interval_columns, member_columns
from aam.members.training_data import describe
from aam.pipeline.input_comparison import BOTH, compare_inputs, show_inputs
from aam.pipeline.repeated_samples import RepeatedSamples, score_with_groups
from aam.pipeline.train import Result
from aam.report.run import is_better, result_sentences
from aam.training.labelled_study import LabelledStudy
from aam.training.loggers import log_scores

KERNEL = "kernel"
"""Member that draws the learning curve and the ordination: it needs a second for them."""

MOST_SAMPLES = 4000
"""Samples up to which they are drawn; the kernel is exact up to as many."""


def write_results(
    options: Train,
    study: LabelledStudy,
    result: Result,
    found: Sequence[Association],
    repeated: RepeatedSamples | None,
) -> tuple[dict[str, Any], dict[str, Any], TrainedModel]:
    """Write model, predictions, scores and ordination."""
    folds = result.folds
    model = model_of(options, study, result)
    model.save(options.run.output_dir / MODEL)
    _write_predictions(options, study, result)
    scores = _write_scores(options, study, result, found, repeated)
    if len(study.study.table.sample_ids) <= MOST_SAMPLES:
        _write_ordination(options, study, result)
    log_scores(options, _final_scores(scores))
    best = {
        f"{folds.part}_{name}": score["value"]
        for name, score in scores["models"][ENSEMBLE]["metrics"].items()
    }
    facts: dict[str, Any] = {}
    for member in result.members.values():
        facts |= member.facts
    facts |= {"members": list(result.members), "best": facts.get("best", {}) | best}
    return facts, scores, model


def model_of(options: Train, labelled: LabelledStudy, result: Result) -> TrainedModel:
    """Return the model for new samples: the members, their combination, and the training data."""
    folds, study, samples = result.folds, labelled.study, result.samples
    labels, scale = folds.labels, folds.scale
    training = describe(
        study,
        samples.relations,
        folds.splits,
        labels.groups,
        folds.seed,
        labelled.depth or auto_depth(study.reads),  # for the richness of new samples
        refitted=any(found.fold_models for found in result.members.values()),
    )
    column, plain = options.target.metadata_column, to_plain(options)
    ensemble = result.combined.ensemble
    rows = np.unique(
        np.concatenate([rows for split in folds.splits for rows in vars(split).values()])
    )
    facts = ModelFacts.of(column, labels, rows, scale, ensemble, plain, training)
    models = {name: found.model for name, found in result.members.items() if found.model}
    importance = _fold_importance(result, facts.outputs) if len(folds.splits) > 1 else {}
    q_values_F = q_values(samples, folds)
    return TrainedModel(facts, models, samples.relations, training, importance, q_values_F)


def _fold_importance(result: Result, outputs: Outputs) -> dict[str, F64]:
    """Return the importance of the ASVs for the models of each estimator's folds, [K, F]."""
    tokens_FL, relations = result.samples.samples.tokens_FL, result.samples.relations
    return {
        name: np.stack(
            [
                model.importance(found.inputs, tokens_FL, relations, outputs).size_U
                for model in found.fold_models
            ]
        )
        for name, found in result.members.items()
        if found.fold_models
    }


def _write_predictions(options: Train, labelled: LabelledStudy, result: Result) -> None:
    """Write predictions.tsv, with the prediction intervals and the predictions of each member."""
    folds, labels, combined = result.folds, result.folds.labels, result.combined
    columns = interval_columns(combined.predictions_MC, combined.half_widths_M, folds.scale.range)
    for name, predictions_MC in combined.members.items():
        columns |= member_columns(name, predictions_MC, labels.classes, labels.levels)
    for member in result.members.values():
        columns |= member.columns
    ids = labelled.study.table.sample_ids
    table = held_out_table(ids, folds, combined.predictions_MC, columns)
    write_table(options.run.output_dir / "predictions.tsv", table)


def _write_scores(
    options: Train,
    labelled: LabelledStudy,
    result: Result,
    found: Sequence[Association],
    repeated: RepeatedSamples | None,
) -> dict[str, Any]:
    """Write scores.json, and return its content."""
    folder, column, folds = options.run.output_dir, options.target.metadata_column, result.folds
    seconds = {name: found.cpu_seconds for name, found in result.members.items()}
    test = permutation_test(result.samples, folds)
    grouped = None
    if repeated is not None:
        given_MC = result.members[KERNEL].predictions_MC if KERNEL in result.members else None
        grouped = score_with_groups(options, labelled, result.samples, folds, repeated, given_MC)
    scores = evaluate(column, folds, result.combined, seconds, test, grouped)
    inputs = labelled.covariates.columns if labelled.covariates else ()
    predictions_MC = result.combined.predictions_MC
    if result.alone:
        scores["inputs"] = compare_inputs(inputs, {**result.alone, BOTH: predictions_MC}, folds)
    scores["confounders"] = confounders(found, folds, predictions_MC)
    if (kernel := result.members.get(KERNEL)) and len(labelled.values) <= MOST_SAMPLES:
        scores["learning_curve"] = learning_curve(
            KERNEL, estimator(KERNEL), result.samples, folds, kernel.predictions_MC
        )
    write_json(folder / "scores.json", scores)
    return scores


def write_importance(
    options: Train, labelled: LabelledStudy, model: TrainedModel, result: Result
) -> None:
    """Write importance.tsv, the ASVs on which the predictions depend, and explanations.tsv."""
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    table = importance_table(model, labelled.study, taxa, labelled.covariates)
    write_table(options.run.output_dir / "importance.tsv", table)
    try:
        explained = explain_held_out(
            result.members, result.combined, result.folds, result.samples, model.facts.outputs,
            labelled.study.table.feature_ids, taxa,
        )  # fmt: skip
    except DataError as error:  # members of which none divides its predictions
        info(str(error))
        return
    if len(explained):
        write_table(options.run.output_dir / "explanations.tsv", explained)


def _write_ordination(options: Train, labelled: LabelledStudy, result: Result) -> None:
    """Write ordination.txt, the principal coordinates of the samples by the kernel's sequences."""
    ids, members = labelled.study.table.sample_ids, tuple(result.members)
    # Of a network alone the report shows the embeddings.
    if len(ids) < 3 or networks(members) == members:
        return
    inputs = result.samples.inputs(estimator(KERNEL))
    kernel_NN = Landmarks.of(inputs, np.arange(len(ids))).kernel(inputs)
    # The two halves of the float32 kernel differ by rounding.
    coordinates, explained = coordinates_of_kernel((kernel_NN + kernel_NN.T) / 2)
    write_ordination(options.run.output_dir / "ordination.txt", ids, coordinates, explained)


def _final_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of all models for a tracker, such as `test_r2/forest`."""
    return {
        f"{scores['part']}_{metric}/{name}": score["value"]
        for name, model in scores["models"].items()
        for metric, score in model["metrics"].items()
        if score["value"] is not None
    }


def show_results(scores: Mapping[str, Any]) -> None:
    """Print the verdict, what it rests on, and the scores of every model."""
    verdict, *sentences = result_sentences(scores)
    (info if is_better(scores) else warn)(verdict)
    for sentence in sentences:
        repeated = scores.get("repeated_samples") and sentence == sentences[0]
        (warn if repeated else info)(sentence)
    members = [name for name in scores["models"] if name not in (ENSEMBLE, DUMMY)]
    for name, model in scores["models"].items():
        if name != ENSEMBLE or len(members) > 1:  # the ensemble is its only member
            info(f"{name}, {scores['part']}: {shown_metrics(model['metrics'])}")
    if "inputs" in scores:
        show_inputs(scores["inputs"], scores["part"])
    for confounder in scores["confounders"]:
        if not confounder["other_form"]:  # said before the training
            warn(warning(confounder))
    if not is_better(scores):
        info("importance.tsv tells how the model computes, not which ASVs matter.")
