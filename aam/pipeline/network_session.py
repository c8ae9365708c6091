"""Session of a run with a network: its ranks, device, precision and attention backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any

from aam.contract.options.commands.train import Train
from aam.contract.options.members import networks
from aam.contract.preflight import COUNTS_ALONE
from aam.distributed.collectives import Communicator
from aam.distributed.process_group import process_group
from aam.members.member import Member
from aam.members.transformer import Transformer
from aam.numerics.backends import TORCH_POLICY, BackendPolicy
from aam.numerics.device import gpu_names
from aam.performance.fit import automatic
from aam.performance.memory import training_run
from aam.pipeline.session import Session
from aam.training import fit, run_folder
from aam.training.labelled_study import LabelledStudy
from aam.training.pretrained import choose_length, read_pretrained_encoder
from aam.training.run_folder import RecordFact, no_record
from aam.training.runtime import Runtime, check_resources, make_runtime, numbers_of_host


class NetworkSession(Session):
    """Session with a network, see `network_session`.

    Attributes:
        base: pretrained encoder of the options; None without one.
    """

    def __init__(
        self, options: Train, communicator: Communicator, policy: BackendPolicy, ranks: ExitStack
    ) -> None:
        super().__init__(options, communicator, gpu_names())
        self._communicator, self._policy, self._ranks = communicator, policy, ranks
        self.base = read_pretrained_encoder(options.pretrained_encoder)

    @property
    def length(self) -> int | None:
        """Nucleotides to read of each sequence, see `Session.length`."""
        return choose_length(self.base, self.options.sample)

    @cached_property
    def runtime(self) -> Runtime:
        """Device, precision and attention backends, chosen once the study is read."""
        sizes = self.base.config.shape if self.base else self.options.model
        return make_runtime(self.options, sizes, self._policy, self._communicator)

    def check(self, study: LabelledStudy) -> Mapping[str, Any]:
        """Check the splits of a study and the device, see `Session.check`."""
        if len(study.splits) > 1:
            run_folder.check_folds(self.options.run)
        for split in study.splits:
            fit.check_split(split, self.options.loop)
        return {"attention": self.runtime.attention}

    def networks(
        self, study: LabelledStudy, record_fact: RecordFact = no_record
    ) -> dict[str, Member]:
        """Return the transformer, see `Session.networks`."""
        return self._networks(self.options, study, record_fact)

    def networks_of_counts(self, study: LabelledStudy) -> dict[str, Member]:
        """Return the transformer without metadata, see `Session.networks_of_counts`."""
        run, covariates = self.options.run, self.options.covariates
        options = dataclasses.replace(
            self.options,
            covariates=dataclasses.replace(covariates, categorical_columns=(), numeric_columns=()),
            run=dataclasses.replace(
                run,
                output_dir=run.output_dir / COUNTS_ALONE,
                resume_from=run.resume_from and "auto",
            ),
        )
        return self._networks(options, dataclasses.replace(study, covariates=None), no_record)

    def leave(self) -> bool:
        """End the group of the ranks, see `Session.leave`."""
        self._ranks.close()
        return self.group.ranks.is_main

    def _networks(
        self, options: Train, study: LabelledStudy, record_fact: RecordFact
    ) -> dict[str, Member]:
        network = Transformer(options, study, self.base, self.runtime, record_fact)
        return dict.fromkeys(networks(options.members), network)


@contextmanager
def network_session(
    options: Train, labelled: LabelledStudy | None = None, policy: BackendPolicy | None = None
) -> Iterator[NetworkSession]:
    """Join the group of the ranks; choose --batch-size and --asv-chunk where they are `auto`."""
    options = automatic(options, partial(training_run, labelled=labelled))
    with ExitStack() as ranks:
        group = process_group(options.scale, options.device, options.loop.batch_samples)
        communicator = ranks.enter_context(group)
        # Before `numbers_of_host` replaces `auto`: nodes may have different numbers of cores.
        communicator.require_equal_options(options)
        check_resources(options)
        options = numbers_of_host(options)
        yield NetworkSession(options, communicator, policy or TORCH_POLICY, ranks)
