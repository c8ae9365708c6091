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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from aam.contract.errors import AamError, printable
from aam.number_format import significant

T = TypeVar("T")

FIRST_LINE, LINE_EVERY = 20.0, 60.0
"""Seconds to the first line of progress, and between two, without a terminal."""

SHOWN_AFTER, SHOWN_EVERY = 2.0, 0.5
"""Seconds of a call from Python to its line of progress, and between its updates in a notebook."""

_LONGEST_LINE = 5000  # characters of a line of a message; the middle of a longer one is left out


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


@dataclass
class _Warnings:
    """Warnings of a command."""

    texts: list[str]
    harmless: int = 0  # warnings that are no leaks


MAX_WARNINGS = 5
"""Warnings that a training prints besides leaks; the others are in its report."""

_recorded: ContextVar[_Warnings | None] = ContextVar("recorded", default=None)

_collected: ContextVar[list[Message] | None] = ContextVar("collected", default=None)


class AamWarning(UserWarning):
    """Warning of a computation that was called from Python."""


class Clock(threading.Timer):
    """Timer that calls a function after `first` seconds, and then every `every` seconds."""

    def __init__(self, show: Callable[[], None], first: float, every: float) -> None:
        # In the context of the caller, by which a kernel finds the cell of an output.
        super().__init__(first, contextvars.copy_context().run, (show,))
        self.daemon, self._every = True, every
        self.start()

    def run(self) -> None:
        """Call the function until `stop`."""
        while not self.finished.wait(self.interval):
            self.interval = self._every
            self.function(*self.args)

    def stop(self) -> None:
        """End the thread."""
        self.cancel()
        self.join()


_DESCRIPTION = TextColumn(
    "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
)
_FIGURES = TextColumn("{task.fields[figures]}")


class _Line:
    """Progress line of a call from Python with its current step.

    On a terminal and in a notebook the line appears after `SHOWN_AFTER`. On a terminal it vanishes
    at the end; a notebook cell shows the line of its last call. Elsewhere lines are printed, after
    `FIRST_LINE` and every `LINE_EVERY`.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._console = console = Console(stderr=True, highlight=False)
        columns = _DESCRIPTION, BarColumn(20), _FIGURES, TimeElapsedColumn()
        self._bars = Progress(*columns, console=console, transient=True)
        self._bars.add_task(title, total=None, figures="")
        (self._task,) = self._bars.tasks
        if console.is_jupyter:
            self._clock = Clock(self._display, SHOWN_AFTER, SHOWN_EVERY)
        elif console.is_terminal and not console.is_dumb_terminal:
            self._clock = Clock(self._bars.start, SHOWN_AFTER, LINE_EVERY)
        else:
            self._clock = Clock(self._print, FIRST_LINE, LINE_EVERY)

    def show(self, step: str = "", total: int = 0, completed: int = 0, figures: str = "") -> None:
        """Show a step; without a step the bar pulses."""
        task, self._task.completed = self._task, completed
        task.description = f"{self.title}: {step}" if total else self.title
        task.total = total or None
        task.fields["figures"] = f"{completed}/{total} {figures}".strip() if total else ""

    def end(self, status: str) -> None:
        """Remove the line, or show the status with the time."""
        self._clock.stop()
        with suppress(OSError):  # a terminal that is gone costs no result
            self._bars.live.stop()
        elapsed = self._task.elapsed or 0.0
        if self._console.is_jupyter and elapsed >= SHOWN_AFTER:
            self._display(f"{self.title}: {status} {duration(elapsed)}")

    def _after(self) -> str:
        return f"{self._task.fields['figures']} ({duration(self._task.elapsed or 0.0)})".strip()

    def _print(self) -> None:
        line = f"{self._task.description} {self._after()}"
        self._console.print(line, markup=False, soft_wrap=True)

    def _display(self, ended: str = "") -> None:
        """Show the line in the notebook cell, or the text of its end."""
        # IPython only: the widget of rich needs a package that few notebooks have.
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        task, label, figures = self._task, self._task.description, self._after()
        limits = f' value="{task.completed}" max="{task.total}"' if task.total else ""
        bar = f"{html.escape(label)} <progress{limits}></progress> {html.escape(figures)}"
        content = {
            "text/plain": ended or f"{label} {figures}",
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
    """Send messages to the logger `aam` and warnings to `warnings`, as `rendered` for this caller.

    With a `title` the call has a progress line, unless it runs within another call, beside a call
    of another thread, or in a child process (joblib).
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


def print_messages(messages: Iterable[Message]) -> None:
    """Print collected messages and warnings."""
    for message in messages:
        (warn if message.is_warning else info)(message.text)


def _lines(message: str) -> str:
    """Remove control characters from a message: names in an input may have them."""
    return "\n".join(printable(line, _LONGEST_LINE) for line in message.split("\n"))


def info(message: str, is_warning: bool = False) -> None:
    """Print a message."""
    message, rendered = _lines(message), _library.get()
    if (messages := _collected.get()) is not None:
        messages.append(Message(message, is_warning))
        return
    if rendered is not None and is_warning:
        warnings.warn(rendered(message), AamWarning, stacklevel=level_of_caller())
    elif rendered is not None:
        logging.getLogger("aam").info(rendered(message))
    if is_warning:
        message = f"warning: {message}"
    message = in_lines(message)
    # A path or a command that is longer than a line stays whole, so that it can be copied.
    console.print(message, style="yellow" if is_warning else None, markup=False, soft_wrap=True)


