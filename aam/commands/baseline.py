"""`aam baseline`: a random forest or a sequence kernel on the same split as a model."""

from __future__ import annotations

import numpy as np

from aam.console import info
from aam.contract import run_record
from aam.contract.errors import UsageError
from aam.contract.files import refuse_existing, write_json
from aam.contract.options import build, specs, to_plain
from aam.contract.options.commands.compare import BaselineOptions
from aam.contract.options.commands.train import Train
from aam.contract.options.members import MEMBERS
from aam.data.metadata import read_metadata
from aam.data.metrics import summary
from aam.data.splits import write_splits
from aam.data.study import Study, load_study, load_table
from aam.inference.tables import write_table
from aam.members.forest import Forest
from aam.members.member import estimator
from aam.members.tables import held_out_table
from aam.pipeline.session import Session
from aam.pipeline.train import folds_of, samples_of, train
from aam.report.terminal import show
from aam.training.labelled_study import label_study

FILES = ("predictions.tsv", "metrics.json", "splits.tsv")


def run(options: BaselineOptions) -> None:
    """Train and score the models; write predictions.tsv, metrics.json and splits.tsv.

    Args:
        options: member, its parameters, data, target and splits of `aam baseline`.

    Raises:
        UsageError: invalid options of the forest, or see `check_options`.
        MissingInput, DataError: see the readers.
        CannotCreate: results exist already, or the folder cannot be written.
    """
    _check_forest(options)
    name, folder = options.member, options.output_dir
    # Before the data are read: a refusal after the training would cost the run.
    for file in FILES:
        refuse_existing(folder / file, options.overwrite)
    member, study = estimator(name), None
    if name == "forest":  # it needs no sequences
        table = load_table(options.input)
        # Sequences of length 0 stand for those of a table whose ids are no DNA.
        study = Study(table, np.empty((len(table.feature_ids), 0), dtype=np.uint8))
        member = Forest(
            options.n_estimators, options.max_features, options.min_samples_leaf, options.n_jobs
        )
    study = study or load_study(options.input)
    given = {spec.flag: run_record.value_of(options, spec.field) for spec in specs(BaselineOptions)}
    of_run = {"--members": (name,), "--target-transform": "none"}
    training = build(Train, given | of_run)
    metadata = read_metadata(options.target.metadata)
    labelled = label_study(training, study, metadata, options.split)
    folds = folds_of(training, labelled)
    samples, session = samples_of(labelled), Session(training)
    result = train(labelled, samples, folds, {name: member}, session, final=False)
    assert result is not None  # without a network there is one process
    predictions_MC, ids = result.members[name].predictions_MC, labelled.study.table.sample_ids
    metrics = summary(folds.scored(predictions_MC), options.target.metadata_column) | {
        "model": MEMBERS[name].title,
        "split": folds.part,
    }
    show(metrics)
    write_table(folder / "predictions.tsv", held_out_table(ids, folds, predictions_MC))
    write_json(folder / "metrics.json", metrics | {"options": to_plain(options)})
    write_splits(folder / "splits.tsv", ids, labelled.splits, labelled.labels)
    info(f"{', '.join(FILES)} in {folder}")


def _check_forest(options: BaselineOptions) -> None:
    """Check the parameters of the forest.

    Raises:
        UsageError: one of them is out of range.
    """
    wrong = [
        f"{flag} {value}"
        for flag, value, valid in (
            ("--n-estimators", options.n_estimators, 1 <= options.n_estimators <= 100_000),
            ("--max-features", options.max_features, 0 < options.max_features <= 1),
            ("--min-samples-leaf", options.min_samples_leaf, 1 <= options.min_samples_leaf < 2**31),
            ("--n-jobs", options.n_jobs, 1 <= options.n_jobs <= 4096 or options.n_jobs == -1),
            ("--seed", options.seed, 0 <= options.seed < 2**32),
        )
        if not valid
    ]
    if wrong:
        raise UsageError(
            "Invalid options of the baseline", ", ".join(wrong), "see `aam baseline --help`"
        )
