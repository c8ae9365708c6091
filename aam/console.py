"""Messages and progress bars on standard error.

Standard output is for results, so that a command can be piped. Called from Python, messages are
log records and warnings (`as_library`).
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from aam.contract.errors import printable
from aam.number_format import significant

T = TypeVar("T")

LINE_EVERY = 60.0
"""Seconds between two lines of progress without a terminal."""

_LONGEST_LINE = 5000
"""Characters of a line of a message; the middle of a longer one is left out."""


console = Console(stderr=True, highlight=False)

_library: ContextVar[Callable[[str], str] | None] = ContextVar("library", default=None)
"""How a message of a computation that was called from Python is rendered."""

_lock, _callers, _quiet = threading.Lock(), 0, False
"""Computations that run for Python code, in any thread, and `console.quiet` before the first."""


@dataclass(frozen=True)
class Message:
    """A message or a warning, without control characters."""

    text: str
    is_warning: bool


_collected: ContextVar[list[Message] | None] = ContextVar("collected", default=None)


class AamWarning(UserWarning):
    """Warning of a computation that was called from Python."""


@contextmanager
def as_library(rendered: Callable[[str], str] = str) -> Iterator[None]:
    """Send messages to the logger `aam` and warnings to `warnings`, and show no progress bar.

    Args:
        rendered: function that returns the text of a message for this caller.
    """
    global _callers, _quiet
    token = _library.set(rendered)
    with _lock:
        if not _callers:
            _quiet, console.quiet = console.quiet, True
        _callers += 1
    try:
        yield
    finally:
        _library.reset(token)
        with _lock:
            _callers -= 1
            if not _callers:
                console.quiet = _quiet


@contextmanager
def collected() -> Iterator[list[Message]]:
    """Collect the messages and warnings of the block in a list instead of printing them."""
    messages: list[Message] = []
    token = _collected.set(messages)
    try:
        yield messages
    finally:
        _collected.reset(token)


def interactive() -> bool:
    """Return whether progress bars are shown."""
    return console.is_terminal and not console.quiet


def _lines(message: str) -> str:
    """Return a message without control characters, which names of an input may have."""
    return "\n".join(printable(line, _LONGEST_LINE) for line in message.split("\n"))


def info(message: str) -> None:
    """Print a message."""
    message = _lines(message)
    if (messages := _collected.get()) is not None:
        messages.append(Message(message, is_warning=False))
        return
    if (rendered := _library.get()) is not None:
        logging.getLogger("aam").info(rendered(message))
    _print(message)


def warn(message: str) -> None:
    """Print a warning."""
    message = _lines(message)
    if (messages := _collected.get()) is not None:
        messages.append(Message(message, is_warning=True))
        return
    if (rendered := _library.get()) is not None:
        warnings.warn(rendered(message), AamWarning, stacklevel=2)
    _print(f"warning: {message}", "yellow")


def print_result(message: str, is_warning: bool = False) -> None:
    """Print a result on standard output, and as a message where that leads elsewhere."""
    if _library.get() is not None or _collected.get() is not None:
        (warn if is_warning else info)(message)
        return
    if not _same_stream(sys.stdout, sys.stderr):
        (warn if is_warning else info)(message)
    print(_lines(message), flush=True)


def _same_stream(first: TextIO, second: TextIO) -> bool:
    """Return whether two streams lead to one terminal, file or pipe."""
    try:
        return os.path.sameopenfile(first.fileno(), second.fileno())
    except (OSError, ValueError):  # closed, or in memory
        return False


def _print(message: str, style: str | None = None) -> None:
    """Print a message: in lines of whole words on a terminal, as it is elsewhere."""
    if console.is_terminal:
        width = max(console.width - 1, 20)
        lines = (
            textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
            for line in message.split("\n")
        )
        message = "\n".join(itertools.chain.from_iterable(lines))
    # A path or a command that is longer than a line stays whole, so that it can be copied.
    console.print(message, style=style, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Format a time span in its two largest units.

    >>> duration(42), duration(754), duration(12000), duration(200000)
    ('42 s', '12 min 34 s', '3 h 20 min', '2 d 7 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    largest = next((k for k, (number, _) in enumerate(parts) if number), 3)
    shown = parts[largest : largest + 2]
    return " ".join(f"{number} {unit}" for number, unit in shown if number) or "0 s"


def track(
    items: Iterable[T], what: str, total: int, unit: str, line_every: float = LINE_EVERY
) -> Iterator[T]:
    """Yield `items` and show a progress bar with rate and remaining time.

    Without a terminal, print a line with the same figures every `line_every` seconds.
    """
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        # Numbers and times take up to 45 columns; the bar what is left beside a short title.
        BarColumn(bar_width=min(40, max(4, console.width - len(what) - 48))),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not interactive()) as progress:
        task = progress.add_task(what, total=total, rate="")
        began = line = time.monotonic()
        for number, item in enumerate(items, start=1):
            yield item
            now = time.monotonic()
            if not console.is_terminal and now - line >= line_every:
                line, pace = now, (now - began) / number
                left = duration(pace * (total - number))
                info(f"{what}: {number}/{total}, {significant(1 / pace)} {unit}/s, {left} left")
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            rate = f"{speed:.1f} {unit}/s" if speed else ""
            progress.update(task, advance=1, rate=rate)
