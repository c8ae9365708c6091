"""Meta-analysis of scores over studies: random-effects mean, prediction interval, heterogeneity.

Leave-one-study-out gives a model a score in each study. The mean of these scores, with its
interval, estimates the score in a new study, and the prediction interval is the range expected for
the next study. Samples are only compared within a study; scores are never pooled over studies.

The studies i = 1..K have scores y_i on a scale with nearly normal errors (AUC: logit, Snell et al.
2018, 10.1177/0962280217705678), sampling variances v_i, and a standard deviation tau between
studies. With w_i = 1 / (v_i + tau²) and the mean m = sum w_i y_i / sum w_i, Hartung and Knapp
(2001, 10.1002/sim.1009) scale the variance 1 / sum w_i by

    q = sum w_i (y_i - m)² / (K - 1)

and take quantiles of t with K - 1 degrees of freedom. A handful of studies determines neither tau
nor q: the interval of three studies is useless, and prediction intervals are far too narrow (van
Leeuwen et al. 2025, 10.1002/sim.70011). Both are combined with the spread of published models, as
gene-wise variances are shrunk to a common one (Smyth 2004, 10.2202/1544-6115.1027). The mean tau_0²
of published models counts as a variance with d degrees of freedom:

    tau² = (d tau_0² + (K - 1) T²) / (d + K - 1),    T² by DerSimonian and Laird (1986)
    q = (d + sum w_i (y_i - m)²) / (d + K - 1)
    mean: m ± h,    h = t sqrt(q / sum w_i),    t with d + K - 1 degrees of freedom
    next study: m ± sqrt(h² + t² q tau²)

d = 0 is the method of Hartung and Knapp. T² takes the variances of AUCs at the mean AUC: variances
at each study's own AUC grow with it on the logit scale and hide some of the spread. The interval of
the mean is never shorter than the fixed-effect interval, m ± 1.96 / sqrt(sum 1 / v_i).
`docs/experiments/studies.md` has the coverage of both intervals.

K studies, M samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, t

from aam.arrays import F64
from aam.evaluation.intervals import (
    LEVEL,
    NO_SKILL,
    ResampledMetrics,
    Score,
    Units,
    jackknife_error,
    jackknife_interval,
    resample_metrics,
    scored_metrics,
)
from aam.evaluation.metrics import (
    ERROR,
    LOGARITHM,
    METRICS,
    PROPORTION,
    ResampledMetric,
    Scale,
    ScoredPredictions,
)
from aam.evaluation.splits import MIN_UNITS

MIN_SUMMARISED = 3
"""Fewest studies with a summary; for two, only the prior would determine the spread."""


@dataclass(frozen=True)
class Spread:
    """Distribution of the standard deviation tau between studies over many models."""

    tau: float  # root of the mean of tau²
    # degrees of freedom d of a variance as uncertain as tau²: 2 (E tau²)² / var tau²
    degrees: float


AUC_SPREAD = Spread(tau=0.7, degrees=2.0)
"""Spread of logits of AUCs: 0.82 over 26 comparisons of cases and controls in eight diseases of the
gut microbiome (Duvallet et al. 2017, 10.1038/s41467-017-01973-8; 0.0 to 1.8 in single diseases),
0.0 to 0.5 for models of one study of colorectal cancer in four others (Wirbel et al. 2019,
10.1038/s41591-019-0406-6). With 2 degrees of freedom it is hardly more informative than a
half-normal distribution fitted to both, with scale 0.89 (`benchmarks/studies_intervals.py
--prior`)."""

SQUARES_SPREAD = Spread(tau=0.5, degrees=1.0)
"""Spread of log odds and log squared errors, for which nothing is published: half-normal with scale
0.5, the weakly informative distribution of Röver et al. (2021, 10.1002/jrsm.1475)."""

_ERRORS_SPREAD = Spread(SQUARES_SPREAD.tau / 2, SQUARES_SPREAD.degrees)
"""Spread of log absolute errors, half the log squared errors."""

_LEAST_VARIANCE = 1e-9
"""Least sampling variance of a score, such as R² if all errors are equal."""

POOLED: dict[str, tuple[Scale, str, Spread]] = {
    name: (LOGARITHM, LOGARITHM.name, _ERRORS_SPREAD)
    if metric.scale is ERROR
    else (metric.scale, metric.scale.name.format(title=metric.title), SQUARES_SPREAD)
    for name, metric in METRICS.items()
    if metric.resampled
}
"""Scale on which the scores of studies are averaged, its name, and the prior spread."""


@dataclass(frozen=True)
class RandomEffects:
    """Mean of the scores of several studies on their scale, see the module."""

    mean: float
    half: float  # half width of the interval of the mean
    next_half: float  # half width of the prediction interval of the next study
    tau: float  # standard deviation between studies
    i2: float  # I², share of the variance between studies (Higgins and Thompson 2002)


def random_effects(
    value_K: F64, variance_K: F64, spread: Spread, typical_K: F64 | None = None
) -> RandomEffects:
    """Compute the random-effects mean of K scores, at least two, on a scale with normal errors.

    The spread uses `typical_K`, variances that do not depend on the score of the study; the default
    is `variance_K`.

    >>> pooled = random_effects(np.array([0.8, 1.2, 1.3]), np.full(3, 0.09), Spread(0.3, 6.0))
    >>> round(pooled.mean, 2), round(pooled.half, 2), round(pooled.next_half, 2)
    (1.1, 0.49, 0.74)
    """
    number, d = len(value_K), spread.degrees
    variance_K = variance_K.clip(min=_LEAST_VARIANCE)
    fixed_K = 1 / (variance_K if typical_K is None else typical_K)
    common = float(np.average(value_K, weights=fixed_K))
    cochran_q = float(fixed_K @ np.square(value_K - common))
    excess = max(cochran_q - (number - 1), 0.0)
    moment = excess / float(fixed_K.sum() - np.square(fixed_K).sum() / fixed_K.sum())
    tau2 = (d * spread.tau**2 + (number - 1) * moment) / (d + number - 1)
    weight_K = 1 / (variance_K + tau2)
    total = float(weight_K.sum())
    mean = float(weight_K @ value_K) / total
    factor = (d + float(weight_K @ np.square(value_K - mean))) / (d + number - 1)
    quantile = float(t.ppf((1 + LEVEL) / 2, d + number - 1))
    fixed_half = float(norm.ppf((1 + LEVEL) / 2)) / math.sqrt(float(fixed_K.sum()))
    half = max(quantile * math.sqrt(factor / total), fixed_half)
    next_half = math.hypot(half, quantile * math.sqrt(factor * tau2))
    i2 = excess / cochran_q if excess else 0.0
    return RandomEffects(mean, half, next_half, math.sqrt(tau2), i2)


@dataclass(frozen=True)
class StudyScore:
    """Scores of a model on the samples of a study to which it was not fitted."""

    study: str
    samples: int
    units: int  # subjects, or samples without subjects
    metrics: dict[str, Score]  # with intervals over the units of the study
    # mean label and mean prediction: numbers, ranks, or the share of the second of two classes;
    # None with more classes
    actual_mean: float | None
    predicted_mean: float | None
    better: bool  # whether the interval of the first metric is above the baseline
    left_out: str = ""  # why the summary leaves the study out; "" if it includes the study
    constant: bool = False  # whether all samples have the same prediction


@dataclass(frozen=True)
class StudySummary:
    """Summary of a metric over studies: values of the metric, and `tau` on the scale."""

    metric: str
    scale: str  # name of the scale on which the scores are averaged
    studies: int
    value: float  # random-effects mean
    lower: float
    upper: float
    next_lower: float  # prediction interval of the next study
    next_upper: float
    tau: float  # standard deviation between studies
    i2: float  # share of the variance between studies


@dataclass(frozen=True)
class MetricsOverStudies(ResampledMetrics):
    """Metrics of a model on several studies: summaries over studies, differences within each."""

    def score(self) -> dict[str, Score]:
        """Return the summary of each metric; `Score(None)` without a summary."""
        scores = {}
        for name in self.values:
            summary = summarise(name, [*self.studies.values()])
            if summary is None:
                scores[name] = Score(None)
            elif {study.values[name] for study in self.studies.values()} == {NO_SKILL.get(name)}:
                scores[name] = Score(summary.value)  # a constant prediction, without skill anywhere
            else:
                scores[name] = Score(summary.value, summary.lower, summary.upper)
        return scores

    def equals(self, reference: ResampledMetrics) -> bool:
        """Return whether the first metric equals the reference's in each study."""
        return all(model.equals(reference.studies[name]) for name, model in self.studies.items())

    def paired_difference(self, reference: ResampledMetrics) -> tuple[str, Score]:
        """Return the name of the first metric, and its mean difference over studies."""
        name = next(iter(self.values))
        differences = [
            model.values[name] - reference.studies[study].values[name]
            for study, model in self.studies.items()
        ]
        difference_K = np.array([value for value in differences if not math.isnan(value)])
        number = len(difference_K)
        if not number:
            return name, Score(None)
        mean = float(difference_K.mean())
        if number < MIN_SUMMARISED:
            return name, Score(mean)
        # The jackknife interval of a mean is its t interval.
        without_K = (difference_K.sum() - difference_K) / (number - 1)
        return name, jackknife_interval(mean, without_K, number)


