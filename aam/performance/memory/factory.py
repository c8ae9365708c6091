"""Memory of a training step of any network, which a function of the user builds.

The function takes no arguments and returns the model, a batch and the loss, a function of both that
returns a scalar. It runs on fake tensors: no weights are read, and sizes cost no memory.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.contract.errors import UsageError
from aam.contract.options.commands.memory import MemoryFactory
from aam.contract.precision import Precision
from aam.performance.memory.step import StepMemory, Workload, predict_step

Factory = Callable[[], tuple[nn.Module, Any, Callable[[nn.Module, Any], Tensor]]]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


def factory_memory(options: MemoryFactory) -> StepMemory:
    """Return the memory of a training step of the network that the factory builds.

    Raises:
        UsageError: the factory cannot be imported, or returns something else.
    """
    factory, optimizer = load_factory(options.factory), OPTIMIZERS[options.optimizer]
    precision: Precision = "bf16" if options.mixed_precision == "auto" else options.mixed_precision

    def make() -> Workload:
        built = factory()
        if not (isinstance(built, tuple) and len(built) == 3 and isinstance(built[0], nn.Module)):
            raise UsageError(
                "The factory does not return model, batch and loss",
                f"--factory {options.factory} returned {type(built).__name__}",
                "return a tuple of a torch.nn.Module, a batch and a function of both",
            )
        model, batch, loss = built
        return Workload(
            model.train(), lambda: loss(model, batch), lambda: optimizer(model.parameters())
        )

    return predict_step(make, precision)


def load_factory(name: str) -> Factory:
    """Import the function `module:function`, also from the current folder.

    Raises:
        UsageError: there is no such module or function.
    """
    module, _, function = name.partition(":")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            "The factory cannot be imported", f"--factory {name}: {error}", "give module:function"
        ) from error
    return found
