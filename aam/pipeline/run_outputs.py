"""Outputs of a run: trained model, predictions, ordination, importance and explanations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from aam.arrays import F64, Rows
from aam.console import collected, info, later_step
from aam.contract.options.groups import KERNEL, networks
from aam.contract.run_files import PREDICTIONS, REPEATS
from aam.data.distances import coordinates_of_kernel, write_ordination
from aam.data.formats.text import write_table
from aam.data.metadata import ID_HEADER
from aam.data.study import Study
from aam.data.table import auto_depth
from aam.data.taxonomy import read_taxonomy
from aam.evaluation.calibration import median_codes
from aam.evaluation.labels import Labels, LabelSummary
from aam.evaluation.permutation import EXACT_KERNEL
from aam.evaluation.prediction_files import KEYS
from aam.evaluation.splits import FILE_GROUPS
from aam.members.explanations import explain_held_out
from aam.members.importance import agreement_table, importance_table, q_values
from aam.members.kernel import Landmarks
from aam.members.member import estimator
from aam.members.model_file import ModelFacts, TrainedModel
from aam.members.new_samples import TrainingSummary
from aam.members.prediction_tables import held_out_table, label_names
from aam.pipeline.cross_validation import Result
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.plan import TrainingPlan
from aam.pipeline.repeated_samples import RepeatedSamples


def trained_model(
    plan: TrainingPlan, result: Result, repeated: RepeatedSamples | None = None
) -> TrainedModel:
    """Return the model for new samples: members, their combination, summary of the training."""
    labelled, folds, samples = plan.study, plan.folds, result.samples
    study, subjects = labelled.study, None if repeated is None else repeated.values
    if folds.group_column is not None and folds.group_column != FILE_GROUPS:
        subjects = labelled.metadata.values(folds.group_column, study.table.sample_ids).tolist()
    training = TrainingSummary.of(
        study,
        samples.relations,
        folds.splits,
        folds.labels.groups,
        subjects,
        folds.seed,
        labelled.depth or auto_depth(study.reads),  # for the richness of new samples
        refitted=networks(tuple(result.members)) != tuple(result.members),
    )
    rows = np.unique(np.concatenate([split.rows for split in folds.splits]))
    labels, scale, ensemble = folds.labels.take(rows), folds.scale, result.combined.ensemble
    facts = ModelFacts(
        labelled.column,
        labels.classes,
        labels.levels,
        scale.transform,
        scale.range,
        dict(ensemble.weights),
        ensemble.half_width if np.isfinite(ensemble.half_width) else None,
        ensemble.temperature,
        ensemble.odds,
        plan.options,
        training.plain,
        tuple(scale.inverse(scale.forward(labels.outputs_NC).mean(axis=0)).tolist()),
        LabelSummary.of(labels),
        threshold=ensemble.threshold,
    )
    models = {name: member.model for name, member in result.members.items() if member.model}
    return TrainedModel(facts, models, samples.relations, training)


def with_associations(
    model: TrainedModel, labelled: LabelledStudy, result: Result
) -> tuple[TrainedModel, dict[str, float]]:
    """Add the importance of the ASVs in each fold, and their association with the target.

    Also return the number of ASVs in each test, and its settings.
    """
    samples, folds, study = result.samples, result.folds, labelled.study
    importance, rates, tested = {}, dict[str, F64](), dict[str, float]()
    asvs = model.tokens_FL, model.relations, model.facts.outputs
    with later_step("importance of ASVs in the folds"):
        importance = {
            name: np.stack([m.importance(member.inputs, *asvs).size_U for m in member.fold_models])
            for name, member in result.members.items()
            if len(folds.splits) > 1 and member.fold_models
        }
    with later_step("tests of the ASVs"):
        rates, tested = q_values(samples, folds, _reads(study), labelled.adjustment)
    return dataclasses.replace(model, fold_importance=importance, q_values=rates), tested


def _reads(study: Study) -> Rows | None:
    return study.reads if study.table.quantity == "reads" else None


def write_predictions(folder: Path, ids: Sequence[str], result: Result) -> None:
    """Write predictions.tsv, and with several repeats also the predictions of each."""
    folds, combined = result.folds, result.combined
    table = held_out_table(
        ids, folds, combined.predictions_MC, combined.members, combined.half_widths_M
    )
    for member in result.members.values():
        table = table.assign(**member.columns)
    if len(np.unique(folds.rows_M)) < len(table):
        write_table(folder / REPEATS, table)
        table = mean_table(table, folds.labels, list(result.members))
    write_table(folder / PREDICTIONS, table)


def write_ordination_of_kernel(folder: Path, ids: Sequence[str], result: Result) -> None:
    """Write the principal coordinates of the samples by the kernel."""
    names = tuple(result.members)
    # With networks alone the report shows their embeddings.
    if 3 <= len(ids) <= EXACT_KERNEL and networks(names) != names:
        inputs = result.samples.inputs(estimator(KERNEL))
        kernel_NN = Landmarks.of(inputs, np.arange(len(ids))).kernel(inputs)
        # The two halves of the float32 kernel differ by rounding.
        ordination = coordinates_of_kernel((kernel_NN + kernel_NN.T) / 2)
        write_ordination(folder / "ordination.txt", ids, *ordination)


def write_importance(
    folder: Path,
    taxonomy: Path | None,
    labelled: LabelledStudy,
    model: TrainedModel,
    result: Result,
) -> None:
    """Write importance.tsv, associations.tsv of several studies, and explanations.tsv."""
    ids = labelled.study.table.feature_ids
    taxa, reads = None, _reads(labelled.study)
    with later_step("names of taxa"):
        taxa = None if taxonomy is None else read_taxonomy(taxonomy)
    with later_step("importance of ASVs"):
        with collected():  # the page has these messages
            table = importance_table(model, labelled.study, taxa, labelled.covariates)
        write_table(folder / "importance.tsv", table)
        agreement = None
        if result.folds.study_column is not None:
            relative = result.samples.samples.relative
            agreement = agreement_table(
                table, relative, ids, result.folds, reads, labelled.adjustment
            )
        if agreement is not None:
            write_table(folder / "associations.tsv", agreement)
    if result.samples.is_large:
        info(
            "Predictions are not explained, and the importance of ASVs is not compared between "
            f"folds: {len(ids)} ASVs and {len(result.folds.labels.values)} samples are too many."
        )
        return
    with later_step("explanations"):
        explained = explain_held_out(
            model, result.members, result.combined, result.folds, result.samples.samples, ids, taxa
        )  # fmt: skip
        if len(explained):
            write_table(folder / "explanations.tsv", explained)


def mean_table(table: pd.DataFrame, labels: Labels, members: Sequence[str]) -> pd.DataFrame:
    """Return a row for each held-out sample: means over its repeats, and their number."""
    numbers = {*table.select_dtypes("number")} - {"actual"}  # a mean of equal numbers may round
    repeats = table.groupby(ID_HEADER, sort=False)
    columns = [name for name in table if name not in KEYS[:3]]
    means = repeats.agg({name: "mean" if name in numbers else "first" for name in columns})
    for prefix in ("", *(f"{name}_" for name in members)):
        names = labels.classes or ("" if prefix else labels.levels)
        if names:
            chances_NC = means[[f"{prefix}p_{name}" for name in names]].to_numpy()
            codes_N = chances_NC.argmax(axis=1) if labels.classes else median_codes(chances_NC)
            means[f"{prefix}predicted"] = label_names(codes_N, names)
    return means.assign(repeats=repeats.size()).reset_index()
