"""Strategies: one process, DDP or FSDP, of PyTorch.

FSDP is PyTorch's `fully_shard` (FSDP 2): parameters are sharded one by one and gathered transformer
layer by layer, on GPUs and, for tests, on CPUs.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from aam.contract.errors import Unavailable
from aam.contract.options.device import ScaleOptions
from aam.distributed.environment import Ranks
from aam.model.transformer import TransformerBlock
from aam.numerics.device import is_gpu

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


def parallelize(
    module: nn.Module, scale: ScaleOptions, ranks: Ranks, device: torch.device
) -> nn.Module:
    """Move a training module to the device of this rank; return the module to call in a step.

    FSDP shards the module itself, DDP returns a wrapper of it.

    Args:
        module: training module, equal on all ranks.
        scale: --fsdp; without it several ranks use DDP.
        ranks: rank and world size of this process.
        device: device of this rank.

    Returns:
        `module` itself for one rank or FSDP, a DistributedDataParallel of it otherwise.

    Raises:
        Unavailable: --fsdp on a CPU with PyTorch 2.5 ("FSDP requires CUDA for streams").
    """
    if scale.fsdp and device.type == "cpu" and not FSDP_ON_CPU:
        raise Unavailable(
            "FSDP needs a GPU with this PyTorch",
            f"--fsdp on a CPU, PyTorch {torch.__version__}",
            "use --distributed, or PyTorch 2.6 or later",
        )
    module.to(device)
    if scale.fsdp:
        shard(module, init_device_mesh(device.type, (ranks.world_size,)))
        return module
    if ranks.world_size == 1:
        return module
    with warnings.catch_warnings():
        # PyTorch 2.13 and later; what it names instead still sends all buffers at the start.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        # Every trained parameter has a gradient in every step, on every rank: `aam.training.fit`.
        return DistributedDataParallel(
            module,
            device_ids=[device] if is_gpu(device) else None,
            broadcast_buffers=False,  # they are equal on all ranks
            # Gradients are views of the buckets of the all-reduce, which saves a copy of all of
            # them.
            gradient_as_bucket_view=True,
        )


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a training module in place over a mesh, each transformer layer separately.

    Args:
        module: training module on the device of this rank.
        mesh: mesh of one dimension with all ranks.
    """
    for part in module.modules():
        if isinstance(part, TransformerBlock):
            fully_shard(part, mesh=mesh)
            # PyTorch 2.7 does not gather a layer whose forward pass is recomputed after the
            # backward pass of another chunk of ASVs has sharded it again; 2.13 does.
            part.register_forward_pre_hook(_unshard)
    # The layers first: the root then shards the parameters that are left.
    fully_shard(module, mesh=mesh)
    # FSDP gathers parameters in `forward` alone; the validation calls another method.
    register_fsdp_forward_method(module, "validation_step")


def _unshard(block: nn.Module, _inputs: tuple[Any, ...]) -> None:
    """Gather the parameters of a layer, if they are sharded."""
    assert isinstance(block, FSDPModule)
    block.unshard()