def resample(
    scored: ScoredPredictions,
    groups_M: npt.NDArray[Any],
    metrics: Mapping[str, ResampledMetric] | None = None,
) -> ResampledMetrics:
    """Compute metrics for intervals over groups: on all samples, or within each study."""
    units = Units.of(groups_M)
    if not scored.studies:
        return resample_metrics(scored, units, metrics)
    metrics = metrics or scored_metrics(scored)
    studies = {
        study: resample_metrics(study_scored, Units.of(groups_M[rows]), metrics)
        for study, (rows, study_scored) in scored.by_study.items()
    }
    values = {name: scored.value(metric) for name, metric in metrics.items()}
    return MetricsOverStudies(scored, units, values, {}, studies)


@dataclass(frozen=True)
class StudyScores:
    """Scores of a model in each study, fitted to the other studies, and their summaries."""

    column: str  # metadata column with the studies
    studies: list[StudyScore]
    better: int  # number of studies in which the model is significantly better than the baseline
    # metric -> summary, the verdict's metric first; empty with fewer than three studies
    summaries: dict[str, StudySummary]

    @classmethod
    def of(cls, column: str, model: ResampledMetrics) -> StudyScores:
        """Score a model in each study of its predictions, and summarise the scores."""
        studies = [score_study(name, metrics) for name, metrics in model.studies.items()]
        summaries = {
            name: summary
            for name in model.values
            if (summary := summarise(name, [*model.studies.values()])) is not None
        }
        return cls(column, studies, sum(study.better for study in studies), summaries)


