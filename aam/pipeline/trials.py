"""Trials of a search: trainings in memory on one study, each with other options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aam.console import as_library
from aam.contract.folders import temporary_folder
from aam.contract.options import replaced
from aam.contract.options.commands.train import Train
from aam.data.covariates import check_folds
from aam.data.metrics import ScoredPredictions, value_of
from aam.data.splits import Rows, Split
from aam.members.member import TrainingSamples
from aam.members.option_checks import choose_members
from aam.members.scores import SCORED
from aam.pipeline.session import sequence_length, session
from aam.pipeline.train import estimators_of, folds_of, samples_of, train
from aam.training.labelled_study import LabelledStudy, check_labels, label_study, read_inputs


@dataclass(frozen=True)
class Trials:
    """Trials of a search.

    Attributes:
        base: options that no trial varies, with all members that a trial may have.
        folder: where a network has its checkpoints while it trains.
        labelled: the study as `base` reads it.
        samples: samples of the study, for estimators.
    """

    base: Train
    folder: Path
    labelled: LabelledStudy
    samples: TrainingSamples

    @classmethod
    def of(cls, base: Train, folder: Path) -> Trials:
        """Read the study of a search, and split it."""
        labelled = label_study(base, *read_inputs(base, sequence_length(base)), base.split)
        return cls(base, folder, labelled, samples_of(labelled))

    def score(self, values: Mapping[str, Any], split: Split) -> float:
        """Train with other values of options, and return the score of a split's test samples."""
        _, function = next(iter(SCORED[self.base.target.type].items()))
        return value_of(function, self.predict_held_out(values, split))

    def predict_held_out(self, values: Mapping[str, Any], split: Split) -> ScoredPredictions:
        """Train with other values of options, and predict the test samples of a split."""
        options = replaced(self.base, values)
        options = dataclasses.replace(options, members=choose_members(options), folds=1)
        # Trials share the study and what estimators compute from it, unless they vary how it is
        # read.
        trials = self if _reading(options) == _reading(self.base) else self._read_again(options)
        study = trials.labelled
        if trials is not self:
            split = _found_in(study, split, self.labelled)
        if study.covariates is not None:
            check_folds(study.covariates, (split,))
        study = dataclasses.replace(study, splits=(split,))
        # Processes of one search train at the same time, so each trial has a folder of its own.
        place = temporary_folder(self.folder, "trial") if options.uses_network else nullcontext()
        with as_library(), place as path:
            run = options.run if path is None else dataclasses.replace(options.run, output_dir=path)
            with session(dataclasses.replace(options, run=run), study) as trial:
                check_labels(trial.options, study)
                folds = folds_of(trial.options, study)
                trial.check(study)
                estimators = estimators_of(options)
                # A final fit, the bootstrap and the comparison with other columns would take longer
                # than fitting a kernel: 100 instead of 17 CPU-seconds for 2 x 2 folds, 2 trials.
                result = train(study, trials.samples, folds, estimators, trial, final=False)
        assert result is not None  # a search runs in one process
        return result.scored

    def _read_again(self, options: Train) -> Trials:
        """Read the study as a trial does that varies how it is read."""
        return Trials.of(dataclasses.replace(options, members=self.base.members), self.folder)


def _reading(options: Train) -> tuple[object, ...]:
    """Return the options on which the samples and labels of a study depend."""
    sample = options.sample.max_bp, options.sample.rarefy_depth
    limits = options.output_min, options.output_max
    return (options.input, options.target, options.covariates, options.phylogeny, sample, limits)


def _found_in(study: LabelledStudy, split: Split, of: LabelledStudy) -> Split:
    """Return the rows in `study` of the samples of a split of another one, those that it has."""
    row_of = {name: row for row, name in enumerate(study.study.table.sample_ids)}

    def rows(before: Rows) -> Rows:
        names = (of.study.table.sample_ids[row] for row in before)
        return np.array([row_of[name] for name in names if name in row_of], dtype=np.int64)

    return Split(rows(split.train), rows(split.validation), rows(split.test))
