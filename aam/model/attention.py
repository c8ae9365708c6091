"""The one place where attention is computed, and where its kernel is chosen.

The kernel is chosen inside the function: under gradient checkpointing the recomputation calls the
same function and so runs the same kernel. There is no dropout on attention weights: on the CPU it
would take the slow path, four times slower. Shape suffixes: see `aam.model`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aam.options.groups import AttnImplementation

BACKENDS: dict[str, list[SDPBackend] | None] = {
    "auto": None,
    "sdpa": None,
    "math": [SDPBackend.MATH],
    "mem_efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "flash": [SDPBackend.FLASH_ATTENTION],
}
assert set(BACKENDS) == set(get_args(AttnImplementation))


def runnable(implementation: AttnImplementation, device: torch.device) -> bool:
    """Tell whether a kernel runs on a device at all, with and without a mask."""
    q_NHKE = torch.zeros(2, 1, 8, 16, device=device)
    attend_NK = torch.ones(2, 8, dtype=torch.bool, device=device)
    try:
        for mask_NK in (None, attend_NK):
            attention(q_NHKE, q_NHKE, q_NHKE, mask_NK, implementation)
    except RuntimeError:
        return False
    return True


def attention(
    q_NHKE: Tensor,
    k_NHKE: Tensor,
    v_NHKE: Tensor,
    attend_NK: Tensor | None = None,
    implementation: AttnImplementation = "auto",
) -> Tensor:
    """Scaled dot-product attention of each member of a set to all members.

    Args:
        q_NHKE, k_NHKE, v_NHKE: queries, keys and values.
        attend_NK: True where a member exists; None where all do (a mask is never passed then).
        implementation: kernel; "auto" leaves the choice to torch.

    Returns:
        Tensor [N, H, K, E]; sets without any member give zeros on every torch version.

    Raises:
        RuntimeError: the kernel asked for cannot run on this device, dtype or mask.
    """
    backends = BACKENDS[implementation]
    chosen: Any = nullcontext() if backends is None else sdpa_kernel(backends)
    if attend_NK is None:
        with chosen:
            return F.scaled_dot_product_attention(q_NHKE, k_NHKE, v_NHKE)
    # A row with nothing to attend to is 0/0 in some kernels: let it attend to all, then zero it.
    inhabited_N = attend_NK.any(dim=-1)
    safe_N11K = (attend_NK | ~inhabited_N[:, None])[:, None, None, :]
    with chosen:
        out_NHKE = F.scaled_dot_product_attention(q_NHKE, k_NHKE, v_NHKE, attn_mask=safe_N11K)
    return out_NHKE * inhabited_N[:, None, None, None].to(out_NHKE.dtype)