def score_study(name: str, model: ResampledMetrics) -> StudyScore:
    """Score a model on the samples of a study, with intervals over its units."""
    metrics = model.score()
    first, units = next(iter(metrics)), model.units.number
    lower = metrics[first].lower
    left_out = ""
    if len(np.unique(model.scored.actual)) < 2:
        left_out = "one class" if model.scored.classes else "one value"
    elif lower is None:
        left_out = f"fewer than {MIN_UNITS} samples or subjects"
        left_out += " in two classes" if first == "auc" else ""
    better = lower is not None and lower > NO_SKILL[first]
    scored = model.scored
    means: tuple[float | None, float | None] = (None, None)
    if scored.type != "classification":
        means = float(scored.actual.mean()), float(scored.predicted.mean())
    elif len(scored.classes) == 2 and scored.probabilities is not None:
        means = float(scored.actual.mean()), float(scored.probabilities[:, 1].mean())
    number, constant = len(scored.actual), scored.is_constant
    return StudyScore(name, number, units, metrics, *means, better, left_out, constant)


def summarise(metric: str, studies: Sequence[ResampledMetrics]) -> StudySummary | None:
    """Summarise a metric over the studies in which it has an interval; None with too few."""
    scale, name, spread = POOLED[metric]
    included = [model for model in studies if len(model.replicates[metric])]
    if metric == "auc" and all(len(model.scored.classes) == 2 for model in included):
        values, variances, typical = _logits_of_auc(included)
        spread = AUC_SPREAD
    else:
        values, variances = on_scale(metric, included)
        typical = variances
    if len(values) < MIN_SUMMARISED:
        return None
    pooled = random_effects(values, variances, spread, typical)
    half, next_half = pooled.half, pooled.next_half
    offsets = np.array([0, -half, half, -next_half, next_half])
    value, lower, upper, next_lower, next_upper = scale.inverse(pooled.mean + offsets).tolist()
    return StudySummary(
        metric,
        name,
        len(values),
        value,
        lower,
        upper,
        next_lower,
        next_upper,
        pooled.tau,
        pooled.i2,
    )


