"""What happens around the loop: exact resumption, metrics.csv, and news for a person."""

from __future__ import annotations

import csv
import io
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import CustomProgress, CustomTimeColumn
from rich.progress import Task
from rich.text import Text

from aam.console import console, duration, say
from aam.files import written_aside
from aam.learn.checkpoints import attach
from aam.learn.loaders import EpochSampler
from aam.learn.progress import Progress
from aam.learn.recipe import Recipe

_DROPOUT = 5
"""Second word of the seed of dropout (`aam.study.batches` and `aam.learn.loaders` have others)."""


class ExactResume(Callback):
    """Stores what Lightning does not, the recipe and the next batch, and seeds every step.

    The dropout of a step depends on the seed, the epoch, the step and the rank alone, so there is
    no state of generators to carry over, on however many ranks a run goes on.
    """

    def __init__(self, recipe: Recipe, sampler: EpochSampler, rank: int = 0) -> None:
        self.recipe, self.sampler, self.rank = recipe, sampler, rank

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the recipe."""
        attach(checkpoint, self.recipe)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set the sampler to the next batch."""
        loop = checkpoint["loops"]["fit_loop"]
        done = loop["epoch_loop.batch_progress"]["current"]["processed"]
        epoch = loop["epoch_progress"]["current"]["processed"]
        if done < self.sampler.steps:
            self.sampler.resume(epoch, done)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed the generators of all devices for this step."""
        words = [self.recipe.plan.seed, _DROPOUT, trainer.current_epoch, batch_idx, self.rank]
        seed = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed) >> 1)


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

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the rows of earlier epochs when a run is resumed."""
        if trainer.global_step > 0 and self.path.exists():
            with self.path.open(newline="") as stream:
                rows = [{k: _number(v) for k, v in r.items() if v} for r in csv.DictReader(stream)]
            self.rows = rows
        self._began = time.monotonic() - (self.rows[-1]["seconds"] if self.rows else 0.0)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drop rows of epochs that will be done again."""
        self.rows = [row for row in self.rows if row["epoch"] < trainer.current_epoch]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the epoch's row and write the file."""
        row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "seconds": time.monotonic() - self._began,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **{name: float(value) for name, value in trainer.callback_metrics.items()},
        }
        self.rows.append(row)
        names = [*self.FIRST, *sorted({n for r in self.rows for n in r} - set(self.FIRST))]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        if trainer.is_global_zero:
            with written_aside(self.path) as aside:
                aside.write_text(text.getvalue())
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


class TwoBars(RichProgressBar):
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
