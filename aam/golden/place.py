"""Where the case is computed, and with which attention backends."""

from __future__ import annotations

import torch

from aam.contract.precision import Precision, choose_precision
from aam.golden.case import SHAPE
from aam.learn.devices import choose_attention
from aam.model.attention import Backends
from aam.options.commands import GoldenOptions
from aam.options.groups import DeviceOptions
from aam.stack.device import arch_of, choose_device
from aam.stack.guard import GUARD


def on(options: GoldenOptions) -> tuple[torch.device, Precision, Backends]:
    """Return device, precision and backends; a backend is replaced where it cannot run at all.

    Wrong ones are kept: to find them is what the comparison is for.

    Raises:
        UsageError, Unavailable: a device or precision that is not there.
    """
    asked = DeviceOptions(
        device=options.device, attn_implementation=options.attn_implementation, check=False
    )
    device = choose_device(asked)
    precision = choose_precision(options.mixed_precision, arch_of(device))
    return device, precision, choose_attention(asked, device, SHAPE, GUARD, precision).backends
