"""Checkpoint files: the network's configuration and weights, the states of optimizer and loop.

The random numbers of a step follow from the seed, the epoch, the step and the rank, so no state of
a random number generator is stored.

A file is a safetensors file of nested plain values and tensors. It stores the tensors under their
path in the content. Its metadata has the content as JSON, with `{"$tensor": NAME}` in place of a
tensor, and the CRC-32 of JSON and tensors. Reading executes no code from the file: safetensors
compares every size with the file, and a changed byte changes the CRC-32.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from aam.contract import records
from aam.contract.errors import DataError
from aam.contract.files import atomic_write, require
from aam.contract.records import Count, Mismatch
from aam.memory import memory_available, shown_size
from aam.network.inference.stored_networks import ModelConfig, StoredNetwork

_CONTENT, _CRC = "aam", "crc32"  # entries of the metadata
_TENSOR = "$tensor"  # the only key of a dictionary that stands for a tensor

_ERRORS = (SafetensorError, OSError, RuntimeError, ValueError, LookupError, TypeError, MemoryError)
"""Exceptions of safetensors, json and torch on damaged files."""


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write nested dictionaries, lists, numbers, strings and tensors atomically, and flush."""
    tensors: dict[str, Tensor] = {}
    # Python's JSON allows NaN and Infinity: an epoch in fp16 may have such sums.
    text = json.dumps(_without_tensors(content, "", tensors, set()))
    metadata = {_CONTENT: text, _CRC: str(_crc(text, tensors))}
    with atomic_write(path) as temporary:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:  # for example, the disk is full
            # safetensors gives the number of the system's error only in the text.
            match = re.search(r"os error (\d+)", str(error))
            number = int(match[1]) if match else errno.EIO
            raise OSError(number, os.strerror(number), str(path)) from error
        # `atomic_write` renames the file, and the rename may reach the disk before the content.
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())


def read_tensors(path: Path) -> dict[str, Any]:
    """Read the content of a tensor file on the CPU; tuples are read as lists."""
    size, free = require(path, "checkpoint").stat().st_size, memory_available()
    try:
        if size > free:
            raise ValueError(
                f"it has {shown_size(size)}, but {shown_size(free)} of memory are free"
            )
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if not metadata.keys() >= {_CONTENT, _CRC}:
                raise ValueError("it is a safetensors file of another program")
            # Copied, since the tensors of safetensors are views of the mapped file.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        text = metadata[_CONTENT]
        if metadata[_CRC] != str(_crc(text, tensors)):
            raise ValueError("its CRC-32 differs, so its content has changed")
        content = _with_tensors(json.loads(text), tensors)
        if not isinstance(content, dict):
            raise ValueError("it holds no dictionary")
        return content
    except _ERRORS as error:
        raise DataError(
            "The checkpoint cannot be read",
            f"'{path}', {str(error).partition(chr(10))[0] or type(error).__name__}",
            "choose another checkpoint, or train it again with this version",
        ) from error


def _without_tensors(value: Any, path: str, tensors: dict[str, Tensor], storages: set[int]) -> Any:
    """Replace tensors by references, and add them to `tensors`."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        # safetensors refuses views of a larger storage, and two tensors that share a storage.
        storage = value.untyped_storage()
        if storage.nbytes() != value.nbytes or storage.data_ptr() in storages:
            value = value.clone()
        storages.add(value.untyped_storage().data_ptr())
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        prefix = f"{path}/" if path else ""
        return {
            key: _without_tensors(item, f"{prefix}{key}", tensors, storages)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = enumerate(value)
        return [_without_tensors(item, f"{path}/{k}", tensors, storages) for k, item in items]
    return value.item() if isinstance(value, np.generic) else value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace references by their tensors."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value


def _crc(text: str, tensors: Mapping[str, Tensor]) -> int:
    """Return the CRC-32 of plain values and of names, types, shapes and bytes of tensors."""
    crc = zlib.crc32(text.encode())
    # Sorted, since a safetensors file does not keep the order in which tensors were written.
    for name, value in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), crc)
        # A tensor of one value may have a stride of 0, and then its bytes cannot be viewed.
        flat = value.reshape(-1).as_strided((value.numel(),), (1,))
        crc = zlib.crc32(flat.view(torch.uint8).numpy().data, crc)
    return crc


Row = dict[str, int | float]  # row of metrics.csv, by column
FIRST_COLUMNS = ("epoch", "step", "seconds", "lr")  # columns of metrics.csv that every run has


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training loop."""

    epoch: Count  # number of complete epochs, including their validation
    batch: Count  # batches of the current epoch whose optimizer step is done
    step: Count  # optimizer steps since the start of the run


