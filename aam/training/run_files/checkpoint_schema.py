"""Schema of a checkpoint: the entries that Lightning and this program write, and their types.

Further entries of a callback, a scheduler or a loader may be any plain value. The states of the
optimizer and of its schedule are validated against those of new objects when a run is resumed
(`aam.distributed.state_dict`).
"""

from __future__ import annotations

import re
from numbers import Real
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.contract import schema
from aam.contract.options.field import ZERO_OR_MORE
from aam.contract.schema import Mismatch
from aam.training.model_config import ModelConfig

Count = Annotated[int, ZERO_OR_MORE]


def _progress(*counters: str) -> dict[str, Any]:
    """Return the schema of a progress of Lightning's loops."""
    counts = dict.fromkeys(("ready", "completed", *counters), Count)
    return {"total": counts, "current": counts}


_STEPS, _BATCHES = _progress(), _progress("started", "processed")
_OPTIMIZER_STATE: dict[str, Any] = {
    "state": dict[str | int, dict[str, Any]],
    "param_groups": [{"params": list[str | int]}],
}
_CONTENT = {
    "epoch": Count,
    "global_step": Count,
    "pytorch-lightning_version": str,
    "state_dict": dict[str, Tensor],
    "loops": {
        "fit_loop": {
            "epoch_progress": _BATCHES,
            "epoch_loop.batch_progress": _BATCHES,
            "state_dict?": dict[str, Any],
            "epoch_loop.state_dict?": dict[str, Count],
            "epoch_loop.scheduler_progress?": _STEPS,
            "epoch_loop.automatic_optimization.state_dict?": dict[str, Any],
            "epoch_loop.automatic_optimization.optim_progress?": {
                "optimizer": {"step": _STEPS, "zero_grad": _STEPS}
            },
            "epoch_loop.manual_optimization.state_dict?": dict[str, Any],
            "epoch_loop.manual_optimization.optim_step_progress?": _STEPS,
            "epoch_loop.val_loop.state_dict?": dict[str, Any],
            "epoch_loop.val_loop.batch_progress?": _BATCHES,
        }
    },
    "callbacks": dict[str, dict[str, Any]],
    "optimizer_states": [_OPTIMIZER_STATE],
    "lr_schedulers": list[dict[str, Any]],
    "MixedPrecision?": dict[str, float],
    "train_sums?": dict[str, tuple[Real, Real]],  # of an epoch in which fp16 may have overflowed
}
"""Entries of a checkpoint; those with a question mark may be absent."""

_SCORE = Tensor | Real | None
_MODEL_CHECKPOINT = {
    "best_model_score": _SCORE,
    "best_model_path": str,
    "current_score?": _SCORE,
    "kth_value?": _SCORE,
    "kth_best_model_path?": str,
    "last_model_path?": str,
    "dirpath?": str | None,
    "best_k_models?": dict[str, _SCORE],
}
_CALLBACKS: dict[str, Any] = {
    "ModelCheckpoint": _MODEL_CHECKPOINT,
    "WithinEpochs": _MODEL_CHECKPOINT,
    "EarlyStopping": {
        "wait_count": Count,
        "stopped_epoch": Count,
        "best_score": Tensor | Real,
        "patience": Count,
    },
    "EpochTable": {"rows": list[dict[str, Real]], "seconds": Real},
}
"""Schema of a callback's state, by the class name with which its key begins."""


def check_content(content: dict[str, Any]) -> None:
    """Validate the entries of a checkpoint, except its model configuration, against the schema.

    Raises:
        Mismatch: an entry is missing, of another type or out of range.
    """
    schema.parse(_CONTENT, content, "the checkpoint")
    if not re.fullmatch(r"2\.\d+(\.\w+)*", content["pytorch-lightning_version"]):
        raise Mismatch("the checkpoint is of an unknown version of Lightning")
    for key, state in content["callbacks"].items():
        declared = _CALLBACKS.get(key.partition("{")[0])
        if declared is not None:
            schema.parse(declared, state, f"callbacks.{key}")
            scores = [value for value in state.values() if isinstance(value, Tensor)]
            if any(score.numel() != 1 for score in scores):
                raise Mismatch(f"callbacks.{key} has a score of several numbers")


class _ShapesOnly(TorchFunctionMode):
    """Torch function mode that skips random numbers and arithmetic on the meta device.

    The meta kernels for them are written in Python and import 800 modules, which takes a second.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("normal_", "div", "__truediv__", "mul", "__mul__"):
            return args[0] if args else given["tensor"]
        return (torch.empty if name in ("rand", "randn") else func)(*args, **given)


def check_weights(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Validate names, shapes and types of weights against the network of a configuration.

    Raises:
        Mismatch: a name, a shape or a type differs, or a weight is not finite.
    """
    shape = config.shape
    if shape.embedding_dim % shape.attention_heads:
        raise Mismatch(f"the heads ({shape.attention_heads}) do not divide the width")
    if shape.attention_layers > len(weights):  # building a million layers takes hours
        raise Mismatch(f"{shape.attention_layers} layers have {len(weights)} weights")
    try:
        with torch.device("meta"), _ShapesOnly():  # shapes alone, without memory
            network = config.network()
    except (RuntimeError, TypeError, OverflowError) as error:
        raise Mismatch("the network of the config is larger than any memory") from error
    expected = {f"network.{name}": value for name, value in network.state_dict().items()}
    other = sorted(expected.keys() ^ weights.keys())
    if other:
        more = f" and {len(other) - 1} more are" if len(other) > 1 else " is"
        raise Mismatch(f"'{other[0]}'{more} of another network")
    for name, value in weights.items():
        new = expected[name]
        if value.shape != new.shape or value.is_floating_point() != new.is_floating_point():
            raise Mismatch(f"'{name}' is {tuple(value.shape)}, the network has {tuple(new.shape)}")
        if not bool(torch.isfinite(value).all()):
            raise Mismatch(f"'{name}' has values that are not finite")
