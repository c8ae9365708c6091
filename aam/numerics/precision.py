"""Selection of the training precision by GPU architecture. Pure.

`torch.cuda.is_bf16_supported()` cannot decide this: with ROCm it is true for every GPU, also for
those without bf16.
"""

from __future__ import annotations

import re
from typing import Literal

from aam.contract.errors import UsageError
from aam.contract.options.device import MixedPrecision

Precision = Literal["none", "bf16", "fp16"]

CPU = "cpu"
WITH_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx950", "gfx11", "gfx12")
"""Prefixes of AMD targets with bf16 matrix instructions: MFMA, or WMMA from gfx11 on."""
WITHOUT_BF16 = ("gfx8", "gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c", "gfx10")
FIRST_CUDA_WITH_BF16 = 80
"""Compute capability 8.0, Ampere."""


def has_bf16(arch: str) -> bool | None:
    """Return whether an architecture supports bf16; None for an unknown one.

    Args:
        arch: architecture such as gfx942, sm_90 or cpu.

    >>> has_bf16("gfx942"), has_bf16("sm_75"), has_bf16("gfx9999")
    (True, False, None)
    """
    if arch == CPU or arch.startswith(WITH_BF16):
        return True
    if arch.startswith(WITHOUT_BF16):
        return False
    capability = re.fullmatch(r"sm_(\d+)", arch)
    # None and not False for an unknown architecture: a bf16 that is requested is then not refused.
    return int(capability[1]) >= FIRST_CUDA_WITH_BF16 if capability else None


def choose_precision(requested: MixedPrecision, arch: str) -> Precision:
    """Choose the precision of training.

    'auto' is bf16 on a GPU known to support it, else none: fp16 needs loss scaling and can
    overflow, so it must be requested. A CPU gains nothing from either.

    Args:
        requested: value of --mixed-precision: "auto", "none", "bf16" or "fp16".
        arch: architecture of the device, such as "gfx942", "sm_90" or "cpu".

    Returns:
        "none" (fp32), "bf16" or "fp16".

    Raises:
        UsageError: bf16 on a GPU without it, or fp16 on a CPU.

    >>> choose_precision("auto", "sm_90"), choose_precision("auto", "cpu")
    ('bf16', 'none')
    """
    if requested == "auto":
        # An unknown architecture (None) counts as one without bf16.
        return "bf16" if arch != CPU and has_bf16(arch) else "none"
    if requested == "fp16" and arch == CPU:
        raise UsageError("fp16 needs a GPU", "--mixed-precision fp16", "use bf16 or none on a CPU")
    if requested == "bf16" and has_bf16(arch) is False:
        raise UsageError(
            "This GPU has no bf16", f"--mixed-precision bf16 on {arch}", "use fp16 or none"
        )
    return requested


def dtypes_of(precision: Precision) -> tuple[str, ...]:
    """Return the dtypes of a run; inference after the training uses fp32.

    >>> dtypes_of("bf16")
    ('fp32', 'bf16')
    """
    return ("fp32",) if precision == "none" else ("fp32", precision)
