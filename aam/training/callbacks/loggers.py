"""Loggers of training runs (--logger): TensorBoard and experiment trackers, by Lightning.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.contract.errors import Unavailable
from aam.contract.options import specs
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.training import LoggerName
from aam.contract.run_record import value_of

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

PROJECT = "aam"
"""Experiment (MLflow) or project (Weights & Biases) of the runs."""


@dataclass(frozen=True)
class LoggerType:
    """A type of logger.

    Attributes:
        module: that it needs, and the name of its package.
        make: from the folder of its files and the name of the run to the logger.
        tracker: whether it also logs the scores of members that Lightning does not train.
    """

    module: str
    make: Callable[[Path, str], Logger]
    tracker: bool = True


def _tensorboard(folder: Path, name: str) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(folder, name="tensorboard", version="")


def _mlflow(folder: Path, name: str) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute()}/mlflow.db"
    return MLFlowLogger(PROJECT, run_name=name, tracking_uri=uri)


def _wandb(folder: Path, name: str) -> Logger:
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    wandb.finish()  # Lightning would continue the run of the fold before
    return WandbLogger(name=name, save_dir=folder, project=PROJECT)


LOGGERS: dict[LoggerName, LoggerType] = {
    "tensorboard": LoggerType("tensorboard", _tensorboard, tracker=False),
    "mlflow": LoggerType("mlflow", _mlflow),
    "wandb": LoggerType("wandb", _wandb),
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


def make_loggers(options: Pretrain | Train, folder: Path, name: str) -> list[Logger]:
    """Make the loggers of a fit, and log the options of the run.

    Args:
        options: of the command.
        folder: of the fit, for files; the files of a tracker are in the run folder.
        name: of the run in a tracker.
    """
    types = [LOGGERS[logger] for logger in options.run.logger]
    made = [of.make(options.run.output_dir if of.tracker else folder, name) for of in types]
    for logger in made:
        logger.log_hyperparams(_values(options))
    return made


def log_scores(options: Train, scores: Mapping[str, float]) -> None:
    """Log the final scores of a run with members other than the transformer, by the trackers."""
    run = options.run
    for name in run.logger:
        if LOGGERS[name].tracker:
            logger = LOGGERS[name].make(run.output_dir, run.output_dir.name)
            logger.log_hyperparams(_values(options))
            logger.log_metrics(dict(scores), step=0)
            logger.finalize("success")


def _values(options: Pretrain | Train) -> dict[str, Any]:
    """Return the values of the options, by field."""
    given = {spec.field: value_of(options, spec.field) for spec in specs(type(options))}
    return {
        name: value if isinstance(value, (bool, int, float)) else str(value)
        for name, value in given.items()
        if value is not None
    }
