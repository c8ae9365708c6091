"""Run of `aam train`: the training pipeline in a run folder, and without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aam.console import info
from aam.contract.options.commands.train import Train
from aam.data.metrics import ScoredPredictions
from aam.data.splits import write_splits
from aam.members.confounding import Association
from aam.members.model_file import TrainedModel
from aam.members.relations import AsvRelations
from aam.pipeline.preview import preview
from aam.pipeline.repeated_samples import RepeatedSamples
from aam.pipeline.results import model_of, show_results, write_importance, write_results
from aam.pipeline.session import session
from aam.pipeline.train import estimators_of, folds_of, samples_of, train
from aam.report.page import write_report_of_run
from aam.training import run_folder
from aam.training.labelled_study import LabelledStudy, check_labels, load_labelled_study

if TYPE_CHECKING:
    from aam.numerics.backends import BackendPolicy


def run(
    options: Train,
    labelled: LabelledStudy | None = None,
    policy: BackendPolicy | None = None,
    report: bool = True,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> ScoredPredictions | None:
    """Train the members and write the run folder.

    Args:
        options: as `resolve` returns them.
        labelled: the study, if it is read already.
        policy: attention backends to choose from; None for those of PyTorch.
        report: write report.html.
        facts: entries of run.json in place of those of the command line.

    Returns:
        The ensemble's predictions of the held-out samples; None on ranks other than the first.

    Raises:
        AamError: see `session`, `load_labelled_study`, `check_labels`, `folds_of` and `train`.
    """
    with session(options, labelled, policy) as members:
        options, group = members.options, members.group
        prepared = run_folder.prepare("train", options, group, members.gpus)
        if labelled is None:
            splits = prepared.split_options(options.split)
            labelled = load_labelled_study(options, members.length, splits)
        check_labels(options, labelled)
        folds = folds_of(options, labelled)
        # All that may refuse the study comes before `begin`, which changes the run folder.
        checked = members.check(labelled)
        with run_folder.begin(prepared, group, **checked, **facts) as record:
            found: list[Association] = []
            repeated: RepeatedSamples | None = None
            if group.ranks.is_main:
                # One rank prints and writes for all.
                found, repeated = preview(options, labelled, folds)
                ids, path = labelled.study.table.sample_ids, prepared.folder / "splits.tsv"
                write_splits(path, ids, labelled.splits, labelled.labels)
            samples, estimators = samples_of(labelled), estimators_of(options)
            result = train(labelled, samples, folds, estimators, members, record.record_fact)
            if result is None:
                return None
            made, scores, model = write_results(options, labelled, result, found, repeated)
            record.finish(**labelled.facts, **made)
    # Everything is written before anything of it is shown: no terminal that fails costs a result.
    write_importance(options, labelled, model, result)
    page = write_report_of_run(prepared.folder, labelled.study.table) if report else None
    show_results(scores)
    info(f"Model: {prepared.folder}")
    if page is not None:
        info(f"Report: {page}")
    return result.scored


def fit(options: Train, labelled: LabelledStudy) -> TrainedModel:
    """Train the members on a study in memory, without a run folder and without scores.

    Args:
        options: as `resolve` returns them; a network has its checkpoints in the run folder.
        labelled: the study.

    Raises:
        AamError: see `run`.
    """
    with session(options, labelled) as members:
        options = members.options
        check_labels(options, labelled)
        folds, samples = folds_of(options, labelled), samples_of(labelled)
        members.check(labelled)
        result = train(labelled, samples, folds, estimators_of(options), members)
        assert result is not None  # several ranks write a run folder
        model = model_of(options, labelled, result)
        # The mismatches of all pairs of ASVs go: 4 bytes each, as long as the model is in memory.
        return dataclasses.replace(model, relations=AsvRelations(model.tokens_FL))
