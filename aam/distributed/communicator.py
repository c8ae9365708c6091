"""Communicator: collectives on small values, and comparison of options and data between ranks."""

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
from aam.contract.options import specs
from aam.contract.run_record import value_of
from aam.data.study import Study
from aam.distributed.environment import SINGLE_RANK, Ranks
from aam.distributed.heartbeat import Heartbeat

T = TypeVar("T")


@dataclass(frozen=True)
class Communicator:
    """The ranks of a run. All ranks call its methods, in the same order.

    Attributes:
        ranks: rank of this process, and the number of all.
        heartbeat: heartbeats of the ranks; None for one process.
        control: gloo process group for small messages; None for one process.

    >>> SINGLE_PROCESS.all_gather("gpu-1"), SINGLE_PROCESS.any_rank(False)
    (['gpu-1'], False)
    """

    ranks: Ranks = SINGLE_RANK
    heartbeat: Heartbeat | None = None
    control: dist.ProcessGroup | None = None

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        if self.control is None:
            return flag
        found = torch.tensor([flag], dtype=torch.int32)
        # On the CPU by gloo: a collective of NCCL would make every step wait for the GPU.
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return bool(found.item())

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def publish_step(self, step: int) -> None:
        """Publish the current step with the heartbeat of this rank."""
        if self.heartbeat is not None:
            self.heartbeat.publish_step(step)

    def require_equal(self, values: Mapping[str, object], error: type[AamError]) -> None:
        """Compare values between all ranks.

        Args:
            values: name -> value, which is compared as text.
            error: class of the error, the same on all ranks.

        Raises:
            AamError: names the first rank that differs from rank 0, and its values.
        """
        if self.control is None:
            return
        of_ranks = self.all_gather({name: str(value) for name, value in values.items()})
        main = of_ranks[0]
        for rank, theirs in enumerate(of_ranks):
            differences = [
                f"{name} {theirs.get(name, 'nothing')} instead of {main.get(name, 'nothing')}"
                for name in sorted(theirs.keys() | main.keys())
                if theirs.get(name) != main.get(name)
            ]
            if differences:
                raise error(
                    f"Rank {rank} differs from rank 0",
                    ", ".join(differences),
                    "start all ranks with the same command, program and files",
                )

    def require_equal_options(self, options: Any) -> None:
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
        given = {spec.flag: value_of(options, spec.field) for spec in specs(type(options))}
        self.require_equal(programs | given, UsageError)

    def require_equal_data(self, **parts: Any) -> None:
        """Compare input and decisions by digest, so that no rank sends its arrays.

        Args:
            parts: values of this rank by name, see `digest`.

        Raises:
            DataError: it differs.
        """
        if self.control is not None:
            self.require_equal({name: digest(part) for name, part in parts.items()}, DataError)


def digest(value: Any) -> str:
    """Return a short digest of arrays, tensors, texts, numbers and containers of them.

    Raises:
        TypeError: a value of another type.

    >>> digest([1, 2]) == digest((1, 2)), digest([1, 2]) == digest([2, 1])
    (True, False)
    """
    sum_ = hashlib.blake2b(digest_size=6)
    _add(sum_, value)
    return sum_.hexdigest()


def _add(sum_: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        # With the shape, since arrays of other shapes may have the same bytes.
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
    """Return the identity of a study for `digest`: itself, or the header of a memory-mapped one."""
    origin = study.origin
    if origin is None:
        return study
    # The header has the checksums of the store's files, so no rank reads them all. The path is
    # left out: it may differ between nodes.
    header = (origin.path / "store.json").read_text()
    return header, origin.max_bp, origin.with_tree, origin.rows, study.distances


SINGLE_PROCESS = Communicator()
"""Communicator of a run of one process."""
