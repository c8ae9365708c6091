"""Lightning plugin for checkpoint I/O: atomic writes, and reads by `aam.serialization`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from aam.contract.files import atomic_write
from aam.distributed import sharded_checkpoint
from aam.training import checkpoints


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint I/O with atomic writes: a killed run leaves the last complete file."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write beside `path`, flush to the disk, rename; remove the shards that it replaces."""
        shards = Path(path).resolve() if sharded_checkpoint.is_sharded(Path(path)) else None
        with atomic_write(Path(path)) as temporary, temporary.open("wb") as stream:
            torch.save(checkpoint, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if shards is not None:
            shutil.rmtree(shards, ignore_errors=True)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read and validate a checkpoint, on the CPU."""
        return checkpoints.read(Path(path))[1]
