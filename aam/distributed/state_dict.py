"""State dicts of the network and its optimizer by parameter name, for DDP, FSDP and any world size.

PyTorch gathers and distributes them (`torch.distributed.checkpoint.state_dict`): parameters have
the names that they have in the plain module, and a state that is loaded is whole. The optimizer's
own state dict numbers parameters in the order in which it holds them, so that another strategy
would load it into the wrong parameters without an error.
"""

from __future__ import annotations

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
from torch.optim import Optimizer

from aam.contract.errors import DataError
from aam.contract.schema import Mismatch, like

try:
    from torch.distributed.tensor import DTensor as DTensor  # exported to other modules
except ImportError:  # PyTorch 2.4, which the image for MI50 has
    from torch.distributed._tensor import DTensor as DTensor  # type: ignore[attr-defined]

StateDict = dict[str, Any]

_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")
"""Keys of the state of a parameter in AdamW."""


def full_tensor(value: Tensor) -> Tensor:
    """Return a tensor whole; if it is sharded this is a collective, which all ranks call."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_tensor(value: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return value.to_local() if isinstance(value, DTensor) else value


def model_state_dict(module: nn.Module) -> StateDict:
    """Return whole weights by name, on the CPU; all ranks call this, and rank 0 gets them."""
    return get_model_state_dict(module, options=_whole())


def optimizer_state_dict(module: nn.Module, optimizer: Optimizer) -> StateDict:
    """Return the optimizer's state by parameter name, as `model_state_dict` returns weights."""
    return get_optimizer_state_dict(module, optimizer, options=_whole())


def load_model(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights into a module, which may be sharded.

    Args:
        module: module whose weights are replaced; all ranks call this for a sharded one.
        weights: whole weights, by the names of the plain module.

    Raises:
        DataError: names or shapes differ from those of the module.
    """
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
    """Load a whole state, by parameter name, into the optimizer of a module that may be sharded.

    Args:
        module: module of the optimizer's parameters.
        optimizer: AdamW, in which the state is replaced.
        stored: state as `optimizer_state_dict` returns it.

    Raises:
        Mismatch: the state is of another optimizer or of other parameters.
    """
    parameters = dict(module.named_parameters())
    names = {parameter: name for name, parameter in parameters.items()}
    # By name and in order: two optimizers of as many parameters may train different ones.
    groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    if groups != [list(group["params"]) for group in stored["param_groups"]]:
        trained = sum(map(len, groups))
        raise Mismatch(f"its optimizer trained other parameters than these {trained}")
    new = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    # Types and names as those of a new optimizer: the values come from a file.
    options = like(new, stored["param_groups"], "resume.optimizer.param_groups")
    state = {}
    for name in (name for group in groups for name in group):
        parameter, found = parameters[name], stored["state"].get(name)
        # A parameter without a stored state has had no step. Without a state of the optimizer
        # PyTorch makes one by a step, which calls its hooks.
        empty = torch.zeros(parameter.shape)
        state[name] = _zeros(empty) if found is None else _checked(name, empty, found)
        optimizer.state[parameter] = _zeros(torch.zeros_like(parameter))
    param_groups = [
        {**values, "params": group} for values, group in zip(options, groups, strict=True)
    ]
    complete: StateDict = {"state": state, "param_groups": param_groups}
    set_optimizer_state_dict(module, optimizer, complete, options=_loading())


def _whole() -> StateDictOptions:
    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _loading() -> StateDictOptions:
    # Without a process group nothing is sharded, and PyTorch could not distribute the state.
    return StateDictOptions(full_state_dict=dist.is_available() and dist.is_initialized())


def _zeros(zeros: Tensor) -> StateDict:
    """Return the state of a parameter before its first step."""
    return {key: torch.zeros(()) if key == "step" else zeros.clone() for key in _STATE_KEYS}


def _checked(name: str, zeros: Tensor, stored: StateDict) -> StateDict:
    """Return the stored state of a parameter; refuse missing keys, other shapes and NaN."""
    missing = set(_STATE_KEYS) - stored.keys()
    if missing:
        raise Mismatch(f"the optimizer's state of '{name}' has no '{min(missing)}'")
    for key, value in stored.items():
        if not isinstance(value, Tensor) or value.shape not in ((), zeros.shape):
            raise Mismatch(f"the optimizer's '{key}' of '{name}' has another shape")
        if bool(value.isnan().any()):  # squares of large gradients may be infinite
            raise Mismatch(f"the optimizer's '{key}' of '{name}' has NaN values")
    return stored
