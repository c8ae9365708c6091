"""Lightning strategies: one process, DDP or FSDP, with checkpoints that each of them can load.

FSDP is PyTorch's `fully_shard` (FSDP 2): parameters are sharded one by one and gathered transformer
layer by layer, on GPUs and, for tests, on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from aam.contract.errors import DataError, Unavailable
from aam.contract.options.device import ScaleOptions
from aam.contract.schema import Mismatch
from aam.distributed import sharded_checkpoint, state_dict
from aam.distributed.environment import Ranks
from aam.model.transformer import Block

try:
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    FSDP_ON_CPU = True
except ImportError:  # PyTorch 2.5
    FSDP_ON_CPU = False
    from torch.distributed._composable.fsdp import (  # type: ignore[attr-defined]
        FSDPModule,
        fully_shard,
        register_fsdp_forward_method,
    )


class _StateByName(Strategy):
    """Checkpoints with state dicts by parameter name, in one file or sharded."""

    sharded_files = False

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the weights by name."""
        assert self.lightning_module is not None
        return state_dict.model_state_dict(self.lightning_module, self.sharded_files)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state by parameter name."""
        assert self.lightning_module is not None
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        return state_dict.optimizer_state_dict(self.lightning_module, optimizer, self.sharded_files)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load weights by name."""
        assert self.lightning_module is not None
        state_dict.load_model(self.lightning_module, checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizers' states by name, and check those of the schedulers.

        Lightning loads the schedulers next.

        Raises:
            DataError: they are of other parameters, optimizers or schedulers.
        """
        assert self.lightning_module is not None
        states, schedules = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
        try:
            if len(states) != len(self.optimizers):
                raise Mismatch(f"it has the state of {len(states)} optimizers")
            for optimizer, stored in zip(self.optimizers, states, strict=True):
                state_dict.load_optimizer(self.lightning_module, optimizer, stored)
            schedules[:] = state_dict.load_schedulers(self.lr_scheduler_configs, schedules)
        except Mismatch as error:
            raise DataError(
                "The checkpoint holds no training state that fits this run",
                f"'{self.lightning_module.trainer.ckpt_path}', {error}",
                "resume from another one, or start a new run without --resume-from",
            ) from error

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Write one file, or the shards of all ranks."""
        if self.sharded_files:
            sharded_checkpoint.write(checkpoint, Path(filepath))
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Whether weights are loaded after the strategy has wrapped or sharded the network."""
        return True


class SingleDevice(_StateByName, SingleDeviceStrategy):
    """One process on one device, also where SLURM_NTASKS of a batch script is larger."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.cluster_environment = LightningEnvironment()


class DistributedDataParallel(_StateByName, DDPStrategy):
    """DDP in the process group that `aam.distributed.process_group` has made.

    Args:
        device: of this process. Lightning would choose it by local rank among all GPUs, but Slurm
            may show each process its own GPU only.
    """

    def __init__(self, device: torch.device, **options: Any) -> None:
        super().__init__(cluster_environment=TorchElasticEnvironment(), **options)
        self._device = device

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        return self._device

    def _configure_launcher(self) -> None:
        self._launcher = None  # the processes are running


class FullySharded(DistributedDataParallel):
    """FSDP: parameters, gradients and optimizer state are sharded over the ranks.

    Each transformer layer is gathered when its turn comes, the rest for the whole step.
    """

    def __init__(self, device: torch.device, sharded_files: bool) -> None:
        super().__init__(device)
        self.sharded_files = sharded_files

    def configure_ddp(self) -> None:
        """Shard the network in place (`DDPStrategy` wraps it here)."""
        assert self.model is not None
        shard(self.model, init_device_mesh(self._device.type, (self.world_size,)))


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a training module in place over a mesh, each transformer layer separately."""
    for part in module.modules():
        if isinstance(part, Block):
            fully_shard(part, mesh=mesh)
            part.register_forward_pre_hook(_unshard)
    fully_shard(module, mesh=mesh)
    for step in ("training_step", "validation_step"):  # Lightning calls these, not `forward`
        register_fsdp_forward_method(module, step)


def _unshard(block: nn.Module, _inputs: tuple[Any, ...]) -> None:
    """Gather the parameters of a layer, if they are sharded.

    The backward pass of a chunk of ASVs shards them again, and PyTorch 2.7 does not gather them
    where the backward pass of the next chunk recomputes its forward pass.
    """
    assert isinstance(block, FSDPModule)
    block.unshard()


def choose_strategy(scale: ScaleOptions, ranks: Ranks, device: torch.device) -> Strategy:
    """Return the strategy of the options.

    Raises:
        Unavailable: --fsdp on a CPU with PyTorch 2.5 ("FSDP requires CUDA for streams").
    """
    if scale.fsdp and device.type == "cpu" and not FSDP_ON_CPU:
        raise Unavailable(
            "FSDP needs a GPU with this PyTorch",
            f"--fsdp on a CPU, PyTorch {torch.__version__}",
            "use --distributed, or PyTorch 2.6 or later",
        )
    if ranks.world_size == 1 and not scale.fsdp:
        return SingleDevice(device)
    if scale.fsdp:
        return FullySharded(device, scale.fsdp_sharded_checkpoint)
    # Every trained parameter has a gradient in every step, on every rank: `aam.training.fit`.
    return DistributedDataParallel(device, broadcast_buffers=False, gradient_as_bucket_view=True)
