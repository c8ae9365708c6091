"""Confidence intervals of scores of held-out predictions, and of paired differences of two models.

The units are groups (infants, studies) with all their samples, or single samples without groups,
because samples of a group are not independent. Intervals use the jackknife: each score is computed
again without one unit at a time. The spread of these values estimates the standard error of any
smooth statistic, whatever the samples of a unit have in common (Efron and Stein 1981; for the AUC
it is nearly the variance by DeLong et al. 1988, with groups by Obuchowski 1997). A t quantile
allows for few units. Bootstrap percentiles, the usual alternative, are too narrow with few units,
by sqrt((I - 1) / I) and by the missing t, and depend on the seed: `docs/experiments/intervals.md`
has the coverage of both.

A paired difference leaves the same units out of both models.

M held-out samples, I units, Z replicates, each without one unit or block of units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property, partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from scipy.stats import t

from aam.arrays import F64, Codes
from aam.contract.options.groups import TargetType
from aam.evaluation.metrics import (
    ERROR,
    LINEAR,
    METRICS,
    ResampledMetric,
    Scale,
    ScoredPredictions,
    mcfadden_r2,
    metric_text,
)
from aam.evaluation.splits import MIN_UNITS

LEVEL = 0.95
"""Level of the confidence intervals."""

_MAX_REPLICATES = 200
"""Most blocks of units that are left out; their t quantile is within 1 % of the normal quantile."""

_BLOCK = 2**20
"""Replicates times samples that are scored at once, 8 MiB for each array."""

NO_SKILL = {name: m.no_skill for name, m in METRICS.items() if m.no_skill is not None}
"""Metrics that compare models, with their values for predictions without information."""

TITLES = {name: metric.title for name, metric in METRICS.items()}
"""Names of the metrics in sentences."""

SCORED: dict[TargetType, dict[str, ResampledMetric]] = {
    target: {
        name: metric.resampled
        for name, metric in sorted(METRICS.items(), key=lambda item: item[0] not in NO_SKILL)
        # The AUC of ordered classes ignores their order.
        if metric.resampled and target in metric.targets
        and not (metric.of_probabilities and target == "ordinal")
    }
    for target in get_args(TargetType)
}  # fmt: skip
"""Metrics with an interval; the first compares models."""

COMPARED = {target: next(iter(metrics.items())) for target, metrics in SCORED.items()}
"""Name and function of the metric that compares models."""


def scored_metrics(scored: ScoredPredictions) -> dict[str, ResampledMetric]:
    """Return the metrics with an interval; the first compares models.

    With several classes in several studies, the log loss compares models: the mean AUC over classes
    in a study depends on the classes that the study has.
    """
    metrics = SCORED[scored.type]
    if scored.studies and len(scored.classes) > 2 and scored.type == "classification":
        return {"mcfadden_r2": mcfadden_r2, **metrics}
    return metrics


@dataclass(frozen=True)
class Score:
    """Value of a metric, or a difference, with its confidence interval.

    `value` is None if the metric is not defined; the limits also with fewer than `MIN_UNITS`.
    """

    value: float | None
    lower: float | None = None
    upper: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval that excludes 0."""
        if self.lower is None or self.upper is None:
            return False
        return self.lower > 0 or self.upper < 0

    @property
    def digits(self) -> int:
        """Decimals that the interval supports: two significant digits of its half width, at most 3.

        >>> [Score(None, *ends).digits for ends in ((0.921, 0.957), (10.1, 14.6), (1.0, 1.0))]
        [3, 1, 3]
        """
        if self.lower is None or self.upper is None or not self.upper > self.lower:
            return 3
        half = (self.upper - self.lower) / 2 * (1 + 1e-9)  # 0.1 by rounding may be a little less
        return min(max(1 - math.floor(math.log10(half)), 0), 3)

    def less(self, other: Score) -> Score:
        """Subtract a score of other samples (Zou and Donner 2008, sim.3095).

        >>> Score(0.8, 0.6, 0.9).less(Score(0.7, 0.5, 0.8)).text()
        '0.10 (-0.12 to 0.32)'
        """
        if self.value is None or other.value is None:
            return Score(None)
        value = self.value - other.value
        if self.lower is None or self.upper is None or other.lower is None or other.upper is None:
            return Score(value)
        down = math.hypot(self.value - self.lower, other.upper - other.value)
        up = math.hypot(self.upper - self.value, other.value - other.lower)
        return Score(value, value - down, value + up)

    def limits(self, name: str = "") -> str:
        """Format the interval; "" without an interval, or if a constant has no width."""
        if self.lower is None or self.upper is None or self.lower == self.upper:
            return ""
        low, high = (metric_text(name, end, self.digits) for end in (self.lower, self.upper))
        return f"{low} to {high}"

    def estimate(self, name: str = "") -> str:
        """Format the value of a metric with the digits that its interval supports."""
        return metric_text(name, self.value, self.digits)

    def text(self, name: str = "") -> str:
        """Format the value of a metric and its interval with the digits that this supports.

        >>> Score(0.5123, 0.41, 0.62).text("r2"), Score(0.5123).text()
        ('0.51 (0.41 to 0.62)', '0.512')
        """
        limits = self.limits(name)
        return self.estimate(name) + (f" ({limits})" if limits else "")


