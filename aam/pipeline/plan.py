"""Plan of a training, resolved once: its session on this host, its members, samples and folds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aam import wings
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import TargetOptions, networks
from aam.data.targets import TargetScale, output_range
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.labelled_study import LabelledStudy, check_labels
from aam.pipeline.session import Session


@dataclass(frozen=True)
class TrainingPlan:
    """What a run trains, resolved once from its options and its study.

    `folds` are those of the estimators, for which numbers are transformed.
    """

    members: tuple[str, ...]
    target: TargetOptions
    study: LabelledStudy
    folds: Folds
    stratify: bool
    device: str

    @property
    def uses_network(self) -> bool:
        """Whether a member is a network."""
        return bool(networks(self.members))

    def samples(self) -> TrainingSamples:
        """Return the samples for estimators, with counts in memory."""
        samples = Samples.of(self.study.study, self.study.covariates)
        return TrainingSamples(samples, AsvRelations(samples.tokens_FL))


def plan(options: Train, study: LabelledStudy) -> TrainingPlan:
    """Plan the training of a labelled study; the options are those that `resolve` returns."""
    check_labels(options, study)
    limits = output_range(options.target.levels, options.output_min, options.output_max)
    # Named by their ids, samples without groups have the units of `aam compare`.
    names = study.subjects.groups or study.study.table.sample_ids
    folds = Folds(
        Labels.of(study.values, study.classes, names, options.target.levels, study.studies),
        study.splits,
        options.loop.seed,
        study.subjects.column,
        options.study_column,
        tuple(sorted(set(study.studies or ()))),
        TargetScale("none" if study.classes else options.target_transform, limits),
    )
    return TrainingPlan(
        tuple(options.members),
        options.target,
        study,
        folds,
        options.split.stratify,
        options.device.device,
    )


def start_session(
    options: Train, labelled: LabelledStudy | None = None, policy: Any = None
) -> Session:
    """Start the session of a run, which the end of a `with` block ends.

    With a network, join the group of the ranks, and choose --batch-size and --asv-chunk where they
    are `auto`.

    Args:
        options: as `resolve` returns them.
        labelled: the study, if it is read already.
        policy: attention backends to choose from; None for those of PyTorch.
    """
    if not options.uses_network:
        return Session(options, sequence_length(options))
    session: Session = wings.network().start_session(options, labelled, policy)
    return session


def sequence_length(options: Train) -> int | None:
    """Return the nucleotides to read of each sequence, as of a pretrained encoder; None for all."""
    if options.pretrained_encoder is not None:
        return wings.network().sequence_length(options)
    return None if options.sample.max_bp == "auto" else options.sample.max_bp
