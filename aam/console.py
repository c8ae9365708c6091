"""Messages and progress bars on standard error.

Standard output is for results, so that a command can be piped. Called from Python, messages are
log records and warnings, and progress is one line (`as_library`).
"""

from __future__ import annotations

import contextvars
import html
import itertools
import logging
import multiprocessing
import os
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from aam.contract.errors import AamError, printable
from aam.number_format import significant

T = TypeVar("T")

FIRST_LINE, LINE_EVERY = 20.0, 60.0
"""Seconds to the first line of progress, and between two, without a terminal."""

SHOWN_AFTER, SHOWN_EVERY = 2.0, 0.5
"""Seconds of a call from Python to its line of progress, and between its updates in a notebook."""

_LONGEST_LINE = 5000
"""Characters of a line of a message; the middle of a longer one is left out."""


console = Console(stderr=True, highlight=False)

_library: ContextVar[Callable[[str], str] | None] = ContextVar("library", default=None)
"""How a message of a computation that was called from Python is rendered."""

_lock, _callers, _quiet = threading.Lock(), 0, False
"""Computations that run for Python code, in any thread, and `console.quiet` before the first."""

_line: ContextVar[_Line | None] = ContextVar("line", default=None)
"""Progress of the computation that was called from Python."""

_cell_line: tuple[int, Any] = (0, None)
"""Number of the notebook cell that has a line of progress, and the handle that changes it."""


@dataclass(frozen=True)
class Message:
    """A message or a warning, without control characters."""

    text: str
    is_warning: bool


_collected: ContextVar[list[Message] | None] = ContextVar("collected", default=None)


class AamWarning(UserWarning):
    """Warning of a computation that was called from Python."""


@dataclass(frozen=True)
class _Step:
    """Step of a computation: items done and in all, and what is known of them."""

    what: str
    completed: int
    total: int
    figures: str = ""


_NO_STEP = _Step("", 0, 0)


class _Line:
    """Line of progress of a call from Python, which shows its current step.

    On a terminal and in a notebook it appears after `SHOWN_AFTER`: on a terminal it vanishes at the
    end, in a notebook a cell has one, of its last call. Elsewhere lines are printed, after
    `FIRST_LINE` and every `LINE_EVERY`.
    """

    def __init__(self, title: str) -> None:
        self.title, self.step, self.began = title, _NO_STEP, time.monotonic()
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._done = threading.Event()
        # In the context of the call, by which a kernel finds the cell of an output.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._show,), name="line", daemon=True)
        self._thread.start()

    def _text(self) -> tuple[str, str]:
        """Return what stands before and after the bar."""
        step, elapsed = self.step, duration(time.monotonic() - self.began)
        if not step.total:
            return self.title, f"({elapsed})"
        figures = f"{step.completed}/{step.total} {step.figures}".strip()
        return f"{self.title}: {step.what}", f"{figures} ({elapsed})"

    def end(self, status: str) -> None:
        """Remove the line, or show the status with the time."""
        self._done.set()
        self._thread.join()
        with suppress(OSError):  # a terminal that is gone costs no result
            if self._live is not None:
                self._live.stop()
        if self._console.is_jupyter and time.monotonic() - self.began >= SHOWN_AFTER:
            self._display(f"{self.title}: {status} {duration(time.monotonic() - self.began)}")

    def _show(self) -> None:
        if self._console.is_jupyter:
            if not self._done.wait(SHOWN_AFTER):
                self._display()
            while not self._done.wait(SHOWN_EVERY):
                self._display()
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            if not self._done.wait(SHOWN_AFTER):
                console = self._console
                self._live = Live(console=console, get_renderable=self._bar, transient=True)
                self._live.start()
        else:
            wait = FIRST_LINE
            while not self._done.wait(wait):
                wait = LINE_EVERY
                self._console.print(" ".join(self._text()), markup=False, soft_wrap=True)

    def _bar(self) -> Table:
        before, after = self._text()
        line = Table.grid(Column(no_wrap=True, overflow="ellipsis"), "", Column(no_wrap=True))
        # Without steps the bar pulses.
        bar = ProgressBar(self.step.total or None, self.step.completed, width=20)
        line.padding = (0, 1)
        line.add_row(before, bar, after)
        return line

    def _display(self, ended: str = "") -> None:
        """Show the line in the notebook cell, or the text of its end."""
        # Of the kernel alone. The widget of rich needs a package that few notebooks have.
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        before, after = self._text()
        step = self.step
        limits = f' value="{step.completed}" max="{step.total}"' if step.total else ""
        bar = f"{html.escape(before)} <progress{limits}></progress> {html.escape(after)}"
        content = {
            "text/plain": ended or f"{before} {after}",
            "text/html": html.escape(ended) or bar,
        }
        global _cell_line
        shell: Any = get_ipython()
        if _cell_line[0] == shell.execution_count:
            _cell_line[1].update(content, raw=True)
        else:
            show: Any = display  # untyped
            _cell_line = shell.execution_count, show(content, raw=True, display_id=True)