def in_lines(message: str) -> str:
    """Wrap a message at whole words to the width of the terminal; elsewhere return it as it is."""
    if not console.is_terminal:
        return message
    width = max(console.width - 1, 20)
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        for line in message.split("\n")
    )
    return "\n".join(itertools.chain.from_iterable(lines))


def warn(message: str, is_leak: bool = False) -> None:
    """Print a warning; within `warnings_for_report` that may be left to the report.

    A leak makes a score too good, and is always printed.
    """
    recorded = _recorded.get()
    if recorded is not None:
        recorded.texts.append(message)
        recorded.harmless += not is_leak
        if recorded.harmless > MAX_WARNINGS and not is_leak:
            return
    info(message, is_warning=True)


@contextmanager
def warnings_for_report() -> Iterator[list[str]]:
    """Collect the warnings of the block; print leaks, `MAX_WARNINGS` others, and their number."""
    token = _recorded.set(recorded := _Warnings([]))
    try:
        yield recorded.texts
    finally:
        _recorded.reset(token)
    if (more := recorded.harmless - MAX_WARNINGS) > 0:
        info(f"{more} more warning{'s' * (more > 1)} in the report.", is_warning=True)


@contextmanager
def working(step: str) -> Iterator[None]:
    """Show a step on a terminal while the block runs; elsewhere nothing."""
    is_shown = console.is_terminal and not console.quiet
    with console.status(f"{step} ...") if is_shown else nullcontext():
        yield


@contextmanager
def later_step(result: str) -> Iterator[None]:
    """Turn a failure after the training into a warning: only the result of this step is lost."""
    try:
        yield
    except Exception as error:
        reason = error if isinstance(error, AamError) else f"{type(error).__name__}, {error}"
        warn(f"No {result}, model and predictions are complete: {reason}")


def level_of_caller() -> int:
    """Return the `stacklevel` for `warnings.warn` of the code that called this package."""
    frame, level = sys._getframe(1), 1
    inside = ("aam.", "contextlib")  # which leaves a block of `later_step`
    while frame.f_globals.get("__name__", "").startswith(inside) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def print_result(message: str, is_warning: bool = False) -> None:
    """Print a result on standard output; also as a message if standard output is redirected."""
    elsewhere = _library.get() is not None or _collected.get() is not None
    if elsewhere or not _same_stream(sys.stdout, sys.stderr):
        info(message, is_warning)
    if not elsewhere:
        print_text(message)


def print_text(text: str) -> None:
    """Print a text on standard output alone, without control characters."""
    print(_lines(text), flush=True)


def _same_stream(first: TextIO, second: TextIO) -> bool:
    """Return whether two streams are the same terminal, file or pipe."""
    try:
        return os.path.sameopenfile(first.fileno(), second.fileno())
    except (OSError, ValueError):  # closed, or in memory
        return False


def duration(seconds: float) -> str:
    """Format a time span in its two largest units.

    >>> duration(42), duration(754), duration(12000), duration(200000)
    ('42 s', '12 min 34 s', '3 h 20 min', '2 d 7 h')
    """
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    amounts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds_left, "s")]
    largest = next((k for k, (number, _) in enumerate(amounts) if number), 3)
    largest_two = amounts[largest : largest + 2]
    return " ".join(f"{number} {unit}" for number, unit in largest_two if number) or "0 s"


class Bar:
    """Bar of a step: on a terminal, or in the line of a call from Python; elsewhere nothing.

    With `transient` it leaves nothing on the terminal.
    """

    def __init__(self, step: str, total: int, completed: int = 0, transient: bool = False) -> None:
        self._line, self._total = _line.get(), total
        on_terminal = console.is_terminal and not console.quiet
        self.is_visible = self._line is not None or on_terminal
        # Numbers and times take up to 45 columns; the bar takes the rest beside a short title.
        bar = BarColumn(bar_width=min(40, max(4, console.width - len(step) - 48)))
        self._bars = Progress(
            *(_DESCRIPTION, bar, MofNCompleteColumn(), _FIGURES, TimeElapsedColumn()),
            console=console, transient=transient, disable=not on_terminal,
        )  # fmt: skip
        self._task = self._bars.add_task(step, total=total, completed=completed, figures="")
        self._bars.start()
        self.update(step, completed)

    def update(self, step: str, completed: int, figures: str = "") -> None:
        """Update the number of completed items, and the figures beside it."""
        self._bars.update(self._task, description=step, completed=completed, figures=figures)
        if self._line is not None:
            self._line.show(step, self._total, completed, figures)

    def stop(self) -> None:
        """End the step."""
        self._bars.stop()
        if self._line is not None:
            self._line.show()


def track(
    items: Iterable[T], step: str, total: int, unit: str, line_every: float = LINE_EVERY
) -> Iterator[T]:
    """Iterate over items with a progress bar that shows rate and remaining time.

    Without a terminal, print a line with the same figures every `line_every` seconds.
    """
    bar = Bar(step, total)
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
                info(f"{step}: {number}/{total}, {figures}")
            bar.update(step, number, figures)
    finally:
        bar.stop()
