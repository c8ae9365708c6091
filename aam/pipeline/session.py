"""Session of a run: the ranks, device, precision and attention backends of its networks.

Only the session of a run with a network has several ranks and a device, and imports PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aam.contract.options.commands.train import Train
from aam.contract.options.members import networks as network_names
from aam.contract.preflight import COUNTS_ALONE
from aam.distributed.environment import ONE_PROCESS, RankGroup
from aam.members.member import Member
from aam.training.labelled_study import LabelledStudy
from aam.training.run_folder import RecordFact, check_folds, no_record

if TYPE_CHECKING:
    from aam.numerics.backends import BackendPolicy
    from aam.training.runtime import Runtime


class Networks(Protocol):
    """Function that returns the members that all ranks train, by name."""

    def __call__(
        self,
        study: LabelledStudy,
        record_fact: RecordFact = no_record,
        counts_alone: bool = False,
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
        from aam.training.pretrain import choose_length, read_pretrained_encoder

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
    from aam.training.loop import check_split
    from aam.training.pretrain import choose_length, read_pretrained_encoder
    from aam.training.runtime import check_resources, make_runtime, numbers_of_host

    options = automatic(options, functools.partial(training_run, labelled=labelled))
    with ExitStack() as ranks:
        group = process_group(options.scale, options.device, options.loop.batch_samples)
        communicator = ranks.enter_context(group)
        # Before `numbers_of_host` replaces `auto`: nodes may have different numbers of cores.
        communicator.require_equal_options(options)
        check_resources(options)
        options = numbers_of_host(options)
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
