"""Session of a run: its options for this host, its ranks and its networks.

Estimators (kernel, forest) are fitted in one process, without PyTorch. A run with a network has
several ranks, a device, a precision and an attention backend: see `network_session`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aam.contract.options.commands.train import Train
from aam.environment import ONE_PROCESS, RankGroup
from aam.members.member import Member
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.run_folder import RecordFact, no_record


@dataclass(frozen=True)
class Session:
    """Session of a run, a context manager; without a network.

    Attributes:
        options: options of the run, without values that are chosen automatically.
        length: nucleotides to read of each sequence; None for all.
        group: the ranks.
        gpus: names of the GPUs that the run can use.
    """

    options: Train
    length: int | None
    group: RankGroup = ONE_PROCESS
    gpus: Sequence[str] = ()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: Any) -> None:
        """End the group of the ranks."""

    def check(self, study: LabelledStudy) -> Mapping[str, Any]:
        """Check a study before the run folder is changed; return facts for the run record."""
        return {}

    def networks(
        self,
        study: LabelledStudy,
        record_fact: RecordFact = no_record,
        counts_alone: bool = False,
    ) -> Mapping[str, Member]:
        """Return the members that all ranks train, by name; `counts_alone` without metadata.

        Networks of the counts alone have a folder in the run folder.
        """
        return {}

    def leave(self) -> bool:
        """End the group of the ranks; return whether this is the first, which goes on alone."""
        return True
