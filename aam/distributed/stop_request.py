"""Stop on request: a checkpoint after the same optimizer step on all ranks.

A stop request (`aam.distributed.signals`) may reach one rank, some or all, at different moments, so
the ranks reduce a flag after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aam.contract import stop_file
from aam.contract.errors import Interrupted
from aam.distributed.communicator import Communicator
from aam.distributed.signals import StopRequests


@dataclass(frozen=True)
class StopOnRequest:
    """Stop requests of all ranks.

    Attributes:
        requests: stop requests that this rank receives.
        communicator: communicator of the ranks.
        checkpoint: file that a stopped run leaves.
    """

    requests: StopRequests
    communicator: Communicator
    checkpoint: Path

    def requested(self) -> bool:
        """Return whether any rank has a stop request; all ranks call this."""
        return self.communicator.any_rank(self.requests.pending)

    def interrupted(self, step: int) -> Interrupted:
        """Return the error of a run that stops after an optimizer step, with its checkpoint."""
        return Interrupted(
            f"Stopped at step {step}{self.requests.by_signal}",
            f"'{self.checkpoint}' is written",
            "go on with --resume-from auto",
        )

    def count_steps(self, steps: int) -> None:
        """Add the optimizer steps of this process to the file of the request; folds add theirs."""
        if self.requests.file and self.communicator.ranks.is_main:
            stop_file.count_steps(self.requests.file, steps)
