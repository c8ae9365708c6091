"""Checkpoint files: the network's configuration and weights, and the state of the training loop.

A checkpoint is a file of `aam.network.tensor_file`. The random numbers of a step follow from the
seed, the epoch, the step and the rank, so no state of a random number generator is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from torch import Tensor

from aam.contract import records
from aam.contract.errors import DataError
from aam.contract.records import Count, Mismatch
from aam.network import tensor_file
from aam.network.inference.stored_networks import ModelConfig, StoredNetwork

Row = dict[str, int | float]  # row of metrics.csv, by column
FIRST_COLUMNS = ("epoch", "step", "seconds", "lr")  # columns of metrics.csv that every run has


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training loop."""

    epoch: Count  # number of complete epochs, including their validation
    batch: Count  # batches of the current epoch whose optimizer step is done
    step: Count  # optimizer steps since the start of the run


class ParameterGroup(TypedDict):
    """Names of the parameters of a group of the optimizer."""

    params: list[str]


class OptimizerState(TypedDict):
    """State of AdamW by parameter name, in whole tensors; learning rates follow from the step."""

    state: dict[str, dict[str, Tensor]]
    param_groups: list[ParameterGroup]


@dataclass(frozen=True)
class ResumeState:
    """Resume state: the state of a training loop besides the weights."""

    progress: TrainingProgress  # epochs, batches and optimizer steps done
    # total and number of each training metric in the current epoch; not finite if fp16 overflowed
    sums: dict[str, tuple[float, float]]
    # best value of the metric that chooses the epoch; None before the first validation
    best: float | None
    epochs_without_improvement: Count  # number of epochs since the best one
    history: list[Row]  # rows of metrics.csv
    seconds: float  # duration of the run until now
    optimizer: OptimizerState  # state of the optimizer
    scaler: dict[str, int | float]  # state of the loss scaler of fp16; empty in other precisions


START = ResumeState(
    TrainingProgress(0, 0, 0), {}, None, 0, [], 0.0, OptimizerState(state={}, param_groups=[]), {}
)
"""Resume state of a run before its first step."""


@dataclass(frozen=True)
class Checkpoint(StoredNetwork):
    """Checkpoint: a stored network with the state from which its training can be resumed."""

    resume: ResumeState | None

    @property
    def network(self) -> StoredNetwork:
        """The stored network alone, without the state of the optimizer."""
        return StoredNetwork(self.config, self.weights)


def write(
    path: Path, config: ModelConfig, weights: Mapping[str, Tensor], state: ResumeState
) -> None:
    """Write the weights of a training module and its resume state atomically.

    If the process is killed while it writes, the previous checkpoint remains.
    """
    # `asdict` would copy every tensor of the optimizer's state.
    plain = vars(state) | {"progress": asdict(state.progress)}
    tensor_file.write(path, {"aam": config.to_plain(), "state_dict": weights, "resume": plain})


def read(path: Path) -> Checkpoint:
    """Read a checkpoint on the CPU and validate the types of all entries before using any."""
    content = tensor_file.read(path)
    if "aam" not in content:
        raise DataError(
            "Not a checkpoint of this program", f"'{path}'", "give a checkpoint that `aam` wrote"
        )
    try:
        config = ModelConfig.from_plain(content["aam"], f"'{path}'")
        if missing := {"state_dict", "resume"} - content.keys():
            raise Mismatch(f"{min(missing)} is missing")
        weights = records.convert(content["state_dict"], dict[str, Tensor], "state_dict")
        # In a training module the names of the network's weights have a prefix.
        weights = {name.removeprefix("network."): weight for name, weight in weights.items()}
        # The file may be damaged, so this comes before a network is built from the configuration.
        StoredNetwork(config, weights).check()
        resume = content["resume"]
        if resume is not None:
            resume = records.convert(resume, ResumeState, "resume")
            if any(not set(FIRST_COLUMNS) <= row.keys() for row in resume.history):
                raise Mismatch("resume.history has a row without epoch, step, seconds or lr")
    except Mismatch as error:
        raise DataError(
            "The checkpoint has invalid content", f"'{path}', {error}", "choose another checkpoint"
        ) from error
    return Checkpoint(config, weights, resume)


def unusable(path: Path, reason: object) -> DataError:
    """Return the error for a checkpoint whose resume state does not fit a run."""
    return DataError(
        "The checkpoint holds no training state that fits this run",
        f"'{path}', {reason}",
        "resume from another checkpoint, or start a new run without --resume-from",
    )
