"""Run of `aam train`: train the members in a run folder, write the results, print the scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from aam import run_record
from aam.console import info, later_step, warnings_for_report
from aam.contract.errors import DataError
from aam.contract.options.commands.train import Train
from aam.contract.run_files import MODEL, planned
from aam.data.formats.tables import require_reads
from aam.data.metadata import Metadata, read_metadata
from aam.evaluation.scores import ENSEMBLE
from aam.evaluation.splits import write_splits
from aam.members.model_file import TrainedModel
from aam.members.relations import AsvRelations
from aam.pipeline import run_folder
from aam.pipeline.cross_validation import cross_validate, cross_validate_study
from aam.pipeline.labelled_study import LabelledStudy, label_study, read_study
from aam.pipeline.loggers import log_scores
from aam.pipeline.plan import plan, start_session
from aam.pipeline.preview import Leaks, preview
from aam.pipeline.run_outputs import (
    trained_model,
    with_associations,
    write_importance,
    write_ordination_of_kernel,
    write_predictions,
)
from aam.pipeline.run_scores import scores_of_run
from aam.report.page import write_report_of_run
from aam.report.terminal import show_scores, show_verdict
from aam.threads import blas_threads


def run(
    options: Train,
    labelled: LabelledStudy | None = None,
    policy: Any = None,
    report: bool = True,
    facts: Mapping[str, Any] = MappingProxyType({}),
    metadata: Metadata | None = None,
) -> None:
    """Train the members, write the run folder, and print the scores.

    `options` are those that `resolve` returns; study and metadata are read unless they are passed;
    `facts` replace entries of run.json.
    """
    with warnings_for_report() as warnings, start_session(options, labelled, policy) as session:
        # Whatever may refuse the options or the study comes before `begin` changes the run folder.
        options, group = session.options, session.group
        prepared = run_folder.prepare("train", options, group, session.gpus)
        folder = prepared.folder
        if labelled is None:
            study = read_study(options, session.length)
            metadata = metadata or read_metadata(options.target.metadata)
            labelled = label_study(options, study, metadata, prepared.splits)
        table = labelled.study.table
        if options.equal_depth:
            require_reads(table.quantity, "--equal-depth")
        training = plan(options, labelled)
        checked, files = session.check(labelled), planned(len(labelled.splits))
        with (
            run_folder.begin(prepared, group, files, **checked, **facts) as record,
            blas_threads(len(labelled.values)),
        ):
            # One rank prints and writes for all ranks.
            leaks = Leaks([], None, None)
            if group.ranks.is_main:
                leaks = preview(training)
                groups = labelled.subjects.groups
                write_splits(folder / "splits.tsv", table.sample_ids, labelled.splits, groups)
            # Fit the members; ranks other than the first end here.
            result = cross_validate(training, training.samples(), session, record.record_fact)
            if result is None:
                return
            # Predictions and model are stored first: no later step can cost them (`later_step`).
            model = trained_model(training, result, leaks.repeated)
            write_predictions(folder, table.sample_ids, result)
            model.save(folder / MODEL)
            # Scores: they become part of the model, of run.json and of a tracker.
            model, tested = with_associations(model, labelled, result)
            outcome: dict[str, Any] = {"settings": model.settings}
            if tested:  # unless the tests failed
                outcome["tested"] = tested
            for member in result.members.values():
                outcome |= member.facts
            scores = None
            with later_step("scores"):
                scores = scores_of_run(training, result, leaks, options.equal_depth)
                facts_of_model = dataclasses.replace(model.facts, performance=scores.performance)
                model = dataclasses.replace(model, facts=facts_of_model)
                scores.write(folder / "scores.json")
                held_out = result.folds.part
                ensemble = scores.models[ENSEMBLE].metrics
                best = {f"{held_out}_{name}": score.value for name, score in ensemble.items()}
                outcome["best"] = outcome.get("best", {}) | best
                tracked = {
                    f"{held_out}_{metric}/{name}": score.value  # such as `test_r2/forest`
                    for name, model_scores in scores.models.items()
                    for metric, score in model_scores.metrics.items()
                    if score.value is not None
                }
                with later_step("scores in the tracker"):
                    log_scores(options.run.logger, folder, training.options, tracked)
            model.save(folder / MODEL)
            # Tables that the report draws, then the report.
            with later_step("ordination"):
                write_ordination_of_kernel(folder, table.sample_ids, result)
            write_importance(folder, options.taxonomy, labelled, model, result)
            members = list(result.members)
            record.finish(**labelled.facts, **outcome, warnings=warnings, members=members)
            page = write_report_of_run(folder, table) if report else None
    if scores is None:
        remedy = "see the warning above; `aam evaluate --predictions` scores the predictions"
        raise DataError("The model has no scores", f"'{folder}' has it and predictions", remedy)
    # Results are printed once all files are written: no terminal that fails costs a result.
    show_scores(scores)
    info(f"Model: {folder}" if page is None else f"Model and report: {page}")
    show_verdict(scores, scores.next_step(str(folder), run_record.study_files(options)))


def fit(options: Train, labelled: LabelledStudy) -> TrainedModel:
    """Train the members on a study in memory, without a run folder and without scores."""
    training, result = cross_validate_study(options, labelled)
    model, _ = with_associations(trained_model(training, result), labelled, result)
    # Without the mismatches of all pairs of ASVs, 4 bytes each for as long as the model lives.
    return dataclasses.replace(model, relations=AsvRelations(model.tokens_FL))
