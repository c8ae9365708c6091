"""Several targets: a run of each on the same folds, in one run folder.

Samples without a value of a target take no part in its run. The folder has `splits.tsv` of all
samples, `predictions.tsv` with the columns of every target, and a run folder for each target.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.console import info, warn
from aam.contract.errors import ConfigurationError, DataError, nearest
from aam.contract.files import atomic_write
from aam.contract.options import specs
from aam.contract.options.command_line import typed
from aam.contract.options.commands.train import Train
from aam.contract.options.conditions import without_effect
from aam.contract.preflight import check_run_folder
from aam.contract.records import Sourced, read_yaml_entries
from aam.contract.run_files import PREDICTIONS, REPEATS, target_folder
from aam.data.metadata import Metadata, read_metadata
from aam.data.study import Study
from aam.evaluation.splits import read_studies, split_samples, write_splits
from aam.members.option_checks import check_targets
from aam.members.output_tables import write_table
from aam.members.prediction_tables import join_targets
from aam.pipeline import run_folder
from aam.pipeline.labelled_study import (
    classes_of_words,
    label_study,
    read_study,
    study_subjects,
)
from aam.pipeline.plan import plan, sequence_length
from aam.pipeline.run import run

_OF_TARGET = (
    "target_transform",
    "target_penalty",
    "loss_type",
    "quantiles",
    "over_penalty",
    "under_penalty",
    "output_min",
    "output_max",
    "class_weights",
)
"""Fields of `Train` that --loss-config may set for a target."""


def train_targets(options: Train) -> None:
    """Train the members for each target of --metadata-column.

    Raises:
        UsageError: options that one target alone can have.
        DataError: two targets have no sample in common.
    """
    metadata = read_metadata(options.target.metadata)
    columns = metadata.listed((options.target.metadata_column,))
    of_target = {} if options.loss_config is None else loss_options(options.loss_config, columns)
    named: dict[str, Train] = {}
    known = without_effect(options, options.undecided)
    for column in columns:
        target = dataclasses.replace(options.target, metadata_column=column)
        of_one = dataclasses.replace(options, target=target, **of_target.get(column, {}))
        named[column] = classes_of_words(of_one, metadata)
        # As the command line's options, those of single targets may have no effect.
        for sentence in without_effect(named[column]):
            if sentence not in known:
                warn(f"'{column}': {sentence}")
    if len(columns) == 1:
        run(named[columns[0]], metadata=metadata)
        return
    check_targets(options, columns)
    folder, around = options.run.output_dir, options.run
    resumed = around.resume_from is not None
    # Each target has checkpoints of its own to resume from; the folder around them has none.
    of_all = dataclasses.replace(around, resume_from=None, overwrite=around.overwrite or resumed)
    prepared = run_folder.prepare("train", dataclasses.replace(options, run=of_all))
    folders = {column: target_folder(folder, column) for column in columns}
    for of_target_folder in folders.values():
        check_run_folder(of_target_folder, around.overwrite, resumed)
    splits = folder / "splits.tsv"

    def of_column(column: str, path: Path) -> Train:
        return dataclasses.replace(
            named[column],
            split=dataclasses.replace(options.split, splits=path),
            run=dataclasses.replace(around, output_dir=folders[column]),
        )

    study = read_study(options, sequence_length(options))
    # All targets are checked before the folder is changed: until then the splits of the samples
    # that have a value of any target are in a temporary file.
    with tempfile.TemporaryDirectory() as scratch:
        path = splits
        if not (resumed and splits.exists()):
            path = Path(scratch) / splits.name
            _write_common_splits(path, options, columns, study, metadata)
        content = path.read_bytes()
        studies = {}
        for column in columns:
            info(f"Target: {column}")
            of_one = of_column(column, path)
            studies[column] = label_study(of_one, study, metadata, of_one.split)
            plan(of_one, studies[column])
    replaced = around.overwrite and not resumed
    prepared = dataclasses.replace(prepared, overwrite=replaced, resumes=resumed)
    names = {column: place.name for column, place in folders.items()}
    files = [splits.name, PREDICTIONS, REPEATS, *names.values()]
    with run_folder.begin(prepared, files=files, targets=names) as record:
        with atomic_write(splits) as temporary:
            temporary.write_bytes(content)
        for column in columns:
            info(f"Training for {column}")
            # `pop` releases the study of a target that is trained.
            run(of_column(column, splits), studies.pop(column))
        # Cells of samples without a label of a target are empty.
        for name in (PREDICTIONS, REPEATS):
            paths = {column: place / name for column, place in folders.items()}
            if not any(path.exists() for path in paths.values()):
                continue
            tables = {
                column: pd.read_csv(
                    path if path.exists() else path.with_name(PREDICTIONS),
                    sep="\t", dtype=str, keep_default_na=False,
                )
                for column, path in paths.items()
            }  # fmt: skip
            write_table(folder / name, join_targets(tables))
        record.finish()


def _write_common_splits(
    path: Path, options: Train, columns: Sequence[str], study: Study, metadata: Metadata
) -> None:
    """Split the samples that have a value of any target, each two of which share samples."""
    inside = metadata.rows_where(options.target.where, study.table.sample_ids)
    ids = [study.table.sample_ids[row] for row in inside]
    labelled = {
        column: {
            name for name, value in zip(ids, metadata.values(column, ids), strict=True) if value
        }
        for column in columns
    }
    for first, second in itertools.combinations(columns, 2):
        if not labelled[first] & labelled[second]:
            numbers = (f"'{column}' in {len(labelled[column])}" for column in (first, second))
            raise DataError(
                f"The targets '{first}' and '{second}' have no sample in common",
                f"{' and '.join(numbers)} of {len(ids)} samples",
                "train them in separate runs",
            )
    ids = [name for name in ids if any(name in rows for rows in labelled.values())]
    row_of = {name: row for row, name in enumerate(study.table.sample_ids)}
    study = study.take_samples(np.array([row_of[name] for name in ids]))
    studies = read_studies(options.study_column, metadata, ids)
    subjects = study_subjects(options, study, metadata, studies)
    splits, subjects = split_samples(
        options.split, options.folds, options.loop.seed, ids, subjects,
        repeats=options.repeats, studies=studies,
    )  # fmt: skip
    write_splits(path, ids, splits, subjects.groups)


def loss_options(path: Path, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the options of single targets (--loss-config): target -> field of `Train` -> value."""
    known = {spec.flag[2:]: spec for spec in specs(Train) if spec.field in _OF_TARGET}
    options: dict[str, dict[str, Any]] = {}
    for column, entry in read_yaml_entries(path, "file for --loss-config", columns).items():
        if not isinstance(entry.value, dict):
            evidence = f"'{column}' in {entry.source}"
            raise ConfigurationError("No options of a target", evidence, "write `option: value`")
        options[column] = {}
        for key, value in entry.value.items():
            if (spec := known.get(str(key).replace("_", "-"))) is None:
                evidence = f"'{key}' of '{column}' in {entry.source}"
                remedy = nearest(str(key), known, f"known are {', '.join(known)}")
                raise ConfigurationError("Not an option of a target", evidence, remedy)
            options[column][spec.field] = typed(spec, Sourced(value, entry.source))[spec.flag]
    return options