def jackknife_interval(
    value: float, replicates_Z: F64, effective: float, scale: Scale = LINEAR, units: int = 0
) -> Score:
    """Compute the jackknife t interval of a statistic on a scale.

    `replicates_Z` are its values without each unit; without them there is no interval. `effective`
    is the effective number of units (`Units.effective`), `units` the number of units that agree if
    the value is an end of the scale.
    """
    if math.isnan(value):
        return Score(None)
    # Without one unit the statistic may be undefined (the AUC, if one unit has all of a class). An
    # error of exactly 0 gives no scale for a limit.
    if not len(replicates_Z) or np.isnan(replicates_Z).any() or (scale is ERROR and value == 0):
        return Score(value)
    if value in (scale.low, scale.high):
        # The units do not differ. The limit is the exact limit of an event that occurred in all
        # units (Clopper and Pearson 1934).
        bound = ((1 - LEVEL) / 2) ** (1 / units)
        ends = (bound, 1.0) if value == scale.high else (scale.low, scale.low + 1 - bound)
        return Score(value, *ends)
    error = jackknife_error(replicates_Z)
    # Less than one degree of freedom would give intervals over several orders of magnitude.
    half = float(t.ppf((1 + LEVEL) / 2, max(effective - 1, 1))) * error * scale.slope(value)
    middle = scale.forward(np.array(value))
    limits = scale.inverse(np.stack([middle - half, middle + half]))
    return Score(value, *limits.tolist()) if np.isfinite(limits).all() else Score(value)


def jackknife_error(replicates_Z: F64) -> float:
    """Compute the jackknife standard error of a statistic from its values without each unit."""
    number = len(replicates_Z)
    deviation_Z = replicates_Z - replicates_Z.mean()
    return math.sqrt((number - 1) / number * float(deviation_Z @ deviation_Z))


