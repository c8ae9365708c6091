"""Parity of two trainings: whether a setting changes more than the rounding of the losses.

The losses of the first steps, with the same seed, show a wrong result before rounding has grown:
fp32 differs by about 2e-7 at step 20, half precision by 1e-3, a gradient scaled by 0.9 by 5e-6 to
9e-3, depending on the learning rate. Rounding then grows tenfold every 25 to 40 steps, and single
steps show nothing. The mean over late steps shows an error that is small in each step but always
leans to one side. Runs from weights moved by 1e-7 show how far rounding alone leads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

WEIGHT_NOISE = 1e-7
"""Relative change of the initial weights of the runs that measure the noise."""
EARLY = 20
"""First steps, whose losses are compared one by one."""
LATE_FRACTION = 1 / 3
"""Part of the steps at the end whose mean is compared."""
LATE_DIFFERENCE = 3e-3
"""Relative difference of the late means that counts, if it is beyond the noise too."""
STANDARD_ERRORS = 4.0
BLOCKS = 5
"""Blocks of late steps from whose means the standard error is computed."""
NOISE_FACTOR = 20.0
"""Factor of the measured early noise that counts as rounding: a kernel rounds in every layer."""


class Parity(Enum):
    """Classes of settings, by what they may change."""

    SAME = "same numbers"
    ROUNDING = "same up to rounding"
    HALF = "same up to half precision"
    OTHER = "another training"


ENVELOPE = {Parity.SAME: 0.0, Parity.ROUNDING: 1e-6, Parity.HALF: 4e-3}
"""Largest relative difference of an early loss; more where the measured noise is larger."""


@dataclass(frozen=True)
class Evidence:
    """Result of a comparison, and the sentence about it."""

    passed: bool
    sentence: str


def compare_early(
    losses: Sequence[float], default: Sequence[float], parity: Parity, noise: float
) -> Evidence:
    """Compare the losses of the first steps one by one.

    Args:
        losses, default: losses of the setting and of the default, from step 0 on.
        parity: change of the losses that the setting may cause.
        noise: largest early difference of the runs with moved weights, or of a repeated run for
            `Parity.SAME`: 0 where the device repeats a run exactly.
    """
    number = min(EARLY, len(losses), len(default))
    bad = next((k for k in range(len(losses)) if not math.isfinite(losses[k])), None)
    if bad is not None:
        return Evidence(False, f"the loss of step {bad} is {losses[bad]}")
    found = early_difference(losses, default)
    bound = max(ENVELOPE[parity], NOISE_FACTOR * noise)
    if parity is Parity.SAME and not bound:
        equal = list(losses[:number]) == list(default[:number])
        return Evidence(
            equal,
            f"the first {number} losses are equal"
            if equal
            else f"the first {number} losses differ by up to {found:.1e}, and should be equal",
        )
    return Evidence(
        found <= bound,
        f"the first {number} losses differ by up to {found:.1e}, limit {bound:.1e}",
    )


def early_difference(losses: Sequence[float], default: Sequence[float]) -> float:
    """Return the largest relative difference of the losses of the first steps.

    >>> round(early_difference([2.0, 1.1], [2.0, 1.0]), 3)
    0.1
    """
    number = min(EARLY, len(losses), len(default))
    one, two = np.array(losses[:number]), np.array(default[:number])
    return float(np.max(np.abs(one - two) / np.maximum(np.abs(two), 1e-12), initial=0.0))


def compare_late(
    losses: Sequence[float], default: Sequence[float], noise: Sequence[Sequence[float]]
) -> Evidence:
    """Compare the mean over the last third of the steps.

    Args:
        losses, default: losses of the setting and of the default, from step 0 on.
        noise: losses of runs of the default from moved weights.
    """
    number = min(len(losses), len(default))
    bad = next((k for k in range(number) if not math.isfinite(losses[k])), None)
    if bad is not None:
        return Evidence(False, f"the loss of step {bad} is {losses[bad]}")
    found, error = late_difference(losses, default)
    band = max((abs(late_difference(run, default)[0]) for run in noise), default=0.0)
    limit = max(LATE_DIFFERENCE, 2 * band)
    # Both bounds: a difference within the noise of training, or within its own error, is none.
    outside = abs(found) > limit and abs(found) > STANDARD_ERRORS * error
    return Evidence(
        not outside,
        f"the mean of the last {late_steps(number)} of {number} losses differs by {found:+.2%} "
        f"(standard error {error:.2%}, limit {limit:.2%}, noise {band:.2%})",
    )


def late_steps(number: int) -> int:
    """Return the number of late steps of a run.

    >>> late_steps(90)
    30
    """
    return max(1, round(LATE_FRACTION * number))


def late_difference(losses: Sequence[float], default: Sequence[float]) -> tuple[float, float]:
    """Return the relative difference of the late means, and its standard error from blocks."""
    number = min(len(losses), len(default))
    late = slice(number - late_steps(number), number)
    one, two = np.array(losses[late]), np.array(default[late])
    # Step by step, since both runs have the same batches. Consecutive losses depend on each other,
    # so the error is that of the means of blocks.
    differences = (one - two) / max(abs(float(two.mean())), 1e-12)
    means = [float(part.mean()) for part in np.array_split(differences, BLOCKS) if len(part)]
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.inf
    return float(differences.mean()), error
