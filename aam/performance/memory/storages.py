"""Live storages: the bytes of all tensors of a computation, and their maximum."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aam.distributed.state_dict import DTensor, local_tensor

BLOCK = 512
"""Bytes to which PyTorch's GPU allocator rounds every tensor up."""


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count of the bytes of all storages that operations make, and of its maximum.

    FSDP empties and refills the storages of gathered parameters with `resize_`, which is no
    operation, so that method is replaced while the mode is active.
    """

    def __init__(self, block: int = BLOCK) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = block
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> LiveStorages:
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            resized = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)
            return resized

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell PyTorch not to wrap each operation for its compiler, which takes a tenth of all."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count the storages of its results."""
        if any(issubclass(found, DTensor) for found in types):
            return NotImplemented  # its operations on local tensors follow
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._free, key)
            self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        size = rounded(size, self.block)
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.live)

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def rounded(size: int, block: int) -> int:
    """Return a number of bytes rounded up to whole blocks."""
    return -(-size // block) * block


def size_of(values: Iterable[Any], block: int) -> int:
    """Return the bytes of all tensors in `values`; of sharded ones the part of this rank."""
    tensors = [local_tensor(value) for value in values if isinstance(value, Tensor)]
    return sum(rounded(tensor.untyped_storage().nbytes(), block) for tensor in tensors)