@contextmanager
def as_library(rendered: Callable[[str], str] = str, title: str = "") -> Iterator[None]:
    """Send messages to the logger `aam` and warnings to `warnings`.

    Args:
        rendered: function that returns the text of a message for this caller.
        title: name of the call in its line of progress; none is shown without it, within another
            call, beside that of another thread, and in a process that another one started, such as
            those of joblib.
    """
    global _callers, _quiet
    with _lock:
        is_shown = bool(title) and not _callers and multiprocessing.parent_process() is None
        if not _callers:
            _quiet, console.quiet = console.quiet, True
        _callers += 1
    token = _library.set(rendered)
    try:
        with _line_of(title) if is_shown else nullcontext():
            yield
    finally:
        _library.reset(token)
        with _lock:
            _callers -= 1
            if not _callers:
                console.quiet = _quiet


@contextmanager
def _line_of(title: str) -> Iterator[None]:
    """Show the progress of the block in a line."""
    line, status = _Line(title), "stopped after"
    token = _line.set(line)
    try:
        yield
        status = "done in"
    finally:
        _line.reset(token)
        line.end(status)


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
        warnings.warn(rendered(message), AamWarning, stacklevel=level_of_caller())
    _print(f"warning: {message}", "yellow")


@contextmanager
def later_step(result: str) -> Iterator[None]:
    """Turn a failure of a step after the training into a warning: it costs its own result alone."""
    try:
        yield
    except Exception as error:
        reason = error if isinstance(error, AamError) else f"{type(error).__name__}, {error}"
        warn(f"No {result}, model and predictions are complete: {reason}")


def level_of_caller() -> int:
    """Return the `stacklevel` of `warn` at which the code that called this package stands."""
    frame, level = sys._getframe(1), 1
    while frame.f_globals.get("__name__", "").startswith("aam.") and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


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


class Bar:
    """Bar of a step: on a terminal, or in the line of a call from Python; elsewhere nothing.

    Args:
        what: name of the step.
        total, completed: items in all, and done already.
        transient: leave no bar on the terminal.
    """

    def __init__(self, what: str, total: int, completed: int = 0, transient: bool = False) -> None:
        self._line = _line.get()
        self.is_visible = self._line is not None or interactive()
        self._bars = Progress(
            TextColumn(
                "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            # Numbers and times take up to 45 columns; the bar what is left beside a short title.
            BarColumn(bar_width=min(40, max(4, console.width - len(what) - 48))),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            transient=transient,
            disable=not interactive(),
        )
        self._task = self._bars.add_task(what, total=total, completed=completed, figures="")
        self._bars.start()
        self.update(what, completed)

    def update(self, what: str, completed: int, figures: str = "") -> None:
        """Show how many items are done, and figures on them."""
        self._bars.update(self._task, description=what, completed=completed, figures=figures)
        if self._line is not None:
            total = int(self._bars.tasks[0].total or 0)
            self._line.step = _Step(what, completed, total, figures)

    def stop(self) -> None:
        """End the step."""
        self._bars.stop()
        if self._line is not None:
            self._line.step = _NO_STEP


def track(
    items: Iterable[T], what: str, total: int, unit: str, line_every: float = LINE_EVERY
) -> Iterator[T]:
    """Yield `items` and show a progress bar with rate and remaining time.

    Without a terminal, print a line with the same figures every `line_every` seconds.
    """
    bar = Bar(what, total)
    try:
        began = line = time.monotonic()
        for number, item in enumerate(items, start=1):
            yield item
            now = time.monotonic()
            pace = max(now - began, 1e-9) / number
            figures = f"{significant(1 / pace)} {unit}/s"
            if number < total:
                figures += f", {duration(pace * (total - number))} left"
            if not console.is_terminal and now - line >= line_every:
                line = now
                info(f"{what}: {number}/{total}, {figures}")
            bar.update(what, number, figures)
    finally:
        bar.stop()
