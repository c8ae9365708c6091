"""States of a network and its optimiser that fit any strategy and any number of ranks.

Whatever a strategy wraps or shards, the state goes by the parameters' own names, and it is whole
when it is loaded. Optimisers of torch number their parameters instead, in an order of their own:
read by another strategy, such a state would land on the wrong parameters without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # PyTorch 2.4, which the image for MI50 has
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]
from torch.optim import Optimizer

from aam.contract.errors import DataError
from aam.serialization.schema import Mismatch, like

State = dict[str, Any]


def whole(value: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; all ranks have to ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return value.to_local() if isinstance(value, DTensor) else value


def model_state(module: nn.Module, keep: bool, sharded: bool) -> dict[str, Tensor]:
    """Return the weights by name.

    Args:
        module: of which all or, if it is sharded, a part is here.
        keep: this rank will write them; others get nothing (but have to ask).
        sharded: return what is here, as it is sharded.
    """
    if sharded:
        return dict(module.state_dict())
    return {
        name: found.detach().cpu()
        for name, value in module.state_dict().items()
        if (found := _kept(value, keep)) is not None
    }


def optimizer_state(module: nn.Module, optimizer: Optimizer, keep: bool, sharded: bool) -> State:
    """Return an optimiser's state by the names of parameters; arguments as of `model_state`."""
    names = _names(module)
    state: dict[str, State] = {}
    for parameter, values in optimizer.state.items():
        found = {key: value if sharded else _kept(value, keep) for key, value in values.items()}
        state[names[id(parameter)]] = {
            key: value.detach().cpu() if isinstance(value, Tensor) and not sharded else value
            for key, value in found.items()
        }
    groups = [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return {"state": state if keep or sharded else {}, "param_groups": groups}


def load_model(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a module, sharded or not, the whole weights `state`.

    Raises:
        DataError: they are of another network.
    """
    own = module.state_dict()
    wrong = sorted(own.keys() ^ state.keys()) or [
        name for name, value in own.items() if value.shape != state[name].shape
    ]
    if wrong:
        raise DataError(
            "The checkpoint is of another network",
            f"'{wrong[0]}' differs, and {len(wrong) - 1} more",
            "give the options that the checkpoint was made with",
        )
    with torch.no_grad():
        for name, value in own.items():
            _copy(value, state[name])


def load_optimizer(module: nn.Module, optimizer: Optimizer, stored: State) -> None:
    """Give an optimiser the state that `optimizer_state` returned, whole.

    Raises:
        Mismatch: the state is of another optimiser or of other parameters, or these are numbered as
            in earlier versions.
    """
    names = _names(module)
    own = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    groups = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    if groups != [list(group["params"]) for group in stored["param_groups"]]:
        raise Mismatch(f"its optimiser taught other parameters than these {sum(map(len, groups))}")
    kept = like(own, stored["param_groups"], "optimizer_states.param_groups")
    for group, values in zip(optimizer.param_groups, kept, strict=True):
        group.update(values)
        for parameter in group["params"]:
            name = names[id(parameter)]
            state = stored["state"].get(name)
            if state is not None:
                _check_state(optimizer, parameter, name, state)
                optimizer.state[parameter] = {
                    key: _beside(parameter, value) for key, value in state.items()
                }


def load_schedulers(configured: Sequence[Any], stored: Sequence[State]) -> list[State]:
    """Return the states of learning-rate schedulers as the fresh schedulers take them.

    Args:
        configured: Lightning's `LRSchedulerConfig` of each.
        stored: states of a checkpoint.

    Raises:
        Mismatch: they are of other schedulers.
    """
    own = [config.scheduler.state_dict() for config in configured]
    states: list[State] = like(own, stored, "lr_schedulers")
    return states


_ADAM = frozenset(("step", "exp_avg", "exp_avg_sq"))
_STATES = {"Adam": _ADAM, "AdamW": _ADAM, "SGD": frozenset(("momentum_buffer",))}
"""Entries of the state of a parameter, by optimiser (`aam.training.optimizer.make_optimizer`)."""


def _check_state(optimizer: Optimizer, parameter: Tensor, name: str, state: Any) -> None:
    """Refuse a state of a parameter that the optimiser could not go on with."""
    missing = _STATES.get(type(optimizer).__name__, frozenset()) - state.keys()
    if missing:
        raise Mismatch(f"the optimiser's state of '{name}' has no '{min(missing)}'")
    for key, value in state.items():
        if not isinstance(value, Tensor) or value.shape not in ((), parameter.shape):
            raise Mismatch(f"the optimiser's '{key}' of '{name}' has another shape")
        if bool(value.isnan().any()):  # squares of large gradients may be infinite
            raise Mismatch(f"the optimiser's '{key}' of '{name}' has values that are no numbers")


def _names(module: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in module.named_parameters()}


def _kept(value: Any, keep: bool) -> Any:
    """Return the whole of a value where it is kept; gathering takes all ranks."""
    found = whole(value) if isinstance(value, Tensor) else value
    return found if keep else None


def _beside(parameter: Tensor, value: Any) -> Any:
    """Return what belongs beside `parameter`: its shard of `value`, or `value` itself."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value  # a number of steps, which stays on the CPU
    made = torch.empty_like(parameter, dtype=value.dtype)
    _copy(made, value)
    return made


def _copy(into: Tensor, value: Tensor) -> None:
    """Copy the whole `value`, or the shard of it that `into` is."""
    if isinstance(into, DTensor):
        local = into.to_local()
        begin = _offset(into)
        local.copy_(value[begin : begin + len(local)])
    else:
        into.copy_(value)


def _offset(value: DTensor) -> int:
    """Return where a shard begins: `torch.chunk` cuts the first dimension."""
    (placement,) = value.placements
    assert placement.is_shard(0)
    return dist.get_rank() * -(-len(value) // value.device_mesh.size())


def tensors(state: State, prefix: str = "") -> Iterator[tuple[str, State, str]]:
    """Yield the path of every tensor in nested dictionaries, the dictionary and the key."""
    for key, value in state.items():
        path = f"{prefix}{key}"
        if isinstance(value, Tensor):
            yield path, state, key
        elif isinstance(value, dict):
            yield from tensors(value, f"{path}/")
