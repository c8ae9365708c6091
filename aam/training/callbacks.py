"""Callbacks of the loop: checkpoints within epochs, metrics.csv, progress bars."""

from __future__ import annotations

import csv
import io
import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import CustomProgress, CustomTimeColumn
from rich.progress import Task
from rich.text import Text

from aam.console import console, duration, say
from aam.contract.files import atomic_write
from aam.training.lightning_module import TrainingModule
from aam.training.progress import Progress


class WithinEpochs(ModelCheckpoint):
    """Saves every so many steps, but not after the last step of an epoch.

    A run that goes on from there would leave out what judges the epoch; it is saved after that.
    """

    _step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember where the run begins."""
        super().on_train_start(trainer, pl_module)
        self._step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save, unless the epoch ends or gradients are still being added up."""
        moved, self._step = trainer.global_step != self._step, trainer.global_step
        if moved and not trainer.is_last_batch:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)


class EpochTable(Callback):
    """Writes metrics.csv, a row an epoch, and says each row where no progress bar is shown."""

    FIRST = ("epoch", "step", "seconds", "lr")

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path, self.progress = path, progress
        self.rows: list[dict[str, float]] = []
        self._began = time.monotonic()

    @property
    def latest(self) -> dict[str, float]:
        """The metrics of the last epoch."""
        return {n: v for n, v in self.rows[-1].items() if n not in self.FIRST} if self.rows else {}

    @property
    def epochs(self) -> int:
        """Epochs that have ended, those before a resumption included."""
        return int(self.rows[-1]["epoch"]) + 1 if self.rows else 0

    def best_epoch(self, metric: str, mode: str) -> int | None:
        """Return the first epoch, from 1, with the best ("min" or "max") value of a metric."""
        rows = [row for row in self.rows if math.isfinite(row.get(metric, math.nan))]
        if not rows:
            return None
        best = (max if mode == "max" else min)(rows, key=lambda row: row[metric])
        return int(best["epoch"]) + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far and the seconds that the run has taken."""
        return {"rows": self.rows, "seconds": time.monotonic() - self._began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the rows of a run that is resumed."""
        self.rows = state_dict["rows"]
        self._began = time.monotonic() - state_dict["seconds"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the rows of earlier epochs from the file where the checkpoint is without them."""
        if trainer.global_step > 0 and not self.rows and self.path.exists():
            with self.path.open(newline="") as stream:
                rows = [{k: _number(v) for k, v in r.items() if v} for r in csv.DictReader(stream)]
            self.rows = [row for row in rows if row["epoch"] < trainer.current_epoch]
            self._began = time.monotonic() - (self.rows[-1]["seconds"] if self.rows else 0.0)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the epoch's row and write the file."""
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
            with atomic_write(self.path) as temporary:
                temporary.write_text(text.getvalue())
        if not console.is_terminal:
            say(self._line(row, trainer))

    def _line(self, row: dict[str, float], trainer: pl.Trainer) -> str:
        shown = ("train_loss", "val_loss", "val_r2", "val_mae", "val_accuracy")
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in shown if name in row)
        left = self.progress.seconds_left
        times = duration(row["seconds"]) + (f", {duration(left)} left" if left is not None else "")
        return f"epoch {int(row['epoch']) + 1}/{trainer.max_epochs}  {figures}  ({times})"


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


class _Times(CustomTimeColumn):
    """Time that has passed and time left; of the bar of the whole run as `Progress` measures it."""

    def render(self, task: Task) -> Text:
        """Return the two times."""
        run: Progress | None = task.fields.get("run")
        if run is None or run.seconds_left is None:
            return super().render(task)
        spans = (timedelta(seconds=int(s)) for s in (task.elapsed or 0, run.seconds_left))
        return Text(" • ".join(map(str, spans)), style=self.style)


class RunProgressBar(RichProgressBar):
    """Lightning's bar of the batches of an epoch, under one of the epochs of the run."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(leave=False)
        self.run = progress
        self._epochs: Any = None

    def configure_columns(self, trainer: pl.Trainer) -> list[Any]:
        """Take the time left of the run from its progress: Rich forgets what is 30 s old."""
        columns = super().configure_columns(trainer)
        return [_Times(c.style) if isinstance(c, CustomTimeColumn) else c for c in columns]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the bar of the epochs once."""
        super().on_train_epoch_start(trainer, pl_module)
        if isinstance(self.progress, CustomProgress) and self._epochs is None:
            self._epochs = self.progress.add_task(
                "[white]All epochs",
                total=trainer.max_epochs,
                completed=trainer.current_epoch,
                run=self.run,
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Advance the bar of the epochs."""
        super().on_train_epoch_end(trainer, pl_module)
        if self.progress is not None and self._epochs is not None:
            self.progress.update(self._epochs, advance=1, visible=True)
