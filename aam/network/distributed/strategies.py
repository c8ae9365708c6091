"""Strategies of distributed training: one process, DDP or FSDP; state dicts of model and optimizer.

FSDP is PyTorch's `fully_shard` (FSDP 2): each parameter is sharded, and parameters are gathered one
transformer layer at a time. It runs on GPUs and, for tests, on CPUs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from aam.contract.errors import DataError, Unavailable
from aam.contract.options.groups import ScaleOptions
from aam.contract.records import Mismatch
from aam.environment import Ranks
from aam.network.model.transformer import TransformerBlock
from aam.network.numerics.device import is_gpu

try:
    from torch.distributed.tensor import DTensor as DTensor  # exported to other modules
except ImportError:  # PyTorch 2.4, in the image for MI50
    from torch.distributed._tensor import DTensor as DTensor  # type: ignore[attr-defined]

StateDict = dict[str, Any]

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)

_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")  # keys of the state of a parameter in AdamW


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole tensor; if it is sharded this is a collective that all ranks must call."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_tensor(value: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return value.to_local() if isinstance(value, DTensor) else value


def model_state_dict(module: nn.Module) -> StateDict:
    """Return whole weights by name, on the CPU of rank 0; all ranks must call this."""
    return get_model_state_dict(module, options=_WHOLE)


def optimizer_state_dict(module: nn.Module, optimizer: Optimizer) -> StateDict:
    """Return the optimizer's state by parameter name, without its options."""
    state: Any = get_optimizer_state_dict(module, optimizer, options=_WHOLE)
    groups = [{"params": list(group["params"])} for group in state.get("param_groups", [])]
    return {"state": state.get("state", {}), "param_groups": groups}


def load_model(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights by name into a module; all ranks must call this for a sharded module."""
    current = module.state_dict()
    wrong = sorted(current.keys() ^ weights.keys()) or [
        name for name, value in current.items() if value.shape != weights[name].shape
    ]
    if wrong:
        raise DataError(
            "The checkpoint has the weights of another network",
            f"'{wrong[0]}' differs, and {len(wrong) - 1} more",
            "give the options with which the checkpoint was made",
        )
    set_model_state_dict(module, dict(weights), options=_loading())


def load_optimizer(module: nn.Module, optimizer: Optimizer, stored: StateDict) -> None:
    """Load the output of `optimizer_state_dict` into the AdamW of a module, sharded or not."""
    parameters = dict(module.named_parameters())
    names = {parameter: name for name, parameter in parameters.items()}
    # By name and in order: two optimizers of equally many parameters may train different ones.
    groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    if groups != [group["params"] for group in stored["param_groups"]]:
        trained = sum(map(len, groups))
        raise Mismatch(f"its optimizer trained other parameters than these {trained}")
    state = {}
    for name in (name for group in groups for name in group):
        parameter = parameters[name]
        # A parameter without a stored state has had no step. If the optimizer had no state, PyTorch
        # would make one by a step, and that step would call its hooks.
        optimizer.state[parameter] = _zeros(torch.zeros_like(parameter))
        moments = state[name] = stored["state"].get(name) or _zeros(torch.zeros(parameter.shape))
        if missing := set(_STATE_KEYS) - moments.keys():
            raise Mismatch(f"the optimizer's state of '{name}' has no '{min(missing)}'")
        for key, value in moments.items():
            if value.shape not in ((), parameter.shape):
                raise Mismatch(f"the optimizer's '{key}' of '{name}' has another shape")
            if bool(value.isnan().any()):  # squares of large gradients may be infinite
                raise Mismatch(f"the optimizer's '{key}' of '{name}' has NaN values")
    complete: StateDict = {
        "state": state,
        "param_groups": [
            {**settings, "params": group}
            for settings, group in zip(optimizer.param_groups, groups, strict=True)
        ],
    }
    set_optimizer_state_dict(module, optimizer, complete, options=_loading())


def _loading() -> StateDictOptions:
    # Without a process group nothing is sharded, and PyTorch cannot distribute a full state.
    return StateDictOptions(full_state_dict=dist.is_available() and dist.is_initialized())


def _zeros(zeros: Tensor) -> StateDict:
    """Return the state of a parameter before its first step."""
    return {key: torch.zeros(()) if key == "step" else zeros.clone() for key in _STATE_KEYS}


try:
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    FSDP_ON_CPU = True
except ImportError:  # PyTorch 2.5
    FSDP_ON_CPU = False
    from torch.distributed._composable.fsdp import (  # type: ignore[attr-defined]
        fully_shard,
        register_fsdp_forward_method,
    )


def parallelize(
    module: nn.Module, scale: ScaleOptions, ranks: Ranks, device: torch.device
) -> nn.Module:
    """Move a module to the device and wrap it (DDP) or shard it (FSDP); return what to call."""
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
        # PyTorch 2.13 deprecates it, but the replacement still sends all buffers at the start.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        # `freeze_unused` ensures that every trained parameter has a gradient in every step.
        return DistributedDataParallel(
            module,
            device_ids=[device] if is_gpu(device) else None,
            broadcast_buffers=False,  # they are equal on all ranks
            # Gradients are views of the buckets of the all-reduce, which saves copying them.
            gradient_as_bucket_view=True,
        )


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a training module in place over a mesh, each transformer layer separately."""
    for block in module.modules():
        if isinstance(block, TransformerBlock):
            fully_shard(block, mesh=mesh)
            # The backward pass of a chunk of ASVs shards a layer again. If the forward pass of
            # another chunk is then recomputed, PyTorch 2.7 does not gather the layer; 2.13 does.
            block.register_forward_pre_hook(lambda layer, _: layer.unshard())
    # The layers come first: the root then shards the remaining parameters.
    fully_shard(module, mesh=mesh)
    # FSDP gathers parameters only in `forward`, but the validation calls another method.
    register_fsdp_forward_method(module, "validation_step")
