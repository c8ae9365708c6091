"""Loggers of training runs (--logger): TensorBoard and experiment trackers.

A tracker keeps its files in the run folder unless its own environment variables (such as
MLFLOW_TRACKING_URI or WANDB_MODE) name another location. A tracker that is not installed is refused
before a run begins. A resumed run continues its run in the tracker, whose id is stored beside the
checkpoints.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from aam import wings
from aam.contract.errors import AamError, Unavailable
from aam.contract.files import write_json
from aam.contract.options import flat
from aam.contract.options.groups import LoggerName, RunOptions
from aam.contract.records import read_json

PROJECT = "aam"  # experiment (MLflow) or project (Weights & Biases) of the runs
_MLFLOW_LENGTH = 250  # longest value of an option that every version of MLflow accepts
Status = Literal["complete", "stopped", "failed"]  # how a run ends; one that is stopped may go on


class Logger(Protocol):
    """Run in a tracker, or its files, with the options by field; it goes on in the run `id`."""

    module: ClassVar[str]  # module that the tracker needs; also its package's name
    tracker: ClassVar[bool]  # whether it also logs the scores of members without a training loop
    id: str = ""  # of the run in the tracker

    def __init__(
        self, folder: Path, name: str, options: Mapping[str, Any], id: str | None, step: int
    ) -> None: ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics after an optimizer step."""

    def close(self, status: Status) -> None:
        """End the run."""


class _TensorBoard(Logger):
    module, tracker = "tensorboard", False

    def __init__(
        self, folder: Path, name: str, options: Mapping[str, Any], id: str | None, step: int
    ) -> None:
        SummaryWriter, hparams = wings.network().tensorboard_writer()
        # The steps after the checkpoint are made, and logged, again.
        self._writer: Any = SummaryWriter(
            folder / "tensorboard", purge_step=step + 1 if step else None
        )
        if not step:
            summaries: Any = hparams(dict(options), {})
            events: Any = self._writer.file_writer
            for event in summaries:  # `add_hparams` would write a second file
                events.add_summary(event)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: Status) -> None:
        self._writer.close()


class _MLflow(Logger):
    module, tracker = "mlflow", True

    def __init__(
        self, folder: Path, name: str, options: Mapping[str, Any], id: str | None, step: int
    ) -> None:
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute()}/mlflow.db"
        self._client = MlflowClient(uri)
        if id is not None:
            self.id = id
            self._client.update_run(id, "RUNNING")
            return
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        self.id = self._client.create_run(number, run_name=name).info.run_id
        for key, value in options.items():
            self._client.log_param(self.id, key, str(value)[:_MLFLOW_LENGTH])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self.id, name, value, step=step)

    def close(self, status: Status) -> None:
        names = {"complete": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self.id, names[status])


class _WeightsAndBiases(Logger):
    module, tracker = "wandb", True

    def __init__(
        self, folder: Path, name: str, options: Mapping[str, Any], id: str | None, step: int
    ) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT, name=name, dir=folder, config=dict(options), id=id, resume="allow"
        )
        self.id = self._run.id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, status: Status) -> None:
        if status == "stopped":
            self._run.mark_preempting()  # not crashed: it goes on
        self._run.finish(exit_code=0 if status == "complete" else 1)


LOGGERS: dict[LoggerName, type[Logger]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WeightsAndBiases,
}
"""Registry of --logger; the option lists the same names (`LoggerName`)."""


def require(names: Sequence[LoggerName], in_training_loop: bool) -> None:
    """Refuse loggers that are not installed; without a training loop trackers alone are used."""
    for name in names:
        module = LOGGERS[name].module
        used = in_training_loop or LOGGERS[name].tracker
        if used and importlib.util.find_spec(module) is None:
            raise Unavailable(
                f"--logger {name} needs the package {module}",
                f"no module '{module}'",
                f"install it with `{shlex.quote(sys.executable)} -m pip install {module}`, or "
                "leave the option out",
            )


def open_loggers(
    run: RunOptions, options: Mapping[str, Any], folder: Path, name: str, step: int
) -> list[Logger]:
    """Open the loggers of a fit; after `step` optimizer steps they go on in their runs."""
    # Beside the checkpoints: a folder that is replaced loses both.
    file, ids = folder / "checkpoints" / "trackers.json", dict[str, str]()
    if step and file.exists():
        try:
            ids = read_json(file, dict[str, str], "file of trackers")
        except AamError:  # damaged: new runs in the trackers rather than no training
            ids = {}
    values, loggers = _values(options), dict[str, Logger]()
    for logger in run.logger:
        log_folder = run.output_dir if LOGGERS[logger].tracker else folder
        loggers[logger] = LOGGERS[logger](log_folder, name, values, ids.get(logger), step)
    if ids := {logger: opened.id for logger, opened in loggers.items() if opened.id}:
        write_json(file, ids)
    return list(loggers.values())


def log_scores(
    names: Sequence[LoggerName],
    folder: Path,
    options: Mapping[str, Any],
    scores: Mapping[str, float],
) -> None:
    """Log the final scores of a run with members other than the transformer, by the trackers."""
    for name in names:
        if LOGGERS[name].tracker:
            logger = LOGGERS[name](folder, folder.name, _values(options), None, 0)
            logger.log(scores, step=0)
            logger.close("complete")


def _values(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (bool, int, float)) else str(value)
        for name, value in flat(options).items()
        if value is not None
    }