def _logits_of_auc(studies: Sequence[ResampledMetrics]) -> tuple[F64, F64, F64]:
    """Return logits of AUCs of two classes, their variances, and the variances at the mean AUC."""
    auc_K = np.array([model.values["auc"] for model in studies])
    # Units are counted: several samples of a subject are no more evidence than one.
    counts_2K = np.array(
        [
            [len(np.unique(model.units.unit_M[model.scored.actual == code])) for model in studies]
            for code in (1, 0)
        ]
    )
    # Half a pair away from 0 and 1, where the logit is infinite.
    least_K = 0.5 / counts_2K.prod(axis=0)
    auc_K = auc_K.clip(least_K, 1 - least_K)
    weight_K = counts_2K.prod(axis=0) / counts_2K.sum(axis=0)
    mean_K = np.full_like(auc_K, weight_K @ auc_K / max(weight_K.sum(), 1))
    own_K, typical_K = (auc_variance(at_K, *counts_2K) for at_K in (auc_K, mean_K))
    return PROPORTION.forward(auc_K), own_K, typical_K


def auc_variance(auc_K: F64, positive_K: F64, negative_K: F64) -> F64:
    """Compute the variance of the logit of an AUC from the class sizes.

    Hanley and McNeil (1982, 10.1148/radiology.143.1.7063747), with exponential scores.
    """
    product_K = auc_K * (1 - auc_K)
    first_K, second_K = auc_K / (2 - auc_K) - auc_K**2, 2 * auc_K**2 / (1 + auc_K) - auc_K**2
    pairs_K = product_K + (positive_K - 1) * first_K + (negative_K - 1) * second_K
    variance_K: F64 = pairs_K / (positive_K * negative_K) / product_K**2
    return variance_K


def on_scale(metric: str, studies: Sequence[ResampledMetrics]) -> tuple[F64, F64]:
    """Return the scores of studies on the scale of the metric, and their jackknife variances.

    A score without a finite variance, such as an error of 0, is left out.
    """
    scale, _, _ = POOLED[metric]
    pairs = []
    for model in studies:
        value, error = model.values[metric], jackknife_error(model.replicates[metric])
        if metric in ("auc", "accuracy"):
            # Half a unit away from 0 and 1, where the logit is infinite.
            limit = 0.5 / model.units.number
            value = min(max(value, limit), 1 - limit)
            error = max(error, limit)
        if scale.low < value < scale.high and math.isfinite(error):
            pairs.append((float(scale.forward(np.array(value))), error * scale.slope(value)))
    value_K, error_K = np.array(pairs).reshape(-1, 2).T
    return value_K, np.square(error_K)
