"""Training of members on a study in memory, their held-out predictions, and the ensemble of them.

Each member is fitted for each split without its held-out samples. Scores, prediction intervals and
calibration come from the held-out predictions. For new samples, estimators are fitted once more to
all samples, and the networks of the folds are averaged.

With metadata among the inputs, the same members are also fitted to the same splits with the columns
alone and with the counts alone: a site or a season that predicts by itself must not be taken for
biology.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aam.console import info
from aam.contract.options.commands.train import Train
from aam.contract.options.members import MEMBERS, default_members
from aam.data.metrics import ScoredPredictions
from aam.data.splits import FILE_GROUPS
from aam.data.targets import TargetScale, output_range
from aam.members.base import F64, Labels, Samples
from aam.members.ensemble import Combined, combine_results
from aam.members.member import CrossValidated, TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.scores import Folds
from aam.pipeline.session import Session
from aam.training.labelled_study import LabelledStudy
from aam.training.run_folder import RecordFact, no_record

METADATA, COUNTS = "metadata alone", "counts alone"


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
    members: tuple[str, ...],
    session: Session,
    record_fact: RecordFact = no_record,
    final: bool = True,
) -> Result | None:
    """Train members on a study in memory, and combine them; None on ranks other than the first.

    The only files are the checkpoints from which a network resumes, in the run folder of the
    session's options. Without `final` the members predict the held-out samples alone.
    """
    compares = final and study.covariates is not None
    # Networks come first, since all ranks train them. `leave` then ends the group of the ranks: one
    # process fits the estimators.
    networks = {
        name: network.cross_validate(samples, folds, final)
        for name, network in session.networks(study, record_fact).items()
    }
    of_counts = {}
    if compares:
        for name, network in session.networks(study, counts_alone=True).items():
            info(f"Training the {name} again with the counts alone, to compare the inputs.")
            of_counts[name] = network.cross_validate(samples.counts_alone, folds, final=False)
    if not session.leave():
        return None
    estimators = {name: estimator(name) for name in members if not MEMBERS[name].network}
    weighed = len(estimators) > 1
    results = {
        name: each.cross_validate(samples, folds, final, weighed=weighed)
        for name, each in estimators.items()
    }
    results |= {name: found for name, found in networks.items() if found is not None}
    alone: dict[str, F64] = {}
    if compares:
        # No network is fitted to the metadata alone: without an estimator among the members, the
        # default ones are.
        of_metadata = estimators or {name: estimator(name) for name in default_members()}
        for title, each_of, part, others in (
            (METADATA, of_metadata, samples.metadata_alone, {}),
            (COUNTS, estimators, samples.counts_alone, of_counts),
        ):
            found = {
                name: each.cross_validate(part, folds, False, title, len(each_of) > 1)
                for name, each in each_of.items()
            } | {name: one for name, one in others.items() if one is not None}
            alone[title] = combine_results(found, folds).predictions_MC
    return Result(samples, folds, results, combine_results(results, folds), alone)


def samples_of(study: LabelledStudy) -> TrainingSamples:
    """Return the samples of a study for estimators, with counts in memory."""
    samples = Samples.of(study.study, study.covariates)
    return TrainingSamples(samples, AsvRelations(samples.tokens_FL))


def folds_of(options: Train, study: LabelledStudy) -> Folds:
    """Gather the labels and splits of a study; numbers are transformed for estimators."""
    transform = "none" if study.classes else options.target_transform
    # Named by their ids, samples without groups have the bootstrap resamples of `aam compare`.
    names = study.labels or study.study.table.sample_ids
    return Folds(
        Labels.of(study.values, study.classes, names, options.target.levels),
        study.splits,
        options.loop.seed,
        options.split.group_column or (None if study.labels is None else FILE_GROUPS),
        TargetScale(transform, output_range(options)),
    )
