"""External validation: `aam evaluate --model` predicts and scores the samples of another study.

The result is a run folder without a model: run.json, scores.json, predictions.tsv, splits.tsv (all
samples are test samples of one fold) and report.html.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from aam import run_record
from aam.arrays import F64, Rows
from aam.console import info, print_messages, warn
from aam.contract import run_files
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options import build, flat, values_of
from aam.contract.options.commands.use import Evaluate
from aam.contract.options.groups import TableOptions
from aam.contract.preflight import check_run_folder
from aam.data.formats.text import write_table
from aam.data.joined_metadata import STUDY, relabelled
from aam.data.metadata import ID_HEADER, Metadata, read_metadata
from aam.data.study import Study, load_study
from aam.data.targets import label_samples, spelling
from aam.evaluation.calibration import calibrate
from aam.evaluation.ensemble import Combined
from aam.evaluation.external_validation import (
    UNLIKE_TRAINING,
    ExternalValidation,
    PartScores,
    calibration_lines,
)
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.metrics import rows_by
from aam.evaluation.permutation import permutation_test
from aam.evaluation.scores import Scores, evaluate
from aam.evaluation.splits import Split, check_groups, read_studies, several_studies, write_splits
from aam.members.model_file import ModelFacts, TrainedModel, read_trained
from aam.members.prediction_tables import held_out_table, predict_study, unwritten
from aam.pipeline import run_folder
from aam.pipeline.repeated_samples import RepeatedSamples, find_repeated_samples
from aam.report.page import write_report_of_run
from aam.report.terminal import show_scores, show_verdict

_FEW_UNKNOWN = 0.05
"""Largest fraction of samples whose classes the model lacks, if it has unused classes."""

_FILES = ("scores.json", "predictions.tsv", "splits.tsv", "report.html")


def validate(options: Evaluate, loaded: TrainedModel | None = None) -> tuple[Scores, pd.DataFrame]:
    """Predict and score the samples of a study, and write a run folder if there is an --output.

    Returns the scores, and a row for each scored sample: predictions.tsv.
    """
    assert options.model is not None and options.table is not None
    column = options.metadata_column
    if options.output is not None:
        check_run_folder(options.output, options.overwrite)
    check_groups(column, options.group_column, options.study_column)
    loaded = loaded or _model_of(options)
    facts = loaded.facts
    described = [read_metadata(options.metadata)]
    (metadata,) = relabelled(described, options.relabel, options.relabel_file)
    columns = () if loaded.encoder is None else loaded.encoder.columns
    # The model reads the file itself.
    if changed := [
        c for c in columns if metadata.columns.get(c) is not described[0].columns.get(c)
    ]:
        remedy = "write the names in the metadata"
        raise UsageError("--relabel with columns that the model reads", first_few(changed), remedy)
    table = build(TableOptions, values_of(options))
    study = load_study(table, max_bp=loaded.max_bp).sorted_by_id()
    study = study.take_samples(metadata.rows_where(options.where, study.table.sample_ids))
    if facts.column != column:
        info(f"The model predicts '{facts.column}', compared with '{column}'.")
    if where := flat(facts.options).get("where"):
        info(f"The model was trained on samples with {where} (--where).")
    # Before the prediction: samples without a label are not scored and not predicted.
    study, values_M = _labelled(column, metadata, study, facts)
    predict = unwritten(table, options.device, options.model, options.metadata)
    predicted, notes, _ = predict_study(loaded, study, predict)
    print_messages(notes)
    # Subjects with several samples, of which the model has seen none.
    repeated, new_rows = None, np.flatnonzero(predicted["split"] == "new")
    if len(new_rows):
        table_of_others = study.take_samples(new_rows).table
        ids = table_of_others.sample_ids
        labels = Labels.of(values_M[new_rows], facts.classes, ids, facts.levels)
        folds = _folds(options, facts, labels, options.group_column, ())
        repeated = find_repeated_samples(table_of_others, metadata, folds, column)
    new = _new_samples(options, loaded, study, metadata, predicted, repeated)
    study, values_M = study.take_samples(new), values_M[new]
    predicted = predicted.iloc[new].reset_index(drop=True)
    ids = study.table.sample_ids
    names, group_column = None, options.group_column
    if group_column is not None:
        names = metadata.groups(group_column, ids).tolist()
    elif repeated is not None:
        values = metadata.values(repeated.column, ids).tolist()
        repeated = dataclasses.replace(repeated, values=values)
        if repeated.groups:
            warn(repeated.sentence)
            names, group_column = repeated.labels, repeated.column
    studies = read_studies(options.study_column, metadata, ids)
    joined = several_studies(metadata, ids, column, (options.group_column, options.study_column))
    if joined:
        warn(
            f"The samples of {joined} studies are scored together: a difference between studies "
            f"can look like a correct prediction. Add --study-column {STUDY} to score each study."
        )
    labels = Labels.of(values_M, facts.classes, names or ids, facts.levels, studies)
    folds = _folds(options, facts, labels, group_column, studies or ())
    combined = _combined(facts, predicted, list(loaded.models))
    test = permutation_test(folds, combined.predictions_MC)
    scores = dataclasses.replace(
        evaluate(column, folds, combined, {}, test),
        external=_external(options, facts, metadata, folds, combined.predictions_MC, predicted),
        divided_studies=STUDY if joined else None,
    )
    values = combined.predictions_MC, combined.members, combined.half_widths_M
    of_samples = held_out_table(ids, folds, *values)
    of_samples = of_samples.join(predicted[predicted.columns.difference(of_samples.columns, False)])
    if options.output is not None:
        _write(options, options.output, loaded, study, folds, scores, names, of_samples)
    # Results are printed once all files are written: no terminal that fails costs a result.
    show_scores(scores)
    if options.output is not None:
        info(f"Scores, predictions and report: {options.output}")
    files = run_record.study_files(options)
    training = run_record.joinable(options.model, files)
    show_verdict(scores, scores.next_step(str(options.model), files, training))
    return scores, of_samples


def _new_samples(
    options: Evaluate,
    loaded: TrainedModel,
    study: Study,
    metadata: Metadata,
    predicted: pd.DataFrame,
    repeated: RepeatedSamples | None,
) -> Rows:
    """Return the rows of the samples that did not train the model, nor their subjects."""
    trained_N = (predicted["split"] != "new").to_numpy()
    if trained := int(trained_N.sum()):
        info(f"Samples not scored, since they trained this model: {trained}.")
    column = options.group_column or flat(loaded.facts.options).get("group_column", "")
    if column not in metadata.columns and repeated is not None:
        column = repeated.column
    subjects_N = np.zeros(len(trained_N), dtype=np.bool_)
    if column in metadata.columns:
        names = metadata.values(column, study.table.sample_ids).tolist()
        subjects_N = loaded.training.has_subjects(study, column, names, options.group_values)
        subjects_N &= ~trained_N
        if number := int(subjects_N.sum()):
            subjects = first_few(sorted({names[row] for row in np.flatnonzero(subjects_N)}))
            by = "" if options.group_values == "same" else "; else add --group-values distinct"
            info(
                f"Samples not scored, since their subjects trained this model: {number}, with "
                f"'{column}' {subjects}{by}."
            )
    new = np.flatnonzero(~trained_N & ~subjects_N)
    if not len(new):
        evidence = f"{len(predicted)} samples: {trained} of them, by id or by equal reads"
        if number := int(subjects_N.sum()):
            evidence += f", and the subjects of {number}, by '{column}' (--group-values)"
        remedy = "give samples of other subjects; the run has scores of held-out samples"
        raise DataError("All samples, or their subjects, trained this model", evidence, remedy)
    return new


def _model_of(options: Evaluate) -> TrainedModel:
    assert options.model is not None
    column, path = options.metadata_column, options.model
    if targets := run_files.target_folders(path):
        path = run_files.target_folder(path, column)
        if path not in targets:
            evidence = f"--metadata-column {column}, '{options.model}' has several targets"
            remedy = f"name the folder of one with --model, such as '{targets[0]}'"
            raise DataError("The model has no such target", evidence, remedy)
    return read_trained(path, options.device)


def _labelled(
    column: str, metadata: Metadata, study: Study, facts: ModelFacts
) -> tuple[Study, F64]:
    """Return the samples with a label that the model can predict, and their labels."""
    ids, classifier = study.table.sample_ids, bool(facts.classes)
    if not set(ids) & set(metadata.ids):
        raise metadata.no_common_sample(ids)
    kind = "classes" if classifier else "ordered classes" if facts.levels else "numbers"
    of_model = f"the model predicts {kind}: name a column that has them (--metadata-column)"
    labelled = label_samples(
        metadata, column, ids, classifier, facts.levels, min_classes=1, of_model=of_model
    )
    study, values = study.take_samples(labelled.rows), labelled.values
    if not classifier:
        return study, values
    code_of = _class_codes(column, facts.classes, labelled.classes, values.astype(np.int64))
    codes = np.array([code_of.get(name, -1) for name in labelled.classes])[values.astype(np.int64)]
    labelled_rows = np.flatnonzero(codes >= 0)
    return study.take_samples(labelled_rows), codes[labelled_rows].astype(np.float64)


def _class_codes(
    column: str, classes: Sequence[str], classes_here: Sequence[str], codes: Rows
) -> dict[str, int]:
    """Return the class of the model for each class of a study that it has by name.

    Names that differ only in case and spaces are one class; samples of other classes are left out.
    """
    times = Counter(classes_here[code] for code in codes.tolist())
    plain = {spelling(name): code for code, name in enumerate(classes)}
    if len(plain) < len(classes):  # the training tells them apart
        plain = {}
    code_of = {name: classes.index(name) for name in classes_here if name in classes}
    for name in classes_here:
        alike = plain.get(spelling(name))
        if name not in code_of and alike is not None and alike not in code_of.values():
            info(f"'{name}' of '{column}' counts as the class '{classes[alike]}' of the model.")
            code_of[name] = alike
    if unknown := [name for name, _ in times.most_common() if name not in code_of]:
        counted = ", ".join(f"'{name}' in {times[name]}" for name in unknown)
        evidence = f"{counted} of {len(codes)} samples; the model has {first_few(classes)}"
        absent = [name for code, name in enumerate(classes) if code not in code_of.values()]
        number = sum(times[name] for name in unknown)
        if absent and (not code_of or number > _FEW_UNKNOWN * len(codes)):
            new = absent[0] if len(absent) == 1 else "CLASS"
            pair = shlex.quote(f"{column}:{unknown[0]}={new}")
            remedy = (
                f"add --relabel {pair} if they are the same, or leave the samples out (--where)"
            )
            cause = f"'{column}' has classes with other names than in the model"
            raise DataError(cause, evidence, remedy)
        warn(f"Classes of '{column}' that the model does not predict are left out: {evidence}.")
    return code_of


def _folds(
    options: Evaluate,
    facts: ModelFacts,
    labels: Labels,
    group_column: str | None,
    studies: Sequence[str],
) -> Folds:
    none, everything = np.empty(0, dtype=np.int64), np.arange(len(labels.values))
    return Folds(
        labels,
        (Split(none, none, everything),),
        facts.training.seed,
        group_column,
        options.study_column,
        tuple(sorted(set(studies))),
        scale=facts.outputs.scale,
        sensitivity=flat(facts.options).get("sensitivity"),
        baseline=facts.labels.guess,
    )


def _combined(facts: ModelFacts, predicted: pd.DataFrame, members: Sequence[str]) -> Combined:
    """Return the predictions of the model and its members in the form of a training."""
    predictions_MC, ensemble = stored_predictions(predicted, facts), facts.ensemble
    uncalibrated_MC, widths_M = predictions_MC, None
    if facts.classes:
        uncalibrated_MC = calibrate(predictions_MC, 1 / facts.temperature)
    else:
        widths_M = np.full(len(predictions_MC), ensemble.half_width)
    of_members = {name: stored_predictions(predicted, facts, name) for name in members}
    threshold = (ensemble.threshold,)
    return Combined(ensemble, of_members, predictions_MC, uncalibrated_MC, widths_M, (), threshold)


def _external(
    options: Evaluate,
    facts: ModelFacts,
    metadata: Metadata,
    folds: Folds,
    predictions_MC: F64,
    predicted: pd.DataFrame,
) -> ExternalValidation:
    """Compare with the training; score samples like it, samples unlike it, and subsets (--by)."""
    columns = {UNLIKE_TRAINING: predicted[UNLIKE_TRAINING].tolist()} | {
        column: metadata.values(column, predicted[ID_HEADER].tolist()).tolist()
        for column in metadata.listed(options.by)
    }
    scored, labels = folds.scored(predictions_MC), folds.labels
    return ExternalValidation(
        calibration_lines(labels, predictions_MC, folds.held_out_units, folds.study_M),
        [
            PartScores.of(column, value, scored, labels.groups, rows)
            for column, texts in columns.items()
            for value, rows in rows_by(texts).items()
        ],
        facts.labels.notes(options.metadata_column, labels),
    )


def _write(
    options: Evaluate,
    folder: Path,
    loaded: TrainedModel,
    study: Study,
    folds: Folds,
    scores: Scores,
    groups_M: Sequence[str] | None,
    predicted: pd.DataFrame,
) -> None:
    ids, facts = study.table.sample_ids, loaded.facts
    recorded = dataclasses.replace(options, classifier=bool(facts.classes), ordinal=facts.levels)
    content = run_record.describe("evaluate", recorded)
    prepared = run_folder.PreparedFolder(folder, content, None, options.overwrite, False)
    with run_folder.begin(prepared, files=_FILES) as record:
        write_table(folder / "predictions.tsv", predicted)
        write_splits(folder / "splits.tsv", ids, folds.splits, groups_M)
        scores.write(folder / "scores.json")
        record.finish(
            samples={"train": 0, "validation": 0, "test": len(ids)},
            asvs=len(study.table.feature_ids),
            classes=facts.classes,
            members=list(facts.weights),
            settings=loaded.settings,
        )
        write_report_of_run(folder, study.table)


def stored_predictions(table: pd.DataFrame, facts: ModelFacts, member: str = "") -> F64:
    """Return the predictions [N, C] in the columns that `prediction_columns` makes."""
    prefix = f"{member}_" if member else ""
    if facts.classes:
        names = [f"{prefix}p_{name}" for name in facts.classes]
    else:
        names = [f"{prefix}rank" if facts.levels else f"{prefix}predicted"]
    values_NC: F64 = table[names].to_numpy(np.float64)
    if facts.odds is None:
        return values_NC
    return np.hstack([values_NC, facts.odds.probabilities(values_NC[:, 0])])
