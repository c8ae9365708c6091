"""`aam train`: members, their predictions of held-out samples, and the ensemble of them.

Each member is fitted for each split without its held-out samples, and finally to all samples (the
transformer is not: its folds are averaged). Scores, prediction intervals and calibration come from
the held-out predictions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from aam.console import info
from aam.contract import run_record
from aam.contract.options.commands.train import Train
from aam.contract.options.study import SplitOptions
from aam.data.metrics import ScoredPredictions
from aam.data.splits import write_splits
from aam.data.target_transforms import TargetScale, output_range
from aam.members.base import F64, Labels, Samples
from aam.members.cross_validation import CrossValidated, cross_validate
from aam.members.effects import estimator_importance
from aam.members.ensemble import combine_members
from aam.members.estimators import ESTIMATORS
from aam.members.folds import Folds
from aam.members.input_comparison import predict_alone
from aam.members.option_checks import TRANSFORMER, choose_members
from aam.members.relations import AsvRelations
from aam.members.results import Estimates, write_results
from aam.training.labelled_study import (
    LabelledStudy,
    fit_target,
    load_labelled_study,
)
from aam.training.pretrained import choose_length, read_pretrained_encoder
from aam.training.run_files import run_folder

if TYPE_CHECKING:
    from aam.training.train import HeldOut


def train(options: Train, labelled: LabelledStudy | None = None) -> ScoredPredictions | None:
    """Train the members and write the run folder.

    Args:
        options: as `resolve` returns them.
        labelled: the study, of `load`, if it is read already.

    Returns:
        The ensemble's predictions of the held-out samples; None on ranks other than the first.

    Raises:
        AamError: see `aam.training.train` and `load_labelled_study`.
    """
    if TRANSFORMER not in options.members:
        return _train_estimators(options, labelled)
    from aam.members import transformer

    trained, counts = transformer.train(options, compare_inputs=True)
    if trained is None:  # the first rank goes on
        return None
    return _add_estimators(options, labelled, trained, counts)


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
    if TRANSFORMER in options.members:
        from aam.members import transformer

        trained, _ = transformer.train(options, compare_inputs=False)
        assert trained is not None  # a search runs in one process
        if len(options.members) == 1 and not options.target.levels:
            return trained.scored
        others = _by_name(trained)
    labelled = _load(options, options.split)
    folds = _folds(options, labelled)
    samples = _samples(labelled)
    relations = AsvRelations(samples.tokens_FL)
    results = _cross_validate(options, samples, relations, folds, final=False)
    estimated = {name: result.predictions_MC for name, result in results.items()}
    return folds.scored(combine_members(estimated | others, folds).predictions_MC)


def load(options: Train) -> LabelledStudy:
    """Read the study of a run, and check its target and folds.

    Raises:
        AamError: see `load_labelled_study`, `fit_target` and `Folds`.
    """
    labelled = _load(options, options.split)
    _folds(options, labelled)
    return labelled


def _train_estimators(options: Train, labelled: LabelledStudy | None) -> ScoredPredictions:
    """Write a run folder of estimators alone."""
    prepared = run_folder.prepare("train", options)
    labelled = labelled or _load(options, prepared.split_options(options.split))
    folds, folder = _folds(options, labelled), options.run.output_dir
    with run_folder.begin(prepared) as record:
        ids = labelled.study.table.sample_ids
        write_splits(folder / "splits.tsv", ids, labelled.splits, labelled.labels)
        facts, scored = write_results(options, labelled, _estimate(options, labelled, folds))
        record.finish(**labelled.facts, **facts)
    info(f"Model: {folder}")
    return scored


def _add_estimators(
    options: Train,
    labelled: LabelledStudy | None,
    trained: HeldOut,
    counts: HeldOut | None,
) -> ScoredPredictions:
    """Add estimators, and the comparison of the inputs, to the run folder of a transformer.

    Args:
        options: of the command.
        labelled: the study; None if it is to be read.
        trained: the transformer's predictions of the held-out samples.
        counts: those of the transformer that reads the counts alone; None if both are the same.
    """
    folder = options.run.output_dir
    split = dataclasses.replace(options.split, splits=folder / "splits.tsv")
    labelled = labelled or _load(options, split)
    estimates = _estimate(
        options,
        labelled,
        _folds(options, labelled),
        _by_name(trained),
        {} if counts is None else _by_name(counts),
        trained.quantiles,
    )
    facts, scored = write_results(options, labelled, estimates)
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    best = content["best"] | facts["best"]  # the best epoch of the transformer, and the scores
    run_record.write(folder / "run.json", content | facts | {"best": best})
    return scored


def _by_name(trained: HeldOut) -> dict[str, F64]:
    """Return the held-out predictions [M, C] of the transformer by its name."""
    scored = trained.scored
    predictions = (
        scored.predicted[:, None] if scored.probabilities is None else scored.probabilities
    )
    return {TRANSFORMER: np.asarray(predictions, dtype=np.float64)}


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
    options: Train, samples: Samples, relations: AsvRelations, folds: Folds, final: bool
) -> dict[str, CrossValidated]:
    """Cross-validate the estimators among the members, see `cross_validate`."""
    return {
        name: cross_validate(name, ESTIMATORS[name], samples, relations, folds, final)
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
    quantiles: Mapping[str, F64] = MappingProxyType({}),
) -> Estimates:
    """Cross-validate the estimators among the members, and compute their importance.

    Args:
        options: of the command.
        labelled: the study.
        folds: its labels and splits.
        others: held-out predictions of other members.
        counts_alone: held-out predictions of other members that read the counts alone.
        quantiles: of the transformer, by column.
    """
    samples = _samples(labelled)
    relations = AsvRelations(samples.tokens_FL)
    results = _cross_validate(options, samples, relations, folds, final=True)
    fold_importance: dict[str, F64] = {}
    if len(folds.splits) > 1:
        for name, result in results.items():
            of_study = result.inputs, samples.tokens_FL, relations
            target = folds.labels.classes, folds.scale.transform
            fold_importance[name] = np.stack(
                [
                    estimator_importance(model, *of_study, *target).size_U
                    for model in result.fold_models
                ]
            )
    alone: dict[str, F64] = {}
    if labelled.covariates is not None:
        alone = predict_alone(list(results), samples, relations, folds, counts_alone)
    return Estimates(folds, relations, results, others, alone, fold_importance, quantiles)
