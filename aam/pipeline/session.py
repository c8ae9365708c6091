"""Session of a run: the processes and the device on which its networks are trained.

Only the session of a run with a network has several ranks and a device, and imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aam.contract.options.commands.train import Train
from aam.members.member import Member
from aam.training.labelled_study import LabelledStudy
from aam.training.run_folder import ONE_PROCESS, RankGroup, RecordFact, no_record

if TYPE_CHECKING:
    from aam.numerics.backends import BackendPolicy


class Session:
    """Session of a run without a network, in one process.

    Attributes:
        options: options of the run, without values that are chosen automatically.
        group: the ranks.
        gpus: names of the GPUs that the run can use.
    """

    def __init__(
        self, options: Train, group: RankGroup = ONE_PROCESS, gpus: Sequence[str] = ()
    ) -> None:
        self.options, self.group, self.gpus = options, group, gpus

    @property
    def length(self) -> int | None:
        """Nucleotides to read of each sequence; None for all."""
        return sequence_length(self.options)

    def check(self, study: LabelledStudy) -> Mapping[str, Any]:
        """Check a study before the run folder is changed; return facts for the run record."""
        return {}

    def networks(
        self, study: LabelledStudy, record_fact: RecordFact = no_record
    ) -> dict[str, Member]:
        """Return the members that all ranks train."""
        return {}

    def networks_of_counts(self, study: LabelledStudy) -> dict[str, Member]:
        """Return the same members without metadata; they have a folder in the run folder."""
        return {}

    def leave(self) -> bool:
        """End the group of the ranks; return whether this is the first, which goes on alone."""
        return True


def sequence_length(options: Train) -> int | None:
    """Return the nucleotides to read of each sequence; None for all.

    Args:
        options: options of the run; a pretrained encoder limits the length.

    Raises:
        AamError: the pretrained encoder cannot be read.
    """
    if options.pretrained_encoder is not None:
        # PyTorch takes a CPU-second to import.
        from aam.training.pretrained import choose_length, read_pretrained_encoder

        return choose_length(read_pretrained_encoder(options.pretrained_encoder), options.sample)
    return None if options.sample.max_bp == "auto" else options.sample.max_bp


@contextmanager
def session(
    options: Train,
    labelled: LabelledStudy | None = None,
    policy: BackendPolicy | None = None,
) -> Iterator[Session]:
    """Start the session of a run, and end it with the block."""
    if not options.uses_network:
        yield Session(options)
        return
    # PyTorch and its distributed packages take 2 CPU-seconds to import.
    from aam.pipeline.network_session import network_session

    with network_session(options, labelled, policy) as found:
        yield found
