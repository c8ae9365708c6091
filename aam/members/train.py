"""`aam train`: members, their predictions of held-out samples, and the ensemble of them.

Each member is fitted for each split without its held-out samples, and finally to all samples (the
transformer is not: its folds are averaged). Scores, prediction intervals and calibration come from
the held-out predictions.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from aam.console import info, warn
from aam.contract import run_record
from aam.contract.errors import UsageError
from aam.contract.options import specs
from aam.contract.options.commands.train import MemberName, Train
from aam.contract.options.study import SplitOptions
from aam.data.metrics import ScoredPredictions
from aam.data.splits import write_splits
from aam.distributed.environment import read_environment
from aam.members import checkpoint
from aam.members.base import F64, Labels, Samples
from aam.members.cross_validation import CrossValidated, cross_validate
from aam.members.effects import estimator_importance
from aam.members.ensemble import combine_members
from aam.members.estimators import ESTIMATORS
from aam.members.folds import Folds
from aam.members.input_comparison import predict_alone, reads_metadata
from aam.members.results import Estimates, write_results
from aam.training.labelled_study import (
    LabelledStudy,
    fit_target,
    load_labelled_study,
    output_range,
    transformer_folds,
)
from aam.training.pretrained import choose_length, read_pretrained_encoder
from aam.training.run_files import run_folder
from aam.training.target_transforms import TargetScale

"""Members without a pretrained encoder; docs/results.md compares them."""

_EVERY_MEMBER = (
    "seed",
    "folds",
    "members",
    "test_size",
    "target_transform",
    "loss_config",
    "output_min",
    "output_max",
)
"""Options, besides those of input, output, samples and splits, that all members read."""


def train(options: Train) -> ScoredPredictions | None:
    """Train the members and write the run folder.

    Returns:
        The ensemble's predictions of the held-out samples; None on ranks other than the first.

    Raises:
        UsageError: options that contradict each other.
        AamError: see `aam.training.train` and `load_labelled_study`.
    """
    members = choose_members(options)
    folds = choose_folds(options, members)
    options = dataclasses.replace(options, members=members, folds=folds)
    check_processes(options)
    if checkpoint.TRANSFORMER not in members:
        return _train_estimators(options)
    if several_processes(options) and reads_metadata(options.covariates):
        raise UsageError(
            "The transformer reads metadata columns in one process only",
            "--categorical-columns or --numeric-columns with several processes",
            "train in one process, or leave the columns out",
        )
    from aam.members import transformer

    trained, counts = transformer.train(options, compare_inputs=True)
    if trained is None or (len(members) == 1 and counts is None and not options.target.levels):
        return trained
    return _add_estimators(options, trained, counts)


def predict_held_out(options: Train) -> ScoredPredictions:
    """Train the members for a trial of a search, which needs one score.

    The last fit to all samples, the bootstrap and the comparison with other columns are left out:
    they take longer than fitting a kernel. Only the transformer writes its run folder.

    Returns:
        The ensemble's predictions of the held-out samples, the same as those of `train`.

    Raises:
        AamError: see `train`.
    """
    options = dataclasses.replace(options, members=choose_members(options))
    others: dict[str, F64] = {}
    if checkpoint.TRANSFORMER in options.members:
        from aam.members import transformer

        trained, _ = transformer.train(options, compare_inputs=False)
        assert trained is not None  # a search runs in one process
        if len(options.members) == 1 and not options.target.levels:
            return trained
        others = _by_name(trained)
    labelled = _load(options, options.split)
    folds = _folds(options, labelled)
    results = _cross_validate(options, _samples(labelled), folds, final=False)
    estimated = {name: result.predictions_MC for name, result in results.items()}
    return folds.scored(combine_members(estimated | others, folds).predictions_MC)


def several_processes(options: Train) -> bool:
    """Return whether the command is one of several processes, or starts them."""
    return options.scale.fsdp or read_environment(os.environ).world_size > 1


def check_processes(options: Train) -> None:
    """Refuse several processes without the transformer: each would train the same models.

    Raises:
        UsageError: --processes, torchrun or srun start several.
    """
    number = options.scale.processes
    if not options.uses_network and (number > 1 or several_processes(options)):
        started = f"--processes {number}" if number > 1 else "started by torchrun or srun"
        evidence = f"{started}, with --members {' '.join(options.chosen_members)}"
        remedy = "start one process, or add transformer to --members"
        raise UsageError("Several processes for models that train in one", evidence, remedy)


def choose_folds(options: Train, members: tuple[MemberName, ...]) -> int | Literal["auto"]:
    """Return the number of folds; 'auto' remains without the transformer, see `split_samples`."""
    return transformer_folds(options) if checkpoint.TRANSFORMER in members else options.folds


def choose_members(options: Train) -> tuple[MemberName, ...]:
    """Return the members of the options, or the default ones.

    Raises:
        UsageError: a member twice, or an option of the transformer without it.
    """
    members = options.members
    if not members:
        members = options.chosen_members
        also = "" if options.pretrained_encoder is None else " (because of --pretrained-encoder)"
        info(f"Members: {', '.join(members)}{also}; --members chooses others.")
    if len(set(members)) < len(members):
        raise UsageError("A member twice", f"--members {' '.join(members)}", "name each once")
    if checkpoint.TRANSFORMER in members:
        return members
    given = {
        "--pretrained-encoder": options.pretrained_encoder is not None,
        "--freeze-base": options.freeze_base,
        f"--resume-from {options.run.resume_from}": isinstance(options.run.resume_from, Path),
    }
    if wrong := [flag for flag, present in given.items() if present]:
        raise UsageError(
            "Options of the transformer without it",
            f"{', '.join(wrong)} with --members {' '.join(members)}",
            "add transformer to --members, or leave the options out",
        )
    if ignored := _options_of_the_network(options):
        warn(f"Without the member transformer these options have no effect: {', '.join(ignored)}.")
    return members


def _options_of_the_network(options: Train) -> list[str]:
    """Return the flags, with another value than the default, that only the transformer reads."""
    groups = (options.model, options.task, options.loop, options.speed)
    of_network = {f.name for group in groups for f in dataclasses.fields(group)}
    of_network |= {f.name for f in dataclasses.fields(Train)}
    return [
        spec.flag
        for spec in specs(Train)
        if spec.role == "value"
        and spec.field in of_network - set(_EVERY_MEMBER)
        and run_record.value_of(options, spec.field) != spec.default
    ]


def _train_estimators(options: Train) -> ScoredPredictions:
    """Write a run folder of estimators alone."""
    prepared = run_folder.prepare("train", options)
    labelled = _load(options, prepared.split_options(options.split))
    folds, folder = _folds(options, labelled), options.run.output_dir
    with run_folder.begin(prepared) as record:
        ids = labelled.study.table.sample_ids
        write_splits(folder / "splits.tsv", ids, labelled.splits, labelled.labels)
        facts, scored = write_results(options, labelled, _estimate(options, labelled, folds))
        record.finish(**labelled.facts, **facts)
    info(f"Model: {folder}")
    return scored


def _add_estimators(
    options: Train, trained: ScoredPredictions, counts: ScoredPredictions | None
) -> ScoredPredictions:
    """Add estimators, and the comparison of the inputs, to the run folder of a transformer.

    Args:
        options: of the command.
        trained: the transformer's predictions of the held-out samples.
        counts: those of the transformer that reads the counts alone; None if both are the same.
    """
    folder = options.run.output_dir
    labelled = _load(options, dataclasses.replace(options.split, splits=folder / "splits.tsv"))
    estimates = _estimate(
        options,
        labelled,
        _folds(options, labelled),
        _by_name(trained),
        {} if counts is None else _by_name(counts),
    )
    facts, scored = write_results(options, labelled, estimates)
    if not estimates.results:  # the transformer alone has written its record
        return scored
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    run_record.write(folder / "run.json", content | facts)
    return scored


def _by_name(scored: ScoredPredictions) -> dict[str, F64]:
    """Return the held-out predictions [M, C] of the transformer by its name."""
    predictions = (
        scored.predicted[:, None] if scored.probabilities is None else scored.probabilities
    )
    return {checkpoint.TRANSFORMER: np.asarray(predictions, dtype=np.float64)}


def _folds(options: Train, labelled: LabelledStudy) -> Folds:
    """Gather the labels and splits of a run; numbers are transformed for the estimators.

    Raises:
        UsageError, DataError: see `fit_target` and `Folds`.
    """
    for split in labelled.splits:
        fit_target(options, labelled, split)
    classes, levels = labelled.classes, options.target.levels
    transform = "none" if classes else options.target_transform
    return Folds(
        Labels.of(labelled.values, classes, labelled.labels, levels),
        labelled.splits,
        options.loop.seed,
        options.split.group_column,
        TargetScale(transform, output_range(options)),
    )


def _load(options: Train, splits: SplitOptions) -> LabelledStudy:
    """Read the study, with the sequence length of the pretrained encoder where there is one."""
    base = read_pretrained_encoder(options.pretrained_encoder)
    return load_labelled_study(options, choose_length(base, options.sample), splits)


def _cross_validate(
    options: Train, samples: Samples, folds: Folds, final: bool
) -> dict[str, CrossValidated]:
    """Cross-validate the estimators among the members, see `cross_validate`."""
    return {
        name: cross_validate(name, ESTIMATORS[name], samples, folds, final)
        for name in options.members
        if name in ESTIMATORS
    }


def _samples(labelled: LabelledStudy) -> Samples:
    return Samples.of(labelled.study.table, labelled.study.tokens_FL, labelled.covariates)


def _estimate(
    options: Train,
    labelled: LabelledStudy,
    folds: Folds,
    others: Mapping[str, F64] = MappingProxyType({}),
    counts_alone: Mapping[str, F64] = MappingProxyType({}),
) -> Estimates:
    """Cross-validate the estimators among the members, and compute their importance.

    Args:
        options: of the command.
        labelled: the study.
        folds: its labels and splits.
        others: held-out predictions of other members.
        counts_alone: held-out predictions of other members that read the counts alone.
    """
    samples = _samples(labelled)
    results = _cross_validate(options, samples, folds, final=True)
    fold_importance: dict[str, F64] = {}
    if len(folds.splits) > 1:
        for name, result in results.items():
            of_study = result.inputs, samples.tokens_FL, samples.tokens_FL
            target = folds.labels.classes, folds.scale.transform
            fold_importance[name] = np.stack(
                [
                    estimator_importance(model, *of_study, *target).size_U
                    for model in result.fold_models
                ]
            )
    alone: dict[str, F64] = {}
    if labelled.covariates is not None:
        alone = predict_alone(list(results), samples, folds, counts_alone)
    return Estimates(folds, results, others, alone, fold_importance)
