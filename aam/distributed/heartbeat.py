"""Every process says that it is alive, and sees who has fallen silent.

A process that dies leaves the others waiting: for a message that does not come (gloo notices that
the line is cut, NCCL does not) or for nothing at all. So each tells the common store every second
that it lives and at which step it is, from a thread that runs beside the work. Who is silent for
longer than the timeout is dead, and the others stop, naming it and its last step.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from aam.contract.errors import AamError, Interrupted
from aam.distributed.environment import Ranks

_BEAT = 1.0
"""Seconds between two signs of life."""

_CUT = 5.0
"""Seconds of silence that are enough to call a process dead when a line was cut."""

_MOMENT = 10.0
"""Seconds, at least, in which the main thread of a process may notice by itself who is dead."""

_LINE = ("connection", "gloo", "nccl", "broken pipe", "socket", "timed out")
"""Words of the errors by which a dead process shows in the others."""


class Lost(AamError):
    """Another process of the run died, so this one cannot go on."""


@dataclass(frozen=True)
class _Heard:
    """The last sign of life of a rank, when it came, and its last step."""

    text: str
    at: float
    step: str = "0"


class Watcher:
    """Signs of life of the processes of a run.

    A sign is "BEAT STEP" while a process works, "left" when it is done, "failed SENTENCE" when it
    has failed itself, and "lost SENTENCE" when it stops because another has.

    Args:
        store: common to all.
        ranks: who this process is.
        timeout: seconds of silence after which a process is dead.
    """

    def __init__(self, store: Store, ranks: Ranks, timeout: float) -> None:
        self._store, self._ranks, self._timeout = store, ranks, timeout
        self._stop = threading.Event()
        self._lock = threading.Lock()
        now = time.monotonic()
        self._heard = {r: _Heard("", now) for r in range(ranks.size) if r != ranks.rank}
        self._step = self._beats = 0

    def reached(self, step: int) -> None:
        """Remember the step that this process has done."""
        self._step = step

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs.

        Raises:
            Lost: what fails in the block because of another's death says who that was.
        """
        thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        thread.start()
        try:
            yield
            self._leave(thread)
        except Interrupted:  # all have agreed to stop
            self._leave(thread)
            raise
        except Exception as error:
            lost = self._wait_for_culprit() if _of_a_cut_line(error) else None
            self._stop.set()
            thread.join()
            self._tell(f"lost {lost}" if lost else f"failed {_first_line(error)}")
            if self._ranks.first and self._heard:
                time.sleep(3 * _BEAT)  # the store ends with this process: let the others read it
            if lost:
                raise lost from error
            raise
        finally:
            self._stop.set()
            thread.join()

    def _leave(self, thread: threading.Thread) -> None:
        """Wait until the first rank is done, which applies what all have trained; it goes last."""
        while 0 in self._heard and self._heard[0].text != "left":
            lost = self._culprit(self._timeout)
            if lost:
                raise lost
            time.sleep(_BEAT / 5)
        self._stop.set()
        thread.join()
        self._tell("left")
        until = time.monotonic() + self._timeout
        while self._ranks.first and time.monotonic() < until:
            if all(heard.text == "left" for heard in self._heard.values()):
                return
            time.sleep(_BEAT / 5)
            self._hear()

    def _watch(self) -> None:
        while not self._stop.wait(_BEAT):
            lost = self._culprit(self._timeout)
            # The main thread says it better, but it may wait in a kernel for ever.
            if lost and not self._stop.wait(max(self._timeout, _MOMENT)):
                self._tell(f"lost {lost}")
                print(f"aam: rank {self._ranks.rank}: {lost}", file=sys.stderr, flush=True)
                os._exit(lost.status)

    def _wait_for_culprit(self) -> Lost | None:
        """Find out whose line was cut."""
        until = time.monotonic() + self._timeout + _CUT
        while time.monotonic() < until:
            lost = self._culprit(min(_CUT, self._timeout))
            if lost:
                return lost
            time.sleep(_BEAT / 5)
        return None

    def _culprit(self, silence: float) -> Lost | None:
        """Say that this process lives, listen to the others; return who is lost and why."""
        with self._lock:
            try:
                self._beats += 1
                self._store.set(self._key(self._ranks.rank), f"{self._beats} {self._step}")
                self._hear()
            except (RuntimeError, OSError):  # the store ends with the process that keeps it
                return self._lost(0, "cannot be reached any more") if self._heard else None
            for rank, heard in self._heard.items():
                word, _, rest = heard.text.partition(" ")
                if word == "lost":
                    return Lost(rest.rstrip("."))
                if word == "failed":
                    return self._lost(rank, f"stopped: {rest}")
                if word != "left" and time.monotonic() - heard.at > silence:
                    return self._lost(rank, f"was not heard of for {silence:.0f} s")
        return None

    def _hear(self) -> None:
        for rank, heard in self._heard.items():
            if self._store.check([self._key(rank)]):
                text = self._store.get(self._key(rank)).decode()
                if text != heard.text:
                    beat, _, step = text.partition(" ")
                    step = step if beat.isdecimal() else heard.step
                    self._heard[rank] = _Heard(text, time.monotonic(), step)

    def _lost(self, rank: int, what: str) -> Lost:
        step = self._heard[rank].step
        return Lost(f"Rank {rank} {what}", f"its last step was {step}", "see what it printed")

    def _tell(self, text: str) -> None:
        with suppress(RuntimeError, OSError):  # if nobody is left who could hear it
            self._store.set(self._key(self._ranks.rank), text)

    @staticmethod
    def _key(rank: int) -> str:
        return f"alive/{rank}"


def _of_a_cut_line(error: BaseException | None) -> bool:
    """Whether an error comes from a cut line, at once or by way of others.

    Lightning takes a network down after an error; one that is sharded, in the middle of a step,
    makes that fail in turn.
    """
    while error is not None:
        said = isinstance(error, RuntimeError | OSError) and str(error).lower()
        if isinstance(error, dist.DistError) or (said and any(word in said for word in _LINE)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
