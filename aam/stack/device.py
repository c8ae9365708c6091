"""Where to compute."""

from __future__ import annotations

import torch

from aam.errors import Unavailable
from aam.options.groups import DeviceOptions


def choose_device(options: DeviceOptions) -> torch.device:
    """Return the device that the options mean here; of several GPUs the process's current one.

    Raises:
        Unavailable: a GPU was asked for and there is none.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("No GPU", "--device cuda", "use --device auto or cpu")
    there = options.device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu")
