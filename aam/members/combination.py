"""Combination of members: a weighted mean of their predictions.

The default is the plain mean. `shrunk_weights` are non-negative weights that minimise the squared
error on held-out samples, shrunk to the plain mean; docs/results.md compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from aam.members.base import F64

SHRINKAGE = 0.5
"""Weight of the plain mean in `shrunk_weights`."""


def plain_weights(members: int) -> F64:
    """Return equal weights that sum to 1."""
    return np.full(members, 1 / members)


def shrunk_weights(predictions: Sequence[F64], outputs_MC: F64) -> F64:
    """Return non-negative weights that sum to 1.

    Args:
        predictions: of each member for M held-out samples, [M, C].
        outputs_MC: true numbers, or indicators of the classes.
    """
    fitted, _ = nnls(
        np.stack([member.ravel() for member in predictions], axis=1), outputs_MC.ravel()
    )
    plain = plain_weights(len(predictions))
    if not fitted.any():
        return plain
    shrunk: F64 = SHRINKAGE * plain + (1 - SHRINKAGE) * fitted / fitted.sum()
    return shrunk


def combine(predictions: Sequence[F64], weights: F64) -> F64:
    """Return the weighted mean of the members' predictions [M, C]."""
    mean: F64 = np.tensordot(weights, np.stack(predictions), axes=1)
    return mean
