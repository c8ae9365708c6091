"""Training pipeline: members, their predictions of held-out samples, and the ensemble of them.

Each member is fitted for each split without its held-out samples. Scores, prediction intervals and
calibration come from the held-out predictions. For new samples, estimators are fitted once more to
all samples, and the networks of the folds are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aam.console import info
from aam.contract.options.commands.train import Train
from aam.contract.options.members import MEMBERS
from aam.data.metrics import ScoredPredictions
from aam.data.splits import FILE_GROUPS
from aam.data.targets import TargetScale, output_range
from aam.members.base import F64, Labels, Samples
from aam.members.ensemble import Combined, combine_results
from aam.members.member import CrossValidated, Estimator, TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.scores import Folds
from aam.pipeline.input_comparison import predict_alone
from aam.pipeline.session import Session
from aam.training.labelled_study import LabelledStudy
from aam.training.run_folder import RecordFact, no_record


@dataclass(frozen=True)
class Result:
    """Result of a training.

    Attributes:
        samples: samples of the study.
        folds: labels and splits.
        members: predictions of the held-out samples and models of each member, by name.
        combined: the ensemble of the members.
        alone: held-out predictions [M, C] of metadata and counts alone; empty without covariates.
    """

    samples: TrainingSamples
    folds: Folds
    members: Mapping[str, CrossValidated]
    combined: Combined
    alone: Mapping[str, F64]

    @property
    def scored(self) -> ScoredPredictions:
        """The ensemble's predictions of the held-out samples."""
        return self.folds.scored(self.combined.predictions_MC)


def train(
    study: LabelledStudy,
    samples: TrainingSamples,
    folds: Folds,
    estimators: Mapping[str, Estimator[Any]],
    session: Session,
    record_fact: RecordFact = no_record,
    final: bool = True,
) -> Result | None:
    """Train members on a study in memory, and combine them.

    The only files are the checkpoints from which a network resumes, in the run folder of the
    session's options.
    """
    compares = final and study.covariates is not None
    # Networks come first, since all ranks train them. `leave` then ends the group of the ranks: one
    # process fits the estimators.
    networks = {
        name: network.cross_validate(samples, folds, final)
        for name, network in session.networks(study, record_fact).items()
    }
    of_counts = {}
    for name, network in session.networks_of_counts(study).items() if compares else ():
        info(f"Training the {name} again with the counts alone, to compare the inputs.")
        of_counts[name] = network.cross_validate(samples.counts_alone, folds, final=False)
    if not session.leave():
        return None
    weighed = len(estimators) > 1
    results = {
        name: each.cross_validate(samples, folds, final, weighed=weighed)
        for name, each in estimators.items()
    }
    results |= {name: found for name, found in networks.items() if found is not None}
    combined = combine_results(results, folds)
    alone: dict[str, F64] = {}
    if compares:
        counts = {name: found for name, found in of_counts.items() if found is not None}
        alone = predict_alone(estimators, samples, folds, counts)
    return Result(samples, folds, results, combined, alone)


def estimators_of(options: Train) -> dict[str, Estimator[Any]]:
    """Return the members of the options that are fitted in memory."""
    names = [name for name in options.members if not MEMBERS[name].network]
    return {name: estimator(name) for name in names}


def samples_of(study: LabelledStudy) -> TrainingSamples:
    """Return the samples of a study for estimators, with counts in memory."""
    samples = Samples.of(study.study, study.covariates)
    return TrainingSamples(samples, AsvRelations(samples.tokens_FL))


def folds_of(options: Train, study: LabelledStudy) -> Folds:
    """Gather the labels and splits of a study; numbers are transformed for estimators.

    Raises:
        DataError: see `Folds`.
    """
    classes, levels = study.classes, options.target.levels
    transform = "none" if classes else options.target_transform
    # Named by their ids, samples without groups have the bootstrap resamples of `aam compare`.
    ids = study.study.table.sample_ids
    return Folds(
        Labels.of(study.values, classes, study.labels or ids, levels),
        study.splits,
        options.loop.seed,
        options.split.group_column or (None if study.labels is None else FILE_GROUPS),
        TargetScale(transform, output_range(options)),
    )
