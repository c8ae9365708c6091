"""Masking: random choice of the nucleotides that are hidden from the encoder."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Strategy = Literal["random", "span"]
SPAN_LENGTHS = (3, 4, 5)
BASE_TOKENS = (1, 4)
"""First and last token of a base (A to T); no other token is masked or predicted."""


def choose_masked(
    tokens_UL: npt.NDArray[np.uint8], ratio: float, strategy: Strategy, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Choose nucleotides to mask.

    Args:
        tokens_UL: tokens; only A, C, G and T are masked.
        ratio: expected fraction of nucleotides masked, 0 to below 1.
        strategy: single nucleotides, or spans of 3 to 5 neighbours.
        rng: random numbers.

    Returns:
        bool [U, L], True where masked.
    """
    shape = tokens_UL.shape
    if strategy == "random":
        chosen = rng.random(shape, dtype=np.float32) < ratio
    else:
        chosen = np.zeros(shape, dtype=np.bool_)
        # Spans may overlap, so each length leaves this fraction of the nucleotides unmasked.
        kept = (1 - ratio) ** (1 / len(SPAN_LENGTHS))
        for length in SPAN_LENGTHS:
            starts = rng.random(shape, dtype=np.float32) < 1 - kept ** (1 / length)
            for shift in range(length):
                chosen[:, shift:] |= starts[:, : shape[1] - shift]
    low, high = BASE_TOKENS
    return chosen & (tokens_UL >= low) & (tokens_UL <= high)
