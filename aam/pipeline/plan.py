"""Plan (members, samples, folds) and session (options, ranks) of a training, resolved once.

Estimators (kernel, forest) are fitted in one process, without PyTorch. The session of a run with a
network (`aam.network.training.runs`) has ranks, a device, a precision and an attention backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aam import wings
from aam.contract.errors import DataError
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import networks
from aam.data.targets import OutputRange, TargetScale
from aam.environment import ONE_PROCESS, RankGroup
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.members.member import Member, TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.run_folder import RecordFact, no_record


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of a run, from its options and its study; `folds` have transformed numbers."""

    members: tuple[str, ...]
    study: LabelledStudy
    folds: Folds
    device: str
    options: dict[str, Any]  # as the model and trackers record them

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
    if options.sensitivity is not None and len(study.classes) > 2:
        evidence = f"'{study.column}' has {len(study.classes)} classes"
        remedy = "leave --sensitivity out, or train on two of the classes (--where)"
        raise DataError("A threshold needs two classes", evidence, remedy)
    weights = options.class_weights if options.uses_network else None
    for split in study.splits:  # refuses training samples that no model can be fitted to
        study.fit_labels(split, options.target_transform, weights)
    limits = OutputRange.of(study.levels, options.output_min, options.output_max)
    # Without groups the sample ids name the units, as `aam compare` pairs them.
    names = study.subjects.groups or study.study.table.sample_ids
    folds = Folds(
        Labels.of(study.values, study.classes, names, study.levels, study.studies),
        study.splits,
        options.loop.seed,
        study.subjects.column,
        options.study_column,
        tuple(sorted(set(study.studies or ()))),
        TargetScale("none" if study.classes else options.target_transform, limits),
        options.sensitivity,
    )
    return TrainingPlan(
        tuple(options.members),
        study,
        folds,
        options.device.device,
        to_plain(options),
    )


@dataclass(frozen=True)
class Session:
    """Session of a run, a context manager; without a network."""

    options: Train  # without values that are chosen automatically
    length: int | None  # nucleotides to read of each sequence; None for all
    group: RankGroup = ONE_PROCESS
    gpus: Sequence[str] = ()  # names of those that the run can use

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: Any) -> None:
        """End the group of the ranks."""

    def check(self, study: LabelledStudy) -> Mapping[str, Any]:
        """Check a study before the run folder is changed; return facts for the run record."""
        return {}

    def networks(
        self, study: LabelledStudy, record_fact: RecordFact = no_record, counts_alone: bool = False
    ) -> Mapping[str, Member]:
        """Return the members that all ranks train, by name; `counts_alone` without metadata.

        Networks of the counts alone have a folder in the run folder.
        """
        return {}

    def leave(self) -> bool:
        """End the group of the ranks; return whether this is rank 0, and goes on alone."""
        return True


def start_session(
    options: Train, labelled: LabelledStudy | None = None, policy: Any = None
) -> Session:
    """Start the session of a run; the end of its `with` block ends it.

    With a network, join the group of the ranks, and choose --batch-size and --asv-chunk if they are
    `auto`. `policy` has the attention backends to choose from; None: all that PyTorch has.
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
