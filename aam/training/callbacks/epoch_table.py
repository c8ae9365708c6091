"""Table of epochs: observer that writes `metrics.csv` and prints a line for each epoch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from aam.console import console, duration, info
from aam.contract.files import write_text
from aam.training.callbacks.observer import Observer
from aam.training.callbacks.progress import Progress
from aam.training.run_files.resume import Row


class EpochTable(Observer):
    """Writer of `metrics.csv`, one row per epoch; prints each row where no progress bar is shown.

    Only the first rank has one.
    """

    FIRST = ("epoch", "step", "seconds", "lr")

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path, self.progress = path, progress

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """Write the file with the row of the epoch."""
        names = [*self.FIRST, *sorted({n for row in rows for n in row} - set(self.FIRST))]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path, text.getvalue())
        if not console.is_terminal:
            info(self._line(rows[-1]))

    def _line(self, row: Row) -> str:
        columns = ("train_loss", "val_loss", "val_r2", "val_mae", "val_accuracy")
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in columns if name in row)
        left = self.progress.seconds_left
        times = duration(row["seconds"]) + (f", {duration(left)} left" if left is not None else "")
        return f"epoch {int(row['epoch']) + 1}/{self.progress.length.epochs}  {figures}  ({times})"
