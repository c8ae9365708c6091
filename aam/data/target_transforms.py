"""Transforms of a numeric target: fitted on training samples, stored in the checkpoint, undone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from aam.contract.errors import DataError, UsageError
from aam.contract.options.commands.train import Train
from aam.contract.options.field import ABOVE_ZERO
from aam.contract.options.training import TransformName

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TransformFunctions:
    """Functions of a transform `(forward(value) - shift) / scale`.

    Attributes:
        fit: maps the forward values of the training samples [N] to (shift, scale).
        forward, inverse: elementwise functions [N] -> [N], inverse to each other.
        slope: elementwise derivative of `inverse`.
        above: exclusive lower bound of the values that `forward` accepts.
    """

    fit: Callable[[Values], tuple[float, float]]
    forward: Callable[[Values], Values] = np.asarray
    inverse: Callable[[Values], Values] = np.asarray
    slope: Callable[[Values], Values] = np.ones_like
    above: float = -math.inf


def _unscaled(values: Values) -> tuple[float, float]:
    return 0.0, 1.0


def _minmax(values: Values) -> tuple[float, float]:
    return float(values.min()), float(np.ptp(values))


def _zscore(values: Values) -> tuple[float, float]:
    return float(values.mean()), float(values.std())


TRANSFORMS: dict[TransformName, TransformFunctions] = {
    "none": TransformFunctions(_unscaled),
    "minmax": TransformFunctions(_minmax),
    "zscore": TransformFunctions(_zscore),
    "log-minmax": TransformFunctions(_minmax, np.log1p, np.expm1, np.exp, above=-1.0),
    "log-zscore": TransformFunctions(_zscore, np.log1p, np.expm1, np.exp, above=-1.0),
}
"""Registry of --target-transform; the option lists the same names (`TransformName`)."""


@dataclass(frozen=True)
class TargetTransform:
    """Fitted transform `(forward(value) - shift) / scale`; `kind` is its name in `TRANSFORMS`."""

    kind: TransformName
    shift: float
    scale: Annotated[float, ABOVE_ZERO]

    def apply(self, values: Values) -> Values:
        """Transform values from the units of the target."""
        return (TRANSFORMS[self.kind].forward(values) - self.shift) / self.scale

    def undo(self, values: Values) -> Values:
        """Transform values back to the units of the target."""
        return TRANSFORMS[self.kind].inverse(values * self.scale + self.shift)


@dataclass(frozen=True)
class OutputRange:
    """Range of the predictions of a number, in its units; None for no limit."""

    lowest: float | None = None
    highest: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest value; infinite without a limit."""
        return (
            -math.inf if self.lowest is None else self.lowest,
            math.inf if self.highest is None else self.highest,
        )

    def clip(self, values: Values) -> Values:
        """Replace values outside the range by its nearest limit."""
        return np.clip(values, *self.limits)

    def check(self, values: Values, column: str) -> None:
        """Refuse a range that the labels of the study contradict.

        Raises:
            UsageError: the lowest value is not below the highest.
            DataError: a label is outside the range.
        """
        low, high = self.limits
        flags = f"--output-min {low:g} --output-max {high:g}"
        if low >= high:
            raise UsageError("The range of the outputs is empty", flags, "give min below max")
        outside = values[(values < low) | (values > high)]
        if len(outside):
            raise DataError(
                f"Values of '{column}' are outside the range of the outputs",
                f"{flags}, {len(outside)} of {len(values)} values, for example {outside[0]:g}",
                "correct the values or the range",
            )


UNLIMITED = OutputRange()


def output_range(options: Train) -> OutputRange:
    """Return the range of --output-min and --output-max, or that of the ranks of --ordinal."""
    if levels := options.target.levels:
        return OutputRange(0.0, len(levels) - 1.0)
    return OutputRange(options.output_min, options.output_max)


@dataclass(frozen=True)
class TargetScale:
    """Scale on which estimators predict a target: its transform without fitted parameters.

    Attributes:
        transform: name of the transform of a numeric target; "none" for class probabilities.
        range: range of the predictions of a numeric target, in its units.
    """

    transform: TransformName = "none"
    range: OutputRange = UNLIMITED

    def forward(self, values: Values) -> Values:
        """Transform values from the units of the target."""
        return TRANSFORMS[self.transform].forward(values)

    def inverse(self, predictions: Values) -> Values:
        """Transform predictions to the units of the target, and clip them to the range."""
        return self.range.clip(TRANSFORMS[self.transform].inverse(predictions))


UNSCALED = TargetScale()


def fit_transform(name: TransformName, values: Values) -> TargetTransform:
    """Fit a transform to the values of the training samples.

    Args:
        name: value of --target-transform, a key of `TRANSFORMS`.
        values: float64 [N], labels of the training samples in the units of the target.

    Returns:
        The transform with its shift and scale.

    Raises:
        DataError: a value is outside the domain of the transform, or all values are equal.

    >>> transform = fit_transform("zscore", np.array([1.0, 3.0]))
    >>> transform.apply(np.array([3.0])).tolist(), transform.undo(np.array([1.0])).tolist()
    ([1.0], [3.0])
    """
    functions = TRANSFORMS[name]
    outside = values <= functions.above
    if outside.any():
        raise DataError(
            f"The target has values for which --target-transform {name} is not defined",
            f"{int(outside.sum())} of {functions.above:g} or less",
            "choose --target-transform zscore",
        )
    forward = functions.forward(values)
    if np.ptp(forward) == 0:
        raise DataError(
            "The target is the same in all training samples",
            f"{len(values)} samples of the split with {values[0]:g}",
            "add samples with other values, or choose other --folds, --seed or --splits",
        )
    return TargetTransform(name, *functions.fit(forward))


def contrasts(classes: int) -> Values:
    """Return the matrix [classes, C] from logits or log probabilities to scores.

    Two classes have one score, the log odds of the second; more have one for each, its log
    probability minus the mean of all.

    >>> (np.log([0.2, 0.8]) @ contrasts(2)).round(3).tolist()
    [1.386]
    """
    if classes == 2:
        return np.array([[-1.0], [1.0]])
    return np.eye(classes) - 1 / classes
