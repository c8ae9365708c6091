"""Trials of `aam search`: trainings with other values of options on one study, without a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aam.console import as_library
from aam.contract.options import replaced
from aam.contract.options.commands.train import Train
from aam.data.metadata import Metadata
from aam.evaluation.splits import Split, check_covariates
from aam.members.member import TrainingSamples
from aam.members.option_checks import choose_members
from aam.pipeline.cross_validation import Result, cross_validate
from aam.pipeline.labelled_study import LabelledStudy, load_labelled_study
from aam.pipeline.plan import plan, sequence_length, start_session
from aam.serialization.folders import temporary_folder
from aam.threads import blas_threads


@dataclass(frozen=True)
class Trials:
    """Trials of a search on a study that all estimators share."""

    base: Train  # options that no trial varies, with all members that a trial may have
    folder: Path  # of the checkpoints of a network while it trains
    labelled: LabelledStudy
    samples: TrainingSamples

    @classmethod
    def of(cls, base: Train, folder: Path, metadata: Metadata | None = None) -> Trials:
        """Read the study of a search, and split it."""
        labelled = load_labelled_study(base, sequence_length(base), base.split, metadata)
        return cls(base, folder, labelled, plan(base, labelled).samples())

    def train(self, values: Mapping[str, Any], split: Split) -> Result:
        """Train with other values of options, and predict the test samples of a split."""
        options = replaced(self.base, values)
        options = dataclasses.replace(options, members=choose_members(options), folds=1)
        # Trials share the study and its inputs, unless they vary options by which it is read.
        trials = self
        if _reading(options) != _reading(self.base):
            read = dataclasses.replace(options, members=self.base.members)
            trials = Trials.of(read, self.folder)
            sample_ids = self.labelled.study.table.sample_ids
            row_of = {name: k for k, name in enumerate(trials.labelled.study.table.sample_ids)}
            # The samples of the split that the other options leave.
            training, validation, test = (
                np.array(
                    [row_of[sample_ids[row]] for row in rows if sample_ids[row] in row_of], np.int64
                )
                for rows in (split.train, split.validation, split.test)
            )
            split = Split(training, validation, test)
        study = trials.labelled
        if study.covariates is not None:
            check_covariates(study.covariates, (split,))
        study = dataclasses.replace(study, splits=(split,))
        # Processes of one search train at the same time, so each trial has a folder of its own.
        scratch = temporary_folder(self.folder, "trial") if options.uses_network else nullcontext()
        with as_library(), scratch as path:
            run = options.run if path is None else dataclasses.replace(options.run, output_dir=path)
            with (
                start_session(dataclasses.replace(options, run=run), study) as session,
                blas_threads(len(study.values)),
            ):
                planned = plan(session.options, study)
                session.check(study)
                # A final fit, the bootstrap and the comparison with other columns would take longer
                # than the fits of a kernel: 100 instead of 17 CPU-seconds (2 x 2 folds, 2 trials).
                result = cross_validate(planned, trials.samples, session, final=False)
        assert result is not None  # a search runs in one process
        return result


def _reading(options: Train) -> tuple[object, ...]:
    """Return the options on which the samples and labels of a study depend."""
    sample = options.sample.max_bp, options.sample.rarefy_depth
    limits = options.output_min, options.output_max
    return (options.input, options.target, options.covariates, options.phylogeny, sample, limits)
