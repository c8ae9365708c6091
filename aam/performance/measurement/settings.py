"""Settings that `aam tune` tries, by subject, and settings that are myths.

To add a subject, write a function and add it to `SUBJECTS` and to `Subject` of
`aam.contract.options.commands.measure`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aam.performance.measurement.device import DeviceFacts
from aam.performance.measurement.parity import Parity

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """A setting to try.

    Attributes:
        label: name of the setting, unique in its subject.
        values: flag or name -> value.
        parity: change of the losses that it may cause.
        reason: reason for which it may be faster.
        redraws: whether it changes what dropout draws; it is then compared without dropout.
    """

    label: str
    values: Values = field(default_factory=dict)
    parity: Parity = Parity.SAME
    reason: str = ""
    redraws: bool = False


Propose = Callable[[Values, DeviceFacts], list[Setting]]
"""Returns settings to try instead of the values of all options, flag -> value, on a device."""


def _option(
    flag: str,
    tried: list[Any],
    now: Values,
    parity: Parity,
    reason: str,
    redraws: bool = False,
) -> list[Setting]:
    return [
        Setting(_label(flag, value), {flag: value}, parity, reason, redraws)
        for value in tried
        if value != now[flag]
    ]


def _label(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    return f"{flag} {value}"


def _threads(now: Values, device: DeviceFacts) -> list[Setting]:
    if device.gpu:
        return []
    current = device.cores if now["--cpu-threads"] == "auto" else now["--cpu-threads"]
    tried = sorted({1, max(1, device.cores // 2), device.cores} - {current})
    why = "small tensors spend time on waiting for all threads"
    return _option("--cpu-threads", tried, now, Parity.ROUNDING, why)


def _workers(now: Values, device: DeviceFacts) -> list[Setting]:
    tried = sorted({0, 1, 2, 4, 8} - {_number_of_workers(now, device)})
    # On a CPU the network uses all cores: more workers would take theirs.
    most = device.cores if device.gpu else min(2, device.cores)
    why = "other processes make the next batches meanwhile"
    return _option("--num-workers", [n for n in tried if n <= most], now, Parity.SAME, why)


def _prefetch(now: Values, device: DeviceFacts) -> list[Setting]:
    tried = [1, 4, 8] if _number_of_workers(now, device) else []
    why = "batches made ahead bridge those that take long to make"
    return _option("--prefetch-factor", tried, now, Parity.SAME, why)


def _number_of_workers(now: Values, device: DeviceFacts) -> int:
    default = min(4, device.cores) if device.gpu else 0
    return default if now["--num-workers"] == "auto" else int(now["--num-workers"])


def _attention(now: Values, device: DeviceFacts) -> list[Setting]:
    tried = ["math", "flash", "mem_efficient"] if device.gpu else ["math", "flash"]
    why = "another kernel may suit the shapes of this study"
    return _option("--attn-implementation", tried, now, Parity.ROUNDING, why)


def _recompute(now: Values, device: DeviceFacts) -> list[Setting]:
    tried = [not now["--gradient-checkpointing"]]
    why = "less memory with recomputation, less time without"
    return _option("--gradient-checkpointing", tried, now, Parity.ROUNDING, why)


def _chunks(now: Values, device: DeviceFacts) -> list[Setting]:
    why = "the activations of a chunk fit into a cache or into less memory"
    return _option("--asv-chunk", [0, 64, 256], now, Parity.ROUNDING, why, redraws=True)


def _compile(now: Values, device: DeviceFacts) -> list[Setting]:
    tried = [] if device.compile_fault else ["auto"]
    why = "fused kernels move less data; the first steps take minutes"
    return _option("--compile-model", tried, now, Parity.ROUNDING, why, redraws=True)


def _precision(now: Values, device: DeviceFacts) -> list[Setting]:
    tried = ["none", "bf16", "fp16"] if device.gpu else ["none", "bf16"]
    why = "matrix products in half precision move half the bytes"
    return _option("--mixed-precision", tried, now, Parity.HALF, why)


def _batch_size(now: Values, device: DeviceFacts) -> list[Setting]:
    size = now["--batch-size"]
    if size == "auto":
        return []
    tried = sorted({max(1, size // 2), 2 * size, 4 * size} - {size})
    why = "another number of samples meets in the distance loss: another training"
    return _option("--batch-size", tried, now, Parity.OTHER, why)


SUBJECTS: dict[str, Propose] = {
    "threads": _threads,
    "workers": _workers,
    "prefetch": _prefetch,
    "attention": _attention,
    "recompute": _recompute,
    "chunks": _chunks,
    "compile": _compile,
    "precision": _precision,
    "batch-size": _batch_size,
}
"""Subject of --subjects -> its settings; `aam tune` goes through them in this order."""


MYTHS: dict[str, dict[str, str]] = {
    "gfx906": {
        "MIOPEN_FIND_ENFORCE=1": "1 is NONE, the default (3 is SEARCH), and it is about "
        "convolutions, which a transformer does not have (ROCm/MIOpen, docs/conceptual/perfdb.rst)",
        "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True": "warns and does nothing below ROCm 7.0 "
        "with PyTorch 2.12",
        "HSA_ENABLE_SDMA=0 for fp16": "moves copies from the DMA engines to the compute units, a "
        "cure for hanging copies; it has nothing to do with fp16",
    },
}
"""Architecture -> settings that are recommended elsewhere and not tried, and what they do.

gfx906 is the MI50."""
