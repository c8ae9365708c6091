"""The processes of a run as one: questions that all of them answer together."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from scipy.sparse import csr_array

from aam import __version__
from aam.contract.errors import AamError, DataError, UsageError
from aam.data.study import Study
from aam.distributed.environment import ALONE, Ranks
from aam.distributed.heartbeat import Watcher

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """This process among those of its run.

    Attributes:
        ranks: who it is.
        watcher: knows who is alive; None for one process.
        control: group of the processes for small messages between CPUs; None for one process.
    """

    ranks: Ranks = ALONE
    watcher: Watcher | None = None
    control: dist.ProcessGroup | None = None

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all have to ask."""
        if self.control is None:
            return flag
        found = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return bool(found.item())

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of ranks; all have to call it."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.ranks.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def told(self, value: Any) -> Any:
        """Return the first process's value."""
        if self.control is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.control)
        return box[0]

    def reached(self, step: int) -> None:
        """Let the others know how far this process is."""
        if self.watcher is not None:
            self.watcher.reached(step)

    def require_same(self, what: Mapping[str, object], error: type[AamError]) -> None:
        """Compare facts of all processes.

        Args:
            what: name -> value, which is compared as text.
            error: to raise; the same in all processes.

        Raises:
            AamError: names the first process that differs from process 0, and in what.
        """
        if self.control is None:
            return
        all_of = self.gather({name: str(value) for name, value in what.items()})
        for rank, theirs in enumerate(all_of):
            other = [
                f"{name} {theirs.get(name, 'nothing')} instead of {all_of[0].get(name, 'nothing')}"
                for name in sorted(theirs.keys() | all_of[0].keys())
                if theirs.get(name) != all_of[0].get(name)
            ]
            if other:
                raise error(
                    f"Process {rank} differs from process 0",
                    ", ".join(other),
                    "start all with the same command, program and files",
                )

    def same_options(self, options: Any) -> None:
        """Compare programs, libraries and options.

        Raises:
            UsageError: they differ.
        """
        programs = {
            "aam": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "Python": ".".join(map(str, sys.version_info[:2])),
        }
        self.require_same(programs | _flat(options), UsageError)

    def same_data(self, **parts: Any) -> None:
        """Compare what was read and decided, by digest.

        Raises:
            DataError: it differs.
        """
        if self.control is not None:
            self.require_same({name: digest(part) for name, part in parts.items()}, DataError)


def _flat(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            found |= _flat(value)
        else:
            found["--" + field.name.replace("_", "-")] = value
    return found


def digest(value: Any) -> str:
    """Return a short digest of arrays, tensors, texts, numbers and containers of them."""
    sum_ = hashlib.blake2b(digest_size=6)
    _add(sum_, value)
    return sum_.hexdigest()


def _add(sum_: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        sum_.update(f"{value.dtype} {value.shape} ".encode())
        sum_.update(np.ascontiguousarray(value).data)
    elif isinstance(value, csr_array):
        for part in (value.indptr, value.indices, value.data):
            _add(sum_, part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _add(sum_, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _add(sum_, key)
            _add(sum_, part)
    elif isinstance(value, (list, tuple)):
        sum_.update(f"{len(value)} ".encode())
        for part in value:
            _add(sum_, part)
    elif value is None or isinstance(value, (str, int, float, bool, Path, np.generic)):
        sum_.update(f"{value!r} ".encode())
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


def identity(study: Study) -> Any:
    """Return what tells a study from another; of a mapped one its header, not all of its pages.

    The header holds the checksums of the store's files. Paths may differ from machine to machine.
    """
    origin = study.origin
    if origin is None:
        return study
    header = (origin.path / "store.json").read_text()
    return header, origin.max_bp, origin.with_tree, origin.rows, study.distances


ALONE_TEAM = Team()
