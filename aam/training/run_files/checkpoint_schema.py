"""Validation of the weights in a checkpoint against the network of its configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.contract.schema import Mismatch
from aam.inference.model_config import ModelConfig


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
