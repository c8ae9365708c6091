"""Loggers of training runs (--logger): TensorBoard and experiment trackers.

A tracker keeps its files in the run folder unless its own environment variables (such as
MLFLOW_TRACKING_URI or WANDB_MODE) name another place. Those that are not installed are refused
before a run begins.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aam.contract.errors import Unavailable
from aam.contract.options import specs
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.training import LoggerName
from aam.contract.run_record import value_of
from aam.training.observers import Observer

if TYPE_CHECKING:
    from aam.training.checkpoints import Position, Row
    from aam.training.module import TrainingModule


PROJECT = "aam"
"""Experiment (MLflow) or project (Weights & Biases) of the runs."""

_MLFLOW_LENGTH = 250
"""Longest value of an option that every version of MLflow accepts."""

Values = Mapping[str, Any]
"""Values of the options, by field."""


class Logger(Protocol):
    """Run in a tracker, or its files; made with the values of the options."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics after an optimizer step."""

    def close(self, complete: bool) -> None:
        """End the run; it is not complete if it was stopped or failed."""


class _TensorBoard:
    def __init__(self, folder: Path, name: str, options: Values) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer: Any = SummaryWriter(folder / "tensorboard")
        parts: Any = hparams(dict(options), {})  # type: ignore[no-untyped-call]
        events: Any = self._writer.file_writer
        for part in parts:  # `add_hparams` would write a second file
            events.add_summary(part)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, complete: bool) -> None:
        self._writer.close()


class _MLflow:
    def __init__(self, folder: Path, name: str, options: Values) -> None:
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute()}/mlflow.db"
        self._client = MlflowClient(uri)
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in options.items():
            self._client.log_param(self._run, key, str(value)[:_MLFLOW_LENGTH])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "FAILED")


class _WeightsAndBiases:
    def __init__(self, folder: Path, name: str, options: Values) -> None:
        import wandb

        self._run = wandb.init(project=PROJECT, name=name, dir=folder, config=dict(options))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


@dataclass(frozen=True)
class LoggerType:
    """A type of logger.

    Attributes:
        module: module that it needs, which is also the name of its package.
        make: function from the folder of its files, the name of the run and the options to the
            logger.
        tracker: whether it also logs the scores of members that have no training loop.
    """

    module: str
    make: Callable[[Path, str, Values], Logger]
    tracker: bool = True


LOGGERS: dict[LoggerName, LoggerType] = {
    "tensorboard": LoggerType("tensorboard", _TensorBoard, tracker=False),
    "mlflow": LoggerType("mlflow", _MLflow),
    "wandb": LoggerType("wandb", _WeightsAndBiases),
}
"""Registry of --logger; the option lists the same names (`LoggerName`)."""


def require(options: Pretrain | Train) -> None:
    """Refuse loggers that are not installed.

    Raises:
        Unavailable: names the package.
    """
    for name in options.run.logger:
        module = LOGGERS[name].module
        if importlib.util.find_spec(module) is None:
            raise Unavailable(
                f"--logger {name} needs the package {module}",
                f"no module '{module}'",
                f"install it with `{shlex.quote(sys.executable)} -m pip install {module}`, or "
                "leave the option out",
            )


class LoggedMetrics(Observer):
    """Observer that logs the options and the metrics of each epoch of a fit, on the first rank.

    Args:
        options: options of the command.
        folder: folder of the fit, for files; the files of a tracker are in the run folder.
        name: name of the run in a tracker.
    """

    def __init__(self, options: Pretrain | Train, folder: Path, name: str) -> None:
        self.options, self.folder, self.name = options, folder, name
        self._loggers: list[Logger] = []

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Make the loggers, and log the options."""
        values, run = _values(self.options), self.options.run
        types = [LOGGERS[name] for name in run.logger]
        self._loggers = [
            of.make(run.output_dir if of.tracker else self.folder, self.name, values)
            for of in types
        ]

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """Log the metrics of the epoch."""
        step = int(rows[-1]["step"])
        metrics = {name: value for name, value in rows[-1].items() if name != "step"}
        for logger in self._loggers:
            logger.log(metrics, step)

    def end(self, complete: bool) -> None:
        """End the runs of the trackers."""
        for logger in self._loggers:
            logger.close(complete)


def log_scores(options: Train, scores: Mapping[str, float]) -> None:
    """Log the final scores of a run with members other than the transformer, by the trackers."""
    run = options.run
    for name in run.logger:
        if LOGGERS[name].tracker:
            logger = LOGGERS[name].make(run.output_dir, run.output_dir.name, _values(options))
            logger.log(scores, step=0)
            logger.close(complete=True)


def _values(options: Pretrain | Train) -> dict[str, Any]:
    """Return the values of the options, by field."""
    given = {spec.field: value_of(options, spec.field) for spec in specs(type(options))}
    return {
        name: value if isinstance(value, (bool, int, float)) else str(value)
        for name, value in given.items()
        if value is not None
    }
