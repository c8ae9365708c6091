"""Doors to the other wings: the network (needs PyTorch) and the stack (measures both).

The study (all other packages of `aam`) imports neither wing; only this module names them. Imports
run from the stack to the network to the study to the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from aam.contract.installation import not_installed
from aam.contract.options.commands import NETWORK_COMMANDS, STACK_COMMANDS

if TYPE_CHECKING:
    from aam.contract.options.commands.train import Train
    from aam.contract.options.groups import DeviceOptions, RankOptions

MODULES = {
    "compare": "results",
    "evaluate": "results",
    "example": "studies",
    "importance": "models",
    "inspect": "studies",
    "predict": "models",
    "prepare": "studies",
    "report": "results",
    "search": "training",
    "train": "training",
}
"""First word of a command of the study -> module of `aam.commands`."""

NETWORK_MODULES = {
    "check": "numerics.backends",
    "embed": "inference.outputs",
    "export": "inference.outputs",
    "memory": "memory_prediction",
    "pretrain": "door",
    "unifrac": "unifrac",
}
"""First word of a command of the network -> module of `aam.network`."""


class Network(Protocol):
    """Interface of the network for the study: the module `aam.network.door`."""

    def member(self) -> Any:
        """Return the reader of the member `transformer`."""

    def start_session(self, options: Train, labelled: Any, policy: Any) -> Any:
        """Start the `Session` of a run with a network: ranks, device, precision, backends."""

    def sequence_length(self, options: Train) -> int | None:
        """Return the sequence length of a pretrained encoder, in nucleotides."""

    def checkpoint_config(self, path: Path) -> Any:
        """Return command and options of a checkpoint."""

    def process_group(
        self, scale: RankOptions, device: DeviceOptions
    ) -> AbstractContextManager[Any]:
        """Join the other ranks of a prediction."""

    def visible_gpus(self) -> int:
        """Return the number of GPUs that PyTorch sees."""

    def require_device(self, options: DeviceOptions) -> None:
        """Refuse a device that this host does not have."""

    def own_generators(self) -> AbstractContextManager[None]:
        """Preserve the state of the caller's random number generators."""

    def tensorboard_writer(self) -> tuple[Any, Any]:
        """Return PyTorch's writer of TensorBoard files and its summary of hyper-parameters."""

    def unifrac_matrix(self, options: Any) -> Any:
        """Compute the distances of `aam.unifrac`."""


def network() -> Network:
    """Return the door of the network; refuse without PyTorch."""
    if find_spec("torch") is None:
        raise not_installed("The network needs PyTorch", ModuleNotFoundError(name="torch"))
    return cast(Network, import_module("aam.network.door"))


def command(name: str) -> Callable[..., Any]:
    """Find the function of a command, by its first word."""
    module = f"aam.commands.{MODULES.get(name)}"
    if name in NETWORK_COMMANDS:
        module = f"aam.network.{NETWORK_MODULES[name]}"
    if name in STACK_COMMANDS:
        module = f"aam.stack.{name}"
    return cast(Callable[..., Any], getattr(import_module(module), f"run_{name}"))
