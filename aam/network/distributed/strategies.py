"""Strategies: one process, DDP or FSDP, of PyTorch.

FSDP is PyTorch's `fully_shard` (FSDP 2): parameters are sharded one by one and gathered transformer
layer by layer, on GPUs and, for tests, on CPUs.
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
except ImportError:  # PyTorch 2.4, which the image for MI50 has
    from torch.distributed._tensor import DTensor as DTensor  # type: ignore[attr-defined]

StateDict = dict[str, Any]

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)

_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")  # keys of the state of a parameter in AdamW


def full_tensor(value: Tensor) -> Tensor:
    """Return a tensor whole; if it is sharded this is a collective, which all ranks call."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_tensor(value: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return value.to_local() if isinstance(value, DTensor) else value


def model_state_dict(module: nn.Module) -> StateDict:
    """Return whole weights by name, on the CPU; all ranks call this, and rank 0 gets them."""
    return get_model_state_dict(module, options=_WHOLE)


def optimizer_state_dict(module: nn.Module, optimizer: Optimizer) -> StateDict:
    """Return the optimizer's state by parameter name, without options, which are the run's."""
    state: Any = get_optimizer_state_dict(module, optimizer, options=_WHOLE)
    groups = [{"params": list(group["params"])} for group in state.get("param_groups", [])]
    return {"state": state.get("state", {}), "param_groups": groups}


def load_model(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights by name into a module; all ranks call this for a sharded one."""
    new = module.state_dict()
    wrong = sorted(new.keys() ^ weights.keys()) or [
        name for name, value in new.items() if value.shape != weights[name].shape
    ]
    if wrong:
        raise DataError(
            "The checkpoint is of another network",
            f"'{wrong[0]}' differs, and {len(wrong) - 1} more",
            "give the options that the checkpoint was made with",
        )
    set_model_state_dict(module, dict(weights), options=_loading())


def load_optimizer(module: nn.Module, optimizer: Optimizer, stored: StateDict) -> None:
    """Load a state of `optimizer_state_dict` into the AdamW of a module that may be sharded."""
    parameters = dict(module.named_parameters())
    names = {parameter: name for name, parameter in parameters.items()}
    # By name and in order: two optimizers of as many parameters may train different ones.
    groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    if groups != [group["params"] for group in stored["param_groups"]]:
        trained = sum(map(len, groups))
        raise Mismatch(f"its optimizer trained other parameters than these {trained}")
    state = {}
    for name in (name for group in groups for name in group):
        parameter = parameters[name]
        # A parameter without a stored state has had no step. Without a state of the optimizer
        # PyTorch makes one by a step, which calls its hooks.
        optimizer.state[parameter] = _zeros(torch.zeros_like(parameter))
        own_state = state[name] = stored["state"].get(name) or _zeros(torch.zeros(parameter.shape))
        if missing := set(_STATE_KEYS) - own_state.keys():
            raise Mismatch(f"the optimizer's state of '{name}' has no '{min(missing)}'")
        for key, value in own_state.items():
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
    # Without a process group nothing is sharded, and PyTorch could not distribute the state.
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
    """Move a module to the device; return the module to call: DDP wraps it, FSDP shards it."""
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
        # Every trained parameter has a gradient in every step, on every rank: `freeze_unused`.
        return DistributedDataParallel(
            module,
            device_ids=[device] if is_gpu(device) else None,
            broadcast_buffers=False,  # they are equal on all ranks
            # Gradients are views of the buckets of the all-reduce, which saves a copy of all of
            # them.
            gradient_as_bucket_view=True,
        )


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a training module in place over a mesh, each transformer layer separately."""
    for part in module.modules():
        if isinstance(part, TransformerBlock):
            fully_shard(part, mesh=mesh)
            # PyTorch 2.7 does not gather a layer whose forward pass is recomputed after the
            # backward pass of another chunk of ASVs has sharded it again; 2.13 does.
            part.register_forward_pre_hook(lambda layer, _: layer.unshard())
    # The layers first: the root then shards the parameters that are left.
    fully_shard(module, mesh=mesh)
    # FSDP gathers parameters in `forward` alone; the validation calls another method.
    register_fsdp_forward_method(module, "validation_step")
