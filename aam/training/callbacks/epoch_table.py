"""Table of epochs: callback that writes `metrics.csv`, and its reader."""

from __future__ import annotations

import csv
import io
import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from aam.console import console, duration, info
from aam.contract.files import write_text
from aam.data.io.text import numbers, read_rows
from aam.training.callbacks.progress import Progress
from aam.training.lightning_module import TrainingModule


class EpochTable(Callback):
    """Writer of `metrics.csv`, one row per epoch; prints each row where no progress bar is shown.

    The class name is part of the checkpoint format.
    """

    FIRST = ("epoch", "step", "seconds", "lr")

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path, self.progress = path, progress
        self.rows: list[dict[str, float]] = []
        self._began = time.monotonic()

    @property
    def latest(self) -> dict[str, float]:
        """Metrics of the last epoch."""
        return {n: v for n, v in self.rows[-1].items() if n not in self.FIRST} if self.rows else {}

    @property
    def epochs(self) -> int:
        """Number of epochs that have ended, before and after a resumption."""
        return int(self.rows[-1]["epoch"]) + 1 if self.rows else 0

    def best_epoch(self, metric: str, mode: str) -> int | None:
        """Return the first epoch, from 1, with the best ("min" or "max") value of a metric."""
        rows = [row for row in self.rows if math.isfinite(row.get(metric, math.nan))]
        if not rows:
            return None
        best = (max if mode == "max" else min)(rows, key=lambda row: row[metric])
        return int(best["epoch"]) + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the rows and the duration of the run in seconds."""
        return {"rows": self.rows, "seconds": time.monotonic() - self._began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows and the duration of a resumed run."""
        self.rows = state_dict["rows"]
        self._began = time.monotonic() - state_dict["seconds"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the rows of earlier epochs from the file if the checkpoint has none."""
        if trainer.global_step > 0 and not self.rows and self.path.exists():
            rows = read_metrics(self.path)
            self.rows = [row for row in rows if row["epoch"] < trainer.current_epoch]
            self._began = time.monotonic() - (self.rows[-1]["seconds"] if self.rows else 0.0)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the row of the epoch and write the file."""
        assert isinstance(pl_module, TrainingModule)
        means = {f"train_{name}": part.mean.float() for name, part in pl_module.train_sums.items()}
        pl_module.log_dict(means)
        row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "seconds": time.monotonic() - self._began,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **{n: float(v) for n, v in (trainer.callback_metrics | means).items()},
        }
        self.rows.append(row)
        names = [*self.FIRST, *sorted({n for r in self.rows for n in r} - set(self.FIRST))]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        if trainer.is_global_zero:
            write_text(self.path, text.getvalue())
        if not console.is_terminal:
            info(self._line(row, trainer))

    def _line(self, row: dict[str, float], trainer: pl.Trainer) -> str:
        columns = ("train_loss", "val_loss", "val_r2", "val_mae", "val_accuracy")
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in columns if name in row)
        left = self.progress.seconds_left
        times = duration(row["seconds"]) + (f", {duration(left)} left" if left is not None else "")
        return f"epoch {int(row['epoch']) + 1}/{trainer.max_epochs}  {figures}  ({times})"


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the rows of metrics.csv; a cell without a value has no entry.

    Raises:
        DataError: it has no such columns, or a line whose cells are not numbers.
    """
    what = "metrics file"
    header, rows = read_rows(path, what, EpochTable.FIRST, delimiter=",")
    for name in header:
        numbers(rows, name, path, what, optional=name not in EpochTable.FIRST)
    return [{name: _number(cell) for name, cell in row.items() if cell} for row in rows]


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)
