"""Heartbeats: each rank publishes one per second and detects ranks that have failed.

The failure of a rank leaves the others waiting in a collective: gloo notices a closed connection,
NCCL does not. A thread of each rank therefore writes a heartbeat with the current step to the
common store and reads those of the others. A rank without a heartbeat for the timeout has failed;
the others stop with an error that names it and its last step.
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

_INTERVAL = 1.0
"""Seconds between two heartbeats."""

_SHORT_TIMEOUT = 5.0
"""Seconds without a heartbeat after which a rank has failed if a connection was closed too."""

_GRACE = 10.0
"""Least seconds in which the main thread may raise the error before the process is ended."""

_CONNECTION_ERRORS = ("connection", "gloo", "nccl", "broken pipe", "socket", "timed out")
"""Parts of the messages of errors that the failure of another rank causes."""

_DONE = "left"


class RankFailure(AamError):
    """Failure of another rank, which ends this one."""


@dataclass(frozen=True)
class _Peer:
    """The last message of a rank, when it was read, and the rank's last step."""

    message: str
    time: float
    step: str = "0"


class Heartbeat:
    """Heartbeats of the ranks of a run.

    The message of a rank is "COUNT STEP" while it works, "left" when it is done, "failed SENTENCE"
    after its own error, and "lost SENTENCE" when it stops because another rank has failed.

    Args:
        store: key-value store of PyTorch that all ranks share, which ends with rank 0.
        ranks: rank of this process, and the number of all.
        timeout: seconds without a heartbeat after which a rank has failed.
    """

    def __init__(self, store: Store, ranks: Ranks, timeout: float) -> None:
        self._store, self._ranks, self._timeout = store, ranks, timeout
        self._stop = threading.Event()
        self._lock = threading.Lock()
        now = time.monotonic()
        self._peers = {r: _Peer("", now) for r in range(ranks.world_size) if r != ranks.rank}
        self._step = self._count = 0

    def publish_step(self, step: int) -> None:
        """Set the step that the next heartbeats of this rank carry."""
        self._step = step

    @contextmanager
    def monitor(self) -> Iterator[None]:
        """Publish heartbeats and detect failures while the block runs.

        Raises:
            RankFailure: another rank failed; it replaces the error that this caused here.
        """
        thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
            self._finish(thread)
        except Interrupted:  # all ranks have agreed to stop
            self._finish(thread)
            raise
        except Exception as error:
            # A closed connection is an effect; the rank that failed is the cause to report.
            failure = self._await_failure() if _is_connection_error(error) else None
            self._stop.set()
            thread.join()
            self._publish(f"lost {failure}" if failure else f"failed {_first_line(error)}")
            # The store ends with this process; the others read the message within their interval.
            if self._ranks.is_main and self._peers:
                time.sleep(3 * _INTERVAL)
            if failure:
                raise failure from error
            raise
        finally:
            self._stop.set()
            thread.join()

    def _finish(self, thread: threading.Thread) -> None:
        """Wait for rank 0, which applies the trained network, and as rank 0 for all others."""
        while 0 in self._peers and self._peers[0].message != _DONE:
            failure = self._exchange(self._timeout)
            if failure:
                raise failure
            time.sleep(_INTERVAL / 5)
        self._stop.set()
        thread.join()
        self._publish(_DONE)
        until = time.monotonic() + self._timeout
        while self._ranks.is_main and time.monotonic() < until:
            if all(peer.message == _DONE for peer in self._peers.values()):
                return
            time.sleep(_INTERVAL / 5)
            self._read_peers()

    def _run(self) -> None:
        """Exchange heartbeats until the block ends; end the process if its main thread hangs."""
        while not self._stop.wait(_INTERVAL):
            failure = self._exchange(self._timeout)
            # The main thread's error has more detail, but that thread may be blocked in a kernel.
            if failure and not self._stop.wait(max(self._timeout, _GRACE)):
                self._publish(f"lost {failure}")
                print(f"aam: rank {self._ranks.rank}: {failure}", file=sys.stderr, flush=True)
                # Not `sys.exit`, which ends this thread alone; the main thread may never return to
                # Python.
                os._exit(failure.status)

    def _await_failure(self) -> RankFailure | None:
        """Return which rank has failed after a connection was closed."""
        until = time.monotonic() + self._timeout + _SHORT_TIMEOUT
        while time.monotonic() < until:
            failure = self._exchange(min(_SHORT_TIMEOUT, self._timeout))
            if failure:
                return failure
            time.sleep(_INTERVAL / 5)
        return None

    def _exchange(self, timeout: float) -> RankFailure | None:
        """Publish a heartbeat, read those of the others; return the first failure among them."""
        with self._lock:
            try:
                # The count makes each message a new one: peers compare messages, and so need no
                # clock in common.
                self._count += 1
                self._store.set(self._key(self._ranks.rank), f"{self._count} {self._step}")
                self._read_peers()
            except (RuntimeError, OSError):  # the store ends with rank 0
                return self._failure(0, "cannot be reached any more") if self._peers else None
            for rank, peer in self._peers.items():
                state, _, sentence = peer.message.partition(" ")
                if state == "lost":
                    return RankFailure(sentence.rstrip("."))
                if state == "failed":
                    return self._failure(rank, f"stopped: {sentence}")
                if state != _DONE and time.monotonic() - peer.time > timeout:
                    return self._failure(rank, f"sent no heartbeat for {timeout:.0f} s")
        return None

    def _read_peers(self) -> None:
        for rank, peer in self._peers.items():
            # `get` of a key that is not there would block until the timeout of the store.
            if self._store.check([self._key(rank)]):
                message = self._store.get(self._key(rank)).decode()
                if message != peer.message:
                    count, _, step = message.partition(" ")
                    step = step if count.isdecimal() else peer.step
                    self._peers[rank] = _Peer(message, time.monotonic(), step)

    def _failure(self, rank: int, event: str) -> RankFailure:
        step = self._peers[rank].step
        return RankFailure(
            f"Rank {rank} {event}", f"its last step was {step}", "read its output for the reason"
        )

    def _publish(self, message: str) -> None:
        with suppress(RuntimeError, OSError):  # the store may have ended
            self._store.set(self._key(self._ranks.rank), message)

    @staticmethod
    def _key(rank: int) -> str:
        return f"heartbeat/{rank}"


def _is_connection_error(error: BaseException | None) -> bool:
    """Whether a closed connection is among the causes of an error.

    The end of a sharded network in the middle of a step fails in turn.
    """
    while error is not None:
        text = str(error).lower() if isinstance(error, RuntimeError | OSError) else ""
        if isinstance(error, dist.DistError) or any(part in text for part in _CONNECTION_ERRORS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