class ParameterGroup(TypedDict):
    """Names of the parameters of a group of the optimizer."""

    params: list[str]


class OptimizerState(TypedDict):
    """State of AdamW by parameter name, in whole tensors; learning rates follow from the step."""

    state: dict[str, dict[str, Tensor]]
    param_groups: list[ParameterGroup]


@dataclass(frozen=True)
class ResumeState:
    """Resume state: the state of a training loop besides the weights."""

    progress: TrainingProgress  # epochs, batches and optimizer steps done
    # total and number of each training metric in the current epoch; not finite if fp16 overflowed
    sums: dict[str, tuple[float, float]]
    # best value of the metric that chooses the epoch; None before the first validation
    best: float | None
    epochs_without_improvement: Count  # number of epochs since the best one
    history: list[Row]  # rows of metrics.csv
    seconds: float  # duration of the run until now
    optimizer: OptimizerState  # state of the optimizer
    scaler: dict[str, int | float]  # state of the loss scaler of fp16; empty in other precisions


START = ResumeState(
    TrainingProgress(0, 0, 0), {}, None, 0, [], 0.0, OptimizerState(state={}, param_groups=[]), {}
)
"""Resume state of a run before its first step."""


@dataclass(frozen=True)
class Checkpoint(StoredNetwork):
    """Checkpoint: a stored network with the state from which its training can be resumed."""

    resume: ResumeState | None

    @property
    def network(self) -> StoredNetwork:
        """The stored network alone, without the state of the optimizer."""
        return StoredNetwork(self.config, self.weights)


def write(
    path: Path, config: ModelConfig, weights: Mapping[str, Tensor], state: ResumeState
) -> None:
    """Write the weights of a training module and its resume state atomically.

    If the process is killed while it writes, the previous checkpoint remains.
    """
    # `asdict` would copy every tensor of the optimizer's state.
    plain = vars(state) | {"progress": asdict(state.progress)}
    write_tensors(path, {"aam": config.to_plain(), "state_dict": weights, "resume": plain})


def read(path: Path) -> Checkpoint:
    """Read a checkpoint on the CPU and validate the types of all entries before using any."""
    content = read_tensors(path)
    if "aam" not in content:
        raise DataError(
            "Not a checkpoint of this program", f"'{path}'", "give a checkpoint that `aam` wrote"
        )
    try:
        config = ModelConfig.from_plain(content["aam"], f"'{path}'")
        if missing := {"state_dict", "resume"} - content.keys():
            raise Mismatch(f"{min(missing)} is missing")
        weights = records.convert(content["state_dict"], dict[str, Tensor], "state_dict")
        # In a training module the names of the network's weights have a prefix.
        weights = {name.removeprefix("network."): weight for name, weight in weights.items()}
        # The file may be damaged, so this comes before a network is built from the configuration.
        StoredNetwork(config, weights).check()
        resume = content["resume"]
        if resume is not None:
            resume = records.convert(resume, ResumeState, "resume")
            if any(not set(FIRST_COLUMNS) <= row.keys() for row in resume.history):
                raise Mismatch("resume.history has a row without epoch, step, seconds or lr")
    except Mismatch as error:
        raise DataError(
            "The checkpoint has invalid content", f"'{path}', {error}", "choose another checkpoint"
        ) from error
    return Checkpoint(config, weights, resume)


def unusable(path: Path, reason: object) -> DataError:
    """Return the error for a checkpoint whose resume state does not fit a run."""
    return DataError(
        "The checkpoint holds no training state that fits this run",
        f"'{path}', {reason}",
        "resume from another checkpoint, or start a new run without --resume-from",
    )


_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)

_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")  # keys of the state of a parameter in AdamW


def state_dicts(module: nn.Module, optimizer: Optimizer) -> tuple[StateDict, OptimizerState]:
    """Return whole weights and states of the optimizer by parameter name, on the CPU of rank 0.

    For a sharded module this is a collective: all ranks must call it.
    """
    # The weights first: this shards a module again whose last pass gathered it, and the optimizer's
    # state belongs to the sharded parameters.
    weights = get_model_state_dict(module, options=_WHOLE)
    state: Any = get_optimizer_state_dict(module, optimizer, options=_WHOLE)
    groups = [ParameterGroup(params=list(g["params"])) for g in state.get("param_groups", [])]
    return weights, OptimizerState(state=state.get("state", {}), param_groups=groups)


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


def load_optimizer(module: nn.Module, optimizer: Optimizer, stored: OptimizerState) -> None:
    """Load states of `state_dicts` into the AdamW of a module, sharded or not."""
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


StateDict = dict[str, Any]
