"""Transforms of a numeric target: fitted on training samples, stored in the checkpoint, undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from aam.contract.errors import DataError
from aam.contract.options.field import ABOVE_ZERO

Kind = Literal["none", "minmax", "zscore", "log-minmax", "log-zscore"]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TargetTransform:
    """`(f(value) - shift) / scale`, where f is log(1 + value) for the log kinds."""

    kind: Kind
    shift: float
    scale: Annotated[float, ABOVE_ZERO]

    def apply(self, values: Values) -> Values:
        """Transform values in the target's units."""
        return (self._warp(values) - self.shift) / self.scale

    def undo(self, values: Values) -> Values:
        """Return transformed values to the target's units."""
        warped = values * self.scale + self.shift
        return np.expm1(warped) if self.kind.startswith("log") else warped

    def _warp(self, values: Values) -> Values:
        return np.log1p(values) if self.kind.startswith("log") else values


def fit_transform(kind: Kind, values: Values) -> TargetTransform:
    """Fit a transform to the training samples' values.

    Raises:
        DataError: a log of a value of -1 or less, or values that are all equal.
    """
    if kind.startswith("log") and values.min() <= -1:
        raise DataError(
            "The target has values that no logarithm takes",
            f"{int((values <= -1).sum())} of -1 or less",
            "choose --target-transform zscore",
        )
    warped = np.log1p(values) if kind.startswith("log") else values
    if np.ptp(warped) == 0:
        raise DataError(
            "The target is the same in all training samples",
            f"{len(values)} times {values[0]:g}",
            "choose another column or split",
        )
    if kind.endswith("zscore"):
        return TargetTransform(kind, float(warped.mean()), float(warped.std()))
    if kind.endswith("minmax"):
        return TargetTransform(kind, float(warped.min()), float(np.ptp(warped)))
    return TargetTransform(kind, 0.0, 1.0)
