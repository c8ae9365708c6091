"""Session of a training run with a network: ranks, device, precision and attention backends."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.contract.errors import UsageError
from aam.contract.options import values_of
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import RunOptions
from aam.contract.options.groups import networks as network_names
from aam.contract.run_files import COUNTS_ALONE
from aam.members.member import Member
from aam.network.batch_size import automatic
from aam.network.distributed.process_group import process_group
from aam.network.inference.stored_networks import StoredNetwork
from aam.network.memory_prediction import training_run
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import gpu_names
from aam.network.training.fit import check_split
from aam.network.training.runs import choose_length, read_pretrained_encoder
from aam.network.training.runtime import Runtime, check_resources
from aam.network.transformer_member import Transformer
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.plan import Session
from aam.pipeline.run_folder import RecordFact, no_record


@dataclass(frozen=True, kw_only=True)
class NetworkSession(Session):
    """Session of a run with a network; the runtime is made when the study has been read."""

    base: StoredNetwork | None
    make_runtime: functools.partial[Runtime]
    ranks: ExitStack

    @classmethod
    def start(
        cls, options: Train, labelled: LabelledStudy | None, policy: BackendPolicy | None
    ) -> NetworkSession:
        """Join the process group of the ranks, and replace `auto` in the options for this host."""
        options = automatic(options, functools.partial(training_run, labelled=labelled))
        with ExitStack() as ranks:
            group = process_group(options.scale, options.device, options.loop.batch_samples)
            communicator = ranks.enter_context(group)
            # Compared before `auto` is replaced, since nodes may differ in their number of cores.
            communicator.require_equal_options(values_of(options))
            options = check_resources(options)
            base = read_pretrained_encoder(options.pretrained_encoder)
            # Backends are probed with the attention heads of the encoder.
            sizes = base.config.shape if base else options.model
            return cls(
                options,
                choose_length(base, options.sample),
                communicator,
                gpu_names(),
                base=base,
                make_runtime=functools.partial(
                    Runtime.choose, options, sizes, policy, communicator
                ),
                ranks=ranks.pop_all(),
            )

    def __exit__(self, *error: Any) -> None:
        self.ranks.__exit__(*error)

    @functools.cached_property
    def runtime(self) -> Runtime:
        """Device, precision, attention backends and ranks."""
        return self.make_runtime()

    def check(self, study: LabelledStudy) -> Mapping[str, Any]:
        if len(study.splits) > 1:
            _check_folds(self.options.run)
        for split in study.splits:
            check_split(split, self.options.loop)
        return {"attention": self.runtime.attention}

    def networks(
        self, study: LabelledStudy, record_fact: RecordFact = no_record, counts_alone: bool = False
    ) -> Mapping[str, Member]:
        options = self.options
        if counts_alone:
            run, columns = options.run, options.covariates
            columns = dataclasses.replace(columns, categorical_columns=(), numeric_columns=())
            folder, resumed = run.output_dir / COUNTS_ALONE, run.resume_from and "auto"
            run = dataclasses.replace(run, output_dir=folder, resume_from=resumed)
            options = dataclasses.replace(options, covariates=columns, run=run)
            study = dataclasses.replace(study, covariates=None)
        network = Transformer(options, study, self.base, self.runtime, record_fact)
        return dict.fromkeys(network_names(options.members), network)

    def leave(self) -> bool:
        self.ranks.close()
        return self.group.ranks.is_main


def _check_folds(run: RunOptions) -> None:
    """Refuse to resume several folds from one checkpoint."""
    if isinstance(run.resume_from, Path) and not run.resume_from.is_dir():
        evidence = f"--resume-from '{run.resume_from}' is one checkpoint"
        remedy = "name the run folder that contains the folds"
        raise UsageError("A cross-validation resumes from its run folder", evidence, remedy)
