"""Run of `aam train`: training in a run folder, its results and printed scores."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from aam import run_record
from aam.arrays import F64, Rows
from aam.console import (
    collected,
    console,
    info,
    later_step,
    print_result,
    warn,
    warnings_for_report,
)
from aam.contract.errors import DataError
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import KERNEL, MEMBERS, TargetType, default_members, networks
from aam.contract.run_files import MODEL, PREDICTIONS, REPEATS
from aam.contract.run_files import planned as planned_files
from aam.data.covariates import Covariates
from aam.data.formats.tables import require_reads
from aam.data.metadata import Metadata
from aam.data.ordination import coordinates_of_kernel, write_ordination
from aam.data.study import Study
from aam.data.table import auto_depth
from aam.data.taxonomy import read_taxonomy
from aam.evaluation.confounding import DEPTH, confounders
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import SCORED
from aam.evaluation.learning_curve import learning_curve
from aam.evaluation.metrics import metric_text
from aam.evaluation.permutation import EXACT_KERNEL, permutation_test
from aam.evaluation.scores import (
    ENSEMBLE,
    PairedDifference,
    Scores,
    compare,
    compare_inputs,
    evaluate,
)
from aam.evaluation.splits import write_splits
from aam.evaluation.study_transfer import study_differences, transfer_matrix
from aam.members.explanations import explain_held_out
from aam.members.importance import agreement_table, importance_table, q_values
from aam.members.kernel import Landmarks
from aam.members.member import TrainingSamples, estimator
from aam.members.model_file import ModelFacts, TrainedModel
from aam.members.new_samples import TrainingSummary
from aam.members.output_tables import write_table
from aam.members.prediction_tables import held_out_table, mean_table
from aam.members.relations import AsvRelations
from aam.pipeline import run_folder
from aam.pipeline.cross_validation import Result, cross_validate
from aam.pipeline.equal_depth import score_at_equal_depth
from aam.pipeline.labelled_study import LabelledStudy, load_labelled_study
from aam.pipeline.loggers import log_scores
from aam.pipeline.plan import Session, TrainingPlan, plan, start_session
from aam.pipeline.preview import Leaks, preview
from aam.pipeline.repeated_samples import RepeatedSamples, score_with_groups
from aam.report.page import write_report_of_run
from aam.report.terminal import (
    brief_studies_table,
    models_table,
    print_table,
    values_of_models,
)
from aam.threads import blas_threads

_BOTH = "metadata and counts"

_PRINTED = ("interval", "beyond", "equal_depth", "external")
"""Findings that the console prints besides warnings; the page has all of them."""


def run(
    options: Train,
    labelled: LabelledStudy | None = None,
    policy: Any = None,
    report: bool = True,
    facts: Mapping[str, Any] = MappingProxyType({}),
    metadata: Metadata | None = None,
) -> None:
    """Train the members, write the run folder, and print the scores.

    `options` are as `resolve` returns them; study and metadata are read if they are not given;
    `facts` replace entries of run.json.
    """
    with (
        warnings_for_report() as warnings,
        start_session(options, labelled, policy) as session,
    ):
        options, group = session.options, session.group
        prepared = run_folder.prepare("train", options, group, session.gpus)
        if labelled is None:
            splits = prepared.split_options(options.split)
            labelled = load_labelled_study(options, session.length, splits, metadata)
        if options.equal_depth:
            require_reads(labelled.study.table.quantity, "--equal-depth")
        planned = plan(options, labelled)
        folds = planned.folds
        # Whatever may refuse the study comes before `begin` changes the run folder.
        checked = session.check(labelled)
        files = planned_files(len(labelled.splits))
        with (
            run_folder.begin(prepared, group, files, **checked, **facts) as record,
            blas_threads(len(labelled.values)),
        ):
            leaks = Leaks([], None, None)
            if group.ranks.is_main:
                # One rank prints and writes for all.
                leaks = preview(planned)
                ids, path = labelled.study.table.sample_ids, prepared.folder / "splits.tsv"
                write_splits(path, ids, labelled.splits, labelled.subjects.groups)
            result = cross_validate(planned, planned.samples(), session, record.record_fact)
            if result is None:
                return
            folder, model = prepared.folder, _model(options, labelled, result, leaks.repeated)
            _write_predictions(options, labelled, result)
            model.save(folder / MODEL)
            # What follows cannot cost the model and its predictions, see `later_step`.
            model, tested = _with_associations(model, labelled, result)
            scores = None
            facts_of_members: dict[str, Any] = {"settings": model.settings}
            if tested:  # unless the tests failed
                facts_of_members["tested"] = tested
            for member in result.members.values():
                facts_of_members |= member.facts
            with later_step("scores"):
                scores = _scores(options, planned, result, leaks)
                facts_of_model = dataclasses.replace(model.facts, performance=scores.performance)
                model = dataclasses.replace(model, facts=facts_of_model)
                scores.write(folder / "scores.json")
                # The metrics of all models for a tracker, such as `test_r2/forest`.
                finals = {
                    f"{folds.part}_{metric}/{name}": score.value
                    for name, model_scores in scores.models.items()
                    for metric, score in model_scores.metrics.items()
                    if score.value is not None
                }
                best = {
                    f"{folds.part}_{name}": score.value
                    for name, score in scores.models[ENSEMBLE].metrics.items()
                }
                facts_of_members["best"] = facts_of_members.get("best", {}) | best
                with later_step("scores in the tracker"):
                    log_scores(options.run, to_plain(options), finals)
            model.save(folder / MODEL)
            with later_step("ordination"):
                _write_ordination(labelled, result, folder)
            _write_importance(options, labelled, model, result)
            facts_of_members["warnings"] = warnings
            record.finish(**labelled.facts, **facts_of_members, members=list(result.members))
            page = write_report_of_run(folder, labelled.study.table) if report else None
    if scores is None:
        remedy = "see the warning above; `aam evaluate --predictions` scores the predictions"
        raise DataError("The model has no scores", f"'{folder}' has it and predictions", remedy)
    # Everything is written before anything of it is shown: no terminal that fails costs a result.
    show_scores(scores)
    info(f"Model: {folder}" if page is None else f"Model and report: {page}")
    following = scores.next_step(str(options.run.output_dir), run_record.study_files(options))
    show_verdict(scores, following)


def fit(options: Train, labelled: LabelledStudy) -> TrainedModel:
    """Train the members on a study in memory, without a run folder and without scores."""
    with start_session(options, labelled) as session:
        options = session.options
        planned = plan(options, labelled)
        session.check(labelled)
        with blas_threads(len(labelled.values)):
            result = cross_validate(planned, planned.samples(), session)
        assert result is not None  # several ranks write a run folder
        model, _ = _with_associations(_model(options, labelled, result), labelled, result)
        # The mismatches of all pairs of ASVs go: 4 bytes each, as long as the model is in memory.
        return dataclasses.replace(model, relations=AsvRelations(model.tokens_FL))


def _model(
    options: Train,
    labelled: LabelledStudy,
    result: Result,
    repeated: RepeatedSamples | None = None,
) -> TrainedModel:
    """Return the model for new samples: the members, their combination, and the training data."""
    folds, study, samples = result.folds, labelled.study, result.samples
    group, subjects = options.split.group_column, None if repeated is None else repeated.values
    if group is not None:
        subjects = labelled.metadata.values(group, study.table.sample_ids).tolist()
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
    column, ensemble = options.target.metadata_column, result.combined.ensemble
    facts = ModelFacts.of(
        column, folds.labels, rows, folds.scale, ensemble, to_plain(options), training
    )
    models = {name: member.model for name, member in result.members.items() if member.model}
    return TrainedModel(facts, models, samples.relations, training)


def _with_associations(
    model: TrainedModel, labelled: LabelledStudy, result: Result
) -> tuple[TrainedModel, dict[str, float]]:
    """Add the importance of the ASVs in each fold, and their association with the target.

    Also return the number of ASVs in each test, and its settings.
    """
    samples, folds, study = result.samples, result.folds, labelled.study
    importance, rates, tested = {}, dict[str, F64](), dict[str, float]()
    with later_step("importance of ASVs in the folds"):
        importance = {
            name: np.stack(
                [
                    of_fold.importance(
                        member.inputs, model.tokens_FL, model.relations, model.facts.outputs
                    ).size_U
                    for of_fold in member.fold_models
                ]
            )
            for name, member in result.members.items()
            if len(folds.splits) > 1 and member.fold_models
        }
    with later_step("tests of the ASVs"):
        rates, tested = q_values(samples, folds, _reads(study), labelled.adjustment)
    return dataclasses.replace(model, fold_importance=importance, q_values=rates), tested


def _reads(study: Study) -> Rows | None:
    return study.reads if study.table.quantity == "reads" else None


def _write_predictions(options: Train, labelled: LabelledStudy, result: Result) -> None:
    folds, combined = result.folds, result.combined
    folder, ids = options.run.output_dir, labelled.study.table.sample_ids
    predicted = combined.predictions_MC, combined.members, combined.half_widths_M
    table = held_out_table(ids, folds, *predicted)
    for member in result.members.values():
        table = table.assign(**member.columns)
    if len(np.unique(folds.rows_M)) < len(table):
        write_table(folder / REPEATS, table)
        table = mean_table(table, folds.labels, list(result.members))
    write_table(folder / PREDICTIONS, table)


def _write_ordination(labelled: LabelledStudy, result: Result, folder: Path) -> None:
    ids, names = labelled.study.table.sample_ids, tuple(result.members)
    # Of a network alone the report shows the embeddings.
    if 3 <= len(ids) <= EXACT_KERNEL and networks(names) != names:
        inputs = result.samples.inputs(estimator(KERNEL))
        kernel_NN = Landmarks.of(inputs, np.arange(len(ids))).kernel(inputs)
        # The two halves of the float32 kernel differ by rounding.
        coordinates, explained = coordinates_of_kernel((kernel_NN + kernel_NN.T) / 2)
        write_ordination(folder / "ordination.txt", ids, coordinates, explained)


def _scores(options: Train, planned: TrainingPlan, result: Result, leaks: Leaks) -> Scores:
    labelled, folds, column = planned.study, planned.folds, planned.target.metadata_column
    predictions_MC, kernel = result.combined.predictions_MC, result.members.get(KERNEL)
    seconds = {name: member.cpu_seconds for name, member in result.members.items()}
    test, grouped = permutation_test(folds, predictions_MC), None
    if leaks.repeated is not None:
        given_MC = None if kernel is None else kernel.predictions_MC
        grouped = score_with_groups(planned, result.samples, leaks.repeated, given_MC)
    scores = evaluate(column, folds, result.combined, seconds, test, grouped, leaks.divided_studies)
    fields: dict[str, Any] = {}
    if result.alone and labelled.covariates is not None:
        predictions_of = {**result.alone, _BOTH: predictions_MC}
        with later_step("comparison of metadata and counts"):
            names = labelled.covariates.columns
            fields["inputs"] = compare_inputs(names, predictions_of, _BOTH, folds, scores.is_better)
    if labelled.adjustment is not None:
        with later_step("score beyond the columns of --adjust-for"):
            fields["beyond"] = _beyond(labelled.adjustment, options, planned, result)
    # A column that predicts as well as the ensemble may be what it learnt; of the depth there is a
    # second answer, a score on samples of equal depth.
    with later_step("scores of the metadata columns"):
        fields["confounders"] = confounders(leaks.associations, folds, predictions_MC)
    confounded = any(column.column == DEPTH for column in fields.get("confounders", ()))
    if options.equal_depth or confounded:
        with later_step("score at equal depth"):
            fields["equal_depth"] = score_at_equal_depth(labelled, result, confounded)
    if len(labelled.values) <= EXACT_KERNEL:
        # A network takes too long to be fitted once more for each study and part.
        refitted = [name for name in result.members if not MEMBERS[name].network]
        name = KERNEL if kernel is not None else next(iter(refitted), KERNEL)

        def predict(smaller: Folds, title: str) -> F64:
            member = estimator(name)
            return member.cross_validate(result.samples, smaller, False, title).predictions_MC

        if kernel is not None:
            with later_step("learning curve"):
                curve = learning_curve(KERNEL, predict, folds, kernel.predictions_MC)
                fields["learning_curve"] = curve
        # Tables of studies: how well each can be told from the others, and predicts another.
        if folds.study_column is not None:
            with later_step("comparison of the studies"):
                fields["study_differences"] = study_differences(name, predict, folds, column)
                if refitted:
                    left_out_MC = result.members[name].predictions_MC
                    fields["transfer"] = transfer_matrix(name, predict, folds, left_out_MC)
    return dataclasses.replace(scores, **fields)


def _beyond(
    adjustment: Covariates, options: Train, planned: TrainingPlan, result: Result
) -> PairedDifference:
    """Compare estimators of the counts and the columns of --adjust-for with those of the latter."""
    counts, folds = result.samples.samples, result.folds
    samples = TrainingSamples(
        dataclasses.replace(counts, covariates=adjustment), result.samples.relations
    )
    names = tuple(name for name in result.members if not MEMBERS[name].network)
    planned = dataclasses.replace(planned, members=names or default_members())
    columns = ", ".join(adjustment.columns)
    both, alone = f"The model of counts with {columns}", f"the model of {columns} alone"
    drawn = {}
    for name, inputs in {both: samples, alone: samples.metadata_alone}.items():
        refitted = cross_validate(planned, inputs, Session(options, None), final=False)
        assert refitted is not None  # one process
        drawn[name] = folds.drawn(refitted.combined.predictions_MC)
    return compare(drawn, both, alone, folds.units)


def _write_importance(
    options: Train, labelled: LabelledStudy, model: TrainedModel, result: Result
) -> None:
    folder, ids = options.run.output_dir, labelled.study.table.feature_ids
    taxa = None
    with later_step("names of taxa"):
        taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    with later_step("importance of ASVs"):
        with collected():  # the page has these messages
            table = importance_table(model, labelled.study, taxa, labelled.covariates)
        write_table(folder / "importance.tsv", table)
        agreement = None
        if result.folds.study_column is not None:
            relative = result.samples.samples.relative
            agreement = agreement_table(
                table, relative, ids, result.folds, _reads(labelled.study), labelled.adjustment
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
            result.members, result.combined, result.folds, result.samples, model.facts.outputs,
            ids, taxa,
        )  # fmt: skip
        if len(explained):
            write_table(folder / "explanations.tsv", explained)


def show_verdict(scores: Scores, following: tuple[str, list[str]]) -> None:
    """Print the verdict with its figures, and the command that follows."""
    lines = [f"{scores.verdict.headline}. {scores.verdict.sentence}"]
    if not console.quiet:  # called from Python, where tables have no paths
        lines.append(f"Next, {following[0]}: {shlex.join(following[1])}")
    print_result("\n".join(lines), is_warning=not scores.is_better)


def show_scores(scores: Scores) -> None:
    """Print the warnings, the scores of the models, and what belongs to them; see the page."""
    findings = scores.findings()[1:]  # the verdict comes last
    for finding in findings:
        if finding.is_warning and finding.field != "inputs":
            warn(finding.text)
    for finding in findings:
        if finding.field in _PRINTED and not finding.is_warning:
            info(finding.text)
    names: Sequence[str] = ("mcfadden_r2", *SCORED[cast(TargetType, scores.kind)])
    metrics = scores.models[ENSEMBLE].metrics
    # Two studies have no summary.
    names = [name for name in names if name in metrics and metrics[name].value is not None]
    # The ensemble may be its only member.
    left_out = ENSEMBLE if len(scores.members) == 1 else None
    models = {name: m.metrics for name, m in scores.models.items() if name != left_out}
    if scores.studies is not None:
        print_table(brief_studies_table(scores.studies, models, scores.classes))
    elif names:
        table = models_table(models, names, scores.differences, brief=True)
        if len(scores.members) > 1 and scores.weights is not None:
            note = f"{table.note} Ensemble: {scores.weights.of_model}."
            table = dataclasses.replace(table, note=note)
        print_table(table)
    if scores.thresholds:
        at = scores.thresholds[-1]
        values = ", ".join(
            f"{name.replace('_', ' ')} {score.estimate()}" for name, score in at.metrics.items()
        )
        info(f"At threshold {metric_text('', at.threshold, 2)} ({at.rule}): {values}.")
    if (inputs := scores.inputs) is not None:
        values = values_of_models(inputs.models, next(iter(names), scores.metric))
        info(f"{values}. {inputs.conclusion}", is_warning=not inputs.counts_add)
