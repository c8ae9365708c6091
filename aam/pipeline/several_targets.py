"""Several targets: a run of each on the same folds, in one run folder.

Samples without a value of a target are left out of its run. The folder has `splits.tsv` of all
samples, `predictions.tsv` with the columns of every target, and a run folder for each target.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from aam.data.formats.text import write_table
from aam.data.metadata import Metadata
from aam.data.study import Study
from aam.evaluation.splits import write_splits
from aam.members.prediction_tables import join_targets
from aam.pipeline import run_folder
from aam.pipeline.labelled_study import (
    LabelledStudy,
    classes_of_words,
    label_study,
    read_study,
    split_study,
)
from aam.pipeline.plan import plan, sequence_length
from aam.pipeline.run import run

_OF_TARGET = ("target_transform", "target_penalty", "loss_type", "quantiles", "over_penalty",
              "under_penalty", "output_min", "output_max", "class_weights")  # fmt: skip
"""Fields of `Train` that --loss-config may set for a target."""


def options_of_targets(
    options: Train, columns: Sequence[str], metadata: Metadata
) -> dict[str, Train]:
    """Return the options of each target, with its entries of --loss-config."""
    content: dict[str, Sourced[Any]] = {}
    if options.loss_config is not None:
        content = read_yaml_entries(options.loss_config, "file for --loss-config", columns)
    specs_of = {spec.flag[2:]: spec for spec in specs(Train) if spec.field in _OF_TARGET}
    without = without_effect(options, options.undecided)
    targets: dict[str, Train] = {}
    for column in columns:
        changes: dict[str, Any] = {"target": replace(options.target, metadata_column=column)}
        entry = content.get(column, Sourced({}, ""))
        if not isinstance(entry.value, dict):
            evidence = f"'{column}' in {entry.source}"
            raise ConfigurationError(
                "An entry of a target without options", evidence, "write `option: value`"
            )
        for key, value in entry.value.items():
            if (spec := specs_of.get(str(key).replace("_", "-"))) is None:
                evidence = f"'{key}' of '{column}' in {entry.source}"
                remedy = nearest(str(key), specs_of, f"known are {', '.join(specs_of)}")
                raise ConfigurationError("Not an option of a target", evidence, remedy)
            changes[spec.field] = typed(spec, Sourced(value, entry.source))[spec.flag]
        targets[column] = classes_of_words(replace(options, **changes), metadata)
        # Options of single targets may have no effect, as on the command line.
        for sentence in without_effect(targets[column]):
            if sentence not in without:
                warn(f"'{column}': {sentence}")
    return targets


def run_targets(options: Train, targets: Mapping[str, Train], metadata: Metadata) -> None:
    """Run each target on the same folds, and join the predictions."""
    folder, resumes = options.run.output_dir, options.run.resume_from is not None
    folders = {column: target_folder(folder, column) for column in targets}
    # Each target has checkpoints of its own to resume from; the folder around them has none.
    run_options_of_folder = replace(
        options.run, resume_from=None, overwrite=options.run.overwrite or resumes
    )
    prepared = run_folder.prepare("train", replace(options, run=run_options_of_folder))
    overwrite = options.run.overwrite and not resumes
    prepared = replace(prepared, overwrite=overwrite, resumes=resumes)
    for of_target in folders.values():
        check_run_folder(of_target, options.run.overwrite, resumes)
    splits, labelled = folder / "splits.tsv", dict[str, LabelledStudy]()
    study = read_study(options, sequence_length(options))
    # All targets are checked before the folder is changed: until then the splits of the samples
    # that have a value of any target are in a temporary file.
    with tempfile.TemporaryDirectory() as scratch:
        path = splits
        if not (resumes and splits.exists()):
            path = Path(scratch) / splits.name
            _write_common_splits(path, options, targets, study, metadata)
        content = path.read_bytes()
        for column, target in targets.items():
            info(f"Target: {column}")
            labelled[column] = label_study(target, study, metadata, path)
            plan(target, labelled[column])
    names = {column: path.name for column, path in folders.items()}
    files = [splits.name, PREDICTIONS, REPEATS, *names.values()]
    with run_folder.begin(prepared, files=files, targets=names) as record:
        with atomic_write(splits) as temporary:
            temporary.write_bytes(content)
        for column, target in targets.items():
            info(f"Training for {column}")
            split = replace(options.split, splits=splits)
            run_options = replace(options.run, output_dir=folders[column])
            # `pop` releases the study of a target that is trained.
            run(replace(target, split=split, run=run_options), labelled.pop(column))
        # Cells of samples without a label of a target are empty.
        for name in (PREDICTIONS, REPEATS):
            paths = {column: path / name for column, path in folders.items()}
            if all(path.exists() for path in paths.values()):
                tables = {
                    column: pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
                    for column, path in paths.items()
                }
                write_table(folder / name, join_targets(tables))
        record.finish()


def _write_common_splits(
    path: Path, options: Train, targets: Mapping[str, Train], study: Study, metadata: Metadata
) -> None:
    """Split the samples that have a value of any target; each two targets must share samples."""
    rows = metadata.rows_where(options.target.where, study.table.sample_ids)
    ids = [study.table.sample_ids[row] for row in rows]
    has_value = {column: metadata.values(column, ids) != "" for column in targets}
    for first, second in itertools.combinations(targets, 2):
        if not np.any(has_value[first] & has_value[second]):
            numbers = (f"'{column}' in {has_value[column].sum()}" for column in (first, second))
            raise DataError(
                f"The targets '{first}' and '{second}' have no sample in common",
                f"{' and '.join(numbers)} of {len(ids)} samples",
                "train them in separate runs",
            )
    study = study.take_samples(np.asarray(rows)[np.any([*has_value.values()], axis=0)])
    splits, subjects, _ = split_study(options, study, metadata)
    write_splits(path, study.table.sample_ids, splits, subjects.groups)