@dataclass(frozen=True)
class Units:
    """Jackknife units of the M held-out samples, left out in turn."""

    unit_M: Codes  # number of the unit of each sample, from 0
    block_I: Codes  # block of each unit, left out as a whole; few units are blocks themselves

    @classmethod
    def of(cls, groups: npt.NDArray[Any]) -> Units:
        """Number the units of M samples by the names of their groups, in any order.

        More than 200 units are divided at random into 200 blocks: the standard error stays unbiased
        (Shao and Tu 1995, section 2.3).
        """
        names, unit_M = np.unique(groups, return_inverse=True)
        block_I = np.arange(len(names))
        if len(names) > _MAX_REPLICATES:
            block_I = np.random.default_rng(0).permutation(len(names)) % _MAX_REPLICATES
        return cls(unit_M.astype(np.int64), block_I)

    @property
    def number(self) -> int:
        """Number of units I."""
        return len(self.block_I)

    @cached_property
    def effective(self) -> float:
        """Effective number of blocks, (sum of sizes)² / sum of their squares (Kish 1965).

        With units of unequal size, the few large units decide the standard error and its precision
        (Carter, Schnepel and Steigerwald 2017).
        """
        size_Z = np.bincount(self.block_I[self.unit_M]).astype(np.float64)
        return float(size_Z.sum() ** 2 / np.square(size_Z).sum())

    def weights(self) -> Iterator[F64]:
        """Yield the weights of the samples in each replicate, [Z, M]; nothing with few units."""
        if self.number < MIN_UNITS:
            return
        block_M = self.block_I[self.unit_M]
        blocks = int(self.block_I.max()) + 1
        step = max(1, _BLOCK // len(block_M))
        for start in range(0, blocks, step):
            left_out_Z1 = np.arange(start, min(start + step, blocks))[:, None]
            yield (block_M != left_out_Z1).astype(np.float64)

    def replicates(self, statistic: Callable[[F64], F64]) -> F64:
        """Compute a function of weights [Z, M] without each block, [Z]; empty with few units."""
        return np.concatenate([np.empty(0), *map(statistic, self.weights())])


@dataclass(frozen=True)
class ResampledMetrics:
    """Metrics of a model on all samples, and without each block of units."""

    scored: ScoredPredictions  # all samples
    units: Units
    values: dict[str, float]  # metric -> value; NaN if it is not defined
    replicates: dict[str, F64]  # metric -> its values without each block, float64 [Z]
    # study -> metrics on its samples; empty for a single study
    studies: Mapping[str, ResampledMetrics] = field(default_factory=dict)

    @property
    def units_of_rarer_class(self) -> int:
        """Number of units with the rarer of two classes, which limits the precision of an AUC."""
        return _units_of_rarer_class(self.scored, self.units)

    def score(self) -> dict[str, Score]:
        """Return each metric with its interval."""
        return {name: self._score(name) for name in self.values}

    def equals(self, reference: ResampledMetrics) -> bool:
        """Return whether the first metric equals the reference's, also without each block."""
        name = next(iter(self.values))
        same = np.array_equal(self.replicates[name], reference.replicates[name], equal_nan=True)
        return same and self.values[name] == reference.values[name]

    def paired_difference(self, reference: ResampledMetrics) -> tuple[str, Score]:
        """Return the name of the first metric, and its difference from the reference."""
        name = next(iter(self.values))
        value, reference_Z = reference.values[name], reference.replicates[name]
        if value < METRICS[name].scale.high and len(reference_Z) and (reference_Z == value).all():
            # A constant has AUC 0.5 and kappa 0 on any samples: it adds no error.
            limits = (None if end is None else end - value for end in astuple(self._score(name)))
            return name, Score(*limits)
        difference_Z = self.replicates[name] - reference_Z
        difference = self.values[name] - value
        return name, jackknife_interval(difference, difference_Z, self.units.effective)

    def _score(self, name: str) -> Score:
        units = self.units_of_rarer_class if name == "auc" else self.units.number
        scale, effective = METRICS[name].scale, self.units.effective
        return jackknife_interval(self.values[name], self.replicates[name], effective, scale, units)


def resample_metrics(
    scored: ScoredPredictions, units: Units, metrics: Mapping[str, ResampledMetric] | None = None
) -> ResampledMetrics:
    """Compute metrics on all samples, and without each block of units; by default `SCORED`."""
    metrics = SCORED[scored.type] if metrics is None else metrics
    replicates = {
        name: units.replicates(partial(metric, scored)) for name, metric in metrics.items()
    }
    if "auc" in metrics and _units_of_rarer_class(scored, units) < MIN_UNITS:
        replicates["auc"] = np.empty(0)
    values = {name: scored.value(metric) for name, metric in metrics.items()}
    return ResampledMetrics(scored, units, values, replicates)


def _units_of_rarer_class(scored: ScoredPredictions, units: Units) -> int:
    codes = range(len(scored.classes))
    present = [len(np.unique(units.unit_M[scored.actual == code])) for code in codes]
    return sorted([0, *present])[-2]
