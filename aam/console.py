"""What a person sees while a command works: messages and progress bars, on standard error.

Standard output stays free for results, so that a command can be piped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")

console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """Print one line of news."""
    console.print(message, markup=False)


def warn(message: str) -> None:
    """Print one line that deserves attention."""
    console.print(f"warning: {message}", style="yellow", markup=False)


def track(items: Iterable[T], what: str, total: int, unit: str) -> Iterator[T]:
    """Yield `items` behind a progress bar with rate and time left; silent where no terminal is."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, rate="")
        for item in items:
            yield item
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            rate = f"{speed:.1f} {unit}/s" if speed else ""
            progress.update(task, advance=1, rate=rate)
