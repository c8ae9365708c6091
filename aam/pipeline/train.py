"""Training of members on a study in memory, their held-out predictions, and the ensemble of them.

Each member is fitted for each split without its held-out samples. Scores, prediction intervals and
calibration come from the held-out predictions. For new samples, estimators are fitted once more to
all samples, and the networks of the folds are averaged.

With metadata among the inputs, the same members are also fitted to the same splits with the columns
alone and with the counts alone: a site or a season that predicts by itself must not be taken for
biology.

The `Session` of a run has the ranks, device, precision and attention backends of its networks; only
that of a run with a network has several ranks and a device, and imports PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aam.arrays import F64
from aam.console import info
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import MEMBERS, default_members
from aam.contract.options.groups import networks as network_names
from aam.contract.run_files import COUNTS_ALONE
from aam.data.targets import TargetScale, output_range
from aam.distributed.environment import ONE_PROCESS, RankGroup
from aam.evaluation.ensemble import Combined
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.splits import FILE_GROUPS
from aam.members.base import Samples
from aam.members.member import CrossValidated, Member, TrainingSamples, combine_results, estimator
from aam.members.relations import AsvRelations
from aam.training.labelled_study import LabelledStudy
from aam.training.run_folder import RecordFact, check_folds, no_record

if TYPE_CHECKING:
    from aam.numerics.backends import BackendPolicy
    from aam.training.runtime import Runtime

METADATA, COUNTS = "metadata alone", "counts alone"


class Networks(Protocol):
    """Function that returns the members that all ranks train, by name."""

    def __call__(
        self, study: LabelledStudy, record_fact: RecordFact = no_record, counts_alone: bool = False
    ) -> dict[str, Member]:
        """Return the networks of a study; `counts_alone` those without metadata."""
        ...


@dataclass(frozen=True)
class Session:
    """Session of a run.

    Attributes:
        options: options of the run, without values that are chosen automatically.
        length: nucleotides to read of each sequence; None for all.
        group: the ranks.
        gpus: names of the GPUs that the run can use.
        check: checks a study before the run folder is changed; returns facts for the run record.
        networks: see `Networks`; those of the counts alone have a folder in the run folder.
        leave: ends the group of the ranks; returns whether this is the first, which goes on alone.
    """

    options: Train
    length: int | None
    group: RankGroup = ONE_PROCESS
    gpus: Sequence[str] = ()
    check: Callable[[LabelledStudy], Mapping[str, Any]] = lambda study: {}
    networks: Networks = lambda study, record_fact=no_record, counts_alone=False: {}
    leave: Callable[[], bool] = lambda: True


def sequence_length(options: Train) -> int | None:
    """Return the nucleotides to read of each sequence, as of a pretrained encoder; None for all."""
    if options.pretrained_encoder is not None:
        # PyTorch takes a CPU-second to import.
        from aam.training.runs import choose_length, read_pretrained_encoder

        return choose_length(read_pretrained_encoder(options.pretrained_encoder), options.sample)
    return None if options.sample.max_bp == "auto" else options.sample.max_bp


@contextmanager
def session(
    options: Train, labelled: LabelledStudy | None = None, policy: BackendPolicy | None = None
) -> Iterator[Session]:
    """Start the session of a run, and end it with the block.

    With a network, join the group of the ranks, and choose --batch-size and --asv-chunk where they
    are `auto`.
    """
    if not options.uses_network:
        yield Session(options, sequence_length(options))
        return
    # PyTorch and its distributed packages take 2 CPU-seconds to import.
    from aam.distributed.process_group import process_group
    from aam.members.transformer import Transformer
    from aam.numerics.backends import TORCH_POLICY
    from aam.numerics.device import gpu_names
    from aam.performance.fit import automatic
    from aam.performance.memory import training_run
    from aam.training.fit import check_split
    from aam.training.runs import choose_length, read_pretrained_encoder
    from aam.training.runtime import check_resources, make_runtime

    options = automatic(options, functools.partial(training_run, labelled=labelled))
    with ExitStack() as ranks:
        group = process_group(options.scale, options.device, options.loop.batch_samples)
        communicator = ranks.enter_context(group)
        # Before `auto` is replaced: nodes may have different numbers of cores.
        communicator.require_equal_options(options)
        options = check_resources(options)
        base = read_pretrained_encoder(options.pretrained_encoder)

        @functools.cache
        def runtime() -> Runtime:
            """Choose device, precision and attention backends, once the study is read."""
            sizes = base.config.shape if base else options.model
            return make_runtime(options, sizes, policy or TORCH_POLICY, communicator)

        def check(study: LabelledStudy) -> Mapping[str, Any]:
            if len(study.splits) > 1:
                check_folds(options.run)
            for split in study.splits:
                check_split(split, options.loop)
            return {"attention": runtime().attention}

        def networks(
            study: LabelledStudy, record_fact: RecordFact = no_record, counts_alone: bool = False
        ) -> dict[str, Member]:
            own = options
            if counts_alone:
                run, columns = options.run, options.covariates
                columns = dataclasses.replace(columns, categorical_columns=(), numeric_columns=())
                folder, resumed = run.output_dir / COUNTS_ALONE, run.resume_from and "auto"
                run = dataclasses.replace(run, output_dir=folder, resume_from=resumed)
                own = dataclasses.replace(options, covariates=columns, run=run)
                study = dataclasses.replace(study, covariates=None)
            network = Transformer(own, study, base, runtime(), record_fact)
            return dict.fromkeys(network_names(options.members), network)

        def leave() -> bool:
            ranks.close()
            return communicator.ranks.is_main

        length = choose_length(base, options.sample)
        yield Session(options, length, communicator, gpu_names(), check, networks, leave)


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
    # Named by their ids, samples without groups have the units of `aam compare`.
    names = study.labels or study.study.table.sample_ids
    return Folds(
        Labels.of(study.values, study.classes, names, options.target.levels, study.studies),
        study.splits,
        options.loop.seed,
        options.split.group_column or (None if study.labels is None else FILE_GROUPS),
        options.study_column,
        tuple(sorted(set(study.studies or ()))),
        TargetScale(transform, output_range(options)),
    )
