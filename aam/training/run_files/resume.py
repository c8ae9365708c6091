"""Resume state of a training loop, and where a resumed run gets it from.

The random numbers of a step follow from the seed, the epoch, the step and the rank, so the state of
no generator is stored. Weights are part of every checkpoint, beside this state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any

from torch import Tensor

from aam.contract import schema
from aam.contract.options.field import ZERO_OR_MORE
from aam.contract.schema import Mismatch

Count = Annotated[int, ZERO_OR_MORE]
Row = dict[str, float]
"""Row of metrics.csv, by column."""


@dataclass(frozen=True)
class Position:
    """Position of a training loop.

    Attributes:
        epoch: number of complete epochs, validation included.
        batch: batches of the current epoch whose optimizer step is done.
        step: optimizer steps since the start of the run.
    """

    epoch: Count
    batch: Count
    step: Count


_PLAIN = {
    "position": Position,
    "sums": dict[str, tuple[Real, Real]],  # not finite where fp16 overflowed
    "best": Real | None,
    "waited": Count,
    "rows": list[dict[str, Real]],
    "seconds": float,
    "optimizer": {
        "state": dict[str, dict[str, Tensor]],
        "param_groups": [{"params": list[str]}],
    },
    "schedule": dict[str, Any],
    "scaler": dict[str, Real],
}
"""Entries of a resume state. The optimizer, its schedule and the loss scaler are compared with new
ones when a run is resumed."""


@dataclass(frozen=True)
class ResumeState:
    """State of a training loop, beside the weights.

    Attributes:
        position: epochs, batches and optimizer steps done.
        sums: total and number of each training metric in the current epoch.
        best: best value of the metric that chooses the epoch; None before the first validation.
        waited: number of epochs since the metric improved.
        rows: rows of metrics.csv.
        seconds: duration of the run until now.
        optimizer: state by parameter name, whole tensors.
        schedule: state of the learning-rate schedule.
        scaler: state of the loss scaler of fp16; empty in other precisions.
    """

    position: Position
    sums: Mapping[str, tuple[float, float]]
    best: float | None
    waited: int
    rows: list[Row]
    seconds: float
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    scaler: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return the state as dictionaries, lists, numbers and tensors."""
        return vars(self) | {"position": dataclasses.asdict(self.position)}


def parse(stored: Any) -> ResumeState:
    """Validate the resume state of a checkpoint.

    Raises:
        Mismatch: an entry is missing, of another type or out of range.
    """
    found = schema.parse(_PLAIN, stored, "resume")
    if any(not {"epoch", "step", "seconds", "lr"} <= row.keys() for row in found["rows"]):
        raise Mismatch("resume.rows has a row without epoch, step, seconds or lr")
    return ResumeState(**{name: found[name] for name in _PLAIN})
