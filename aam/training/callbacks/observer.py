"""Observer of the training loop: it writes files or prints, and steers nothing.

A logger, a progress bar or a tracker implements the events that it needs. The loop calls them in
this order:

    begin
        epoch_begins
            batch_begins                    for each batch
                gradients_ready, step_ends  only with the last batch of an optimizer step
            batch_ends
        validation_begins, validation_ends  with validation samples
        epoch_ends
    end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # members without a network log their scores too, and need no PyTorch
    from torch import Tensor

    from aam.data.batches import Batch
    from aam.training.run_files.resume import Position, Row
    from aam.training.training_module import TrainingModule


class Observer:
    """Events of the training loop; each does nothing unless a class that inherits defines it."""

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Training begins, or goes on at a position."""

    def epoch_begins(self) -> None:
        """An epoch begins, or the rest of one."""

    def batch_begins(self, batch: Batch) -> None:
        """A batch is on the device."""

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        """A batch is done, and after the last one of a step the optimizer step too."""

    def gradients_ready(self) -> None:
        """The gradients of an optimizer step are complete and finite, and not yet clipped."""

    def step_ends(self, position: Position) -> None:
        """An optimizer step is done."""

    def validation_begins(self) -> None:
        """The validation of an epoch begins."""

    def validation_ends(self) -> None:
        """The validation of an epoch ends."""

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """An epoch and its validation are complete; the last row of the epochs is its own."""

    def end(self, complete: bool) -> None:
        """Training ends; it is not complete after an error or a stop request."""
