"""How ranks divide the network among them: each all of it (DDP), or each a part (FSDP).

Lightning's strategies, with this project's own idea of who is who (`Ranks`), and with checkpoints
that any of them reads whatever wrote them. FSDP is torch's `fully_shard` (FSDP 2): parameters are
sharded one by one and gathered transformer layer by layer, on GPUs and, for tests, on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from aam.contract.errors import DataError, Unavailable
from aam.contract.options.groups import ScaleOptions
from aam.distributed import sharded_checkpoint, state_dict
from aam.distributed.environment import ALONE, Ranks
from aam.model.transformer import Block
from aam.serialization.schema import Mismatch

try:
    from torch.distributed.fsdp import fully_shard

    SHARDS_ON_CPU = True
except ImportError:  # PyTorch 2.5
    SHARDS_ON_CPU = False
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]


class RankEnvironment(ClusterEnvironment):
    """The rank and world size of `Ranks` for Lightning, which would look for them by itself.

    Lightning's own environment of Slurm takes SLURM_NTASKS of a batch script for ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """Return where the first process is."""
        return self.ranks.address

    @property
    def main_port(self) -> int:
        """Return its port."""
        return self.ranks.port

    @staticmethod
    def detect() -> bool:
        """Never chosen by itself."""
        return False

    def world_size(self) -> int:
        """Return the number of processes."""
        return self.ranks.size

    def set_world_size(self, size: int) -> None:
        """Nothing to set."""

    def global_rank(self) -> int:
        """Return this process's number."""
        return self.ranks.rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing to set."""

    def local_rank(self) -> int:
        """Return its number on this machine."""
        return self.ranks.local_rank

    def node_rank(self) -> int:
        """Not needed by anybody."""
        return 0


class _Portable(Strategy):
    """Checkpoints by the names of parameters, whole or sharded."""

    sharded_files = False

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the weights by name."""
        assert self.lightning_module is not None
        return state_dict.model_state(
            self.lightning_module, bool(self.is_global_zero), self.sharded_files
        )

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimiser's state by name."""
        assert self.lightning_module is not None
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        return state_dict.optimizer_state(
            self.lightning_module, optimizer, bool(self.is_global_zero), self.sharded_files
        )

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load weights by name."""
        assert self.lightning_module is not None
        state_dict.load_model(self.lightning_module, checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimisers' states by name; Lightning loads those of the schedulers next.

        Raises:
            DataError: they are of other parameters, optimisers or schedulers.
        """
        assert self.lightning_module is not None
        states, schedules = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
        try:
            if len(states) != len(self.optimizers):
                raise Mismatch(f"it has the state of {len(states)} optimisers")
            for optimizer, stored in zip(self.optimizers, states, strict=True):
                state_dict.load_optimizer(self.lightning_module, optimizer, stored)
            schedules[:] = state_dict.load_schedulers(self.lr_scheduler_configs, schedules)
        except Mismatch as error:
            raise DataError(
                "The checkpoint holds no state of training that fits this run",
                f"'{self.lightning_module.trainer.ckpt_path}', {error}",
                "resume from another one, or start anew without --resume-from",
            ) from error

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Write a whole file, or the shards of all ranks."""
        if self.sharded_files:
            sharded_checkpoint.write(checkpoint, Path(filepath))
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Weights are loaded into what the strategy has made of the network."""
        return True


class Alone(_Portable, SingleDeviceStrategy):
    """One process, one device, also where Slurm's variables or torchrun's speak of more."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.cluster_environment = RankEnvironment(ALONE)


class Replicated(_Portable, DDPStrategy):
    """DDP: every rank has the whole network; gradients are averaged as they come."""

    def __init__(self, ranks: Ranks, device: torch.device, **options: Any) -> None:
        super().__init__(cluster_environment=RankEnvironment(ranks), **options)
        self._device = device

    @property
    def root_device(self) -> torch.device:
        """Return the device of this process."""
        return self._device

    def _configure_launcher(self) -> None:
        self._launcher = None

    def set_world_ranks(self) -> None:
        """Nothing to set."""


class FullySharded(Replicated):
    """FSDP: parameters, gradients and the optimiser's state are divided among the ranks.

    Each transformer layer is gathered when its turn comes, the rest for the whole step.
    """

    def __init__(self, ranks: Ranks, device: torch.device, sharded_files: bool) -> None:
        super().__init__(ranks, device)
        self.sharded_files = sharded_files
        self.ranks = ranks

    def _shard(self, model: nn.Module) -> nn.Module:
        mesh = init_device_mesh(self._device.type, (self.ranks.size,))
        for module in model.modules():
            if isinstance(module, Block):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def configure_ddp(self) -> None:
        """Shard the network."""
        assert self.model is not None
        self.model = self._shard(self.model)

    def determine_ddp_device_ids(self) -> list[int] | None:
        """Return what a barrier waits on."""
        return None if self._device.type == "cpu" else [self._device.index]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step of training."""
        return self._through_hooks("training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step of validation."""
        return self._through_hooks("validation_step", *args, **kwargs)

    def _through_hooks(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the task as if it were `forward`, which is what FSDP hooks into."""
        assert self.model is not None and self.lightning_module is not None
        precision = self.precision_plugin
        training = method == "training_step"
        with precision.train_step_context() if training else precision.val_step_context():
            return self._forward_redirection(
                self.model, self.lightning_module, method, *args, **kwargs
            )


def choose(scale: ScaleOptions, ranks: Ranks, device: torch.device) -> Strategy:
    """Return the strategy that the options ask for.

    Raises:
        Unavailable: --fsdp on a processor with PyTorch 2.5 ("FSDP requires CUDA for streams").
    """
    if scale.fsdp and device.type == "cpu" and not SHARDS_ON_CPU:
        raise Unavailable(
            "FSDP needs a GPU with this PyTorch",
            f"--fsdp on a processor, PyTorch {torch.__version__}",
            "use --distributed, or PyTorch 2.6 or later",
        )
    if ranks.size == 1 and not scale.fsdp:
        return Alone(device)
    if scale.fsdp:
        return FullySharded(ranks, device, scale.fsdp_sharded_checkpoint)
    # Every parameter that is taught is reached in every step, on every rank: `freeze_idle`.
    return Replicated(ranks, device, broadcast_buffers=False, gradient_as_bucket_view=True)
