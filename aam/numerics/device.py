"""The device of a run: its choice, its name and its architecture."""

from __future__ import annotations

import torch

from aam.console import say
from aam.contract.errors import Unavailable
from aam.contract.options.groups import DeviceOptions
from aam.contract.precision import CPU


def choose_device(options: DeviceOptions) -> torch.device:
    """Return the device of the options; of several GPUs the current one of the process.

    Raises:
        Unavailable: a GPU was requested and there is none.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("No GPU", "--device cuda", "use --device auto or cpu")
    there = options.device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Return the name of a device, such as "GPU 0, NVIDIA H200"."""
    if device.type == "cuda":
        return f"GPU {device.index or 0}, {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def print_device(device: torch.device) -> None:
    """Print the device, which is the first line of a log."""
    say(f"Device: {device_name(device)}")


def arch_of(device: torch.device) -> str:
    """Return the architecture of a device, such as gfx942 or sm_90; "cpu" for a CPU."""
    if device.type != "cuda":
        return CPU
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        # Followed by features, as in gfx90a:sramecc+:xnack-.
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"
