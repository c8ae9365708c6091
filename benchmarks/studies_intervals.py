"""Coverage of the summary over studies and of the next study, by simulation.

    nice python benchmarks/studies_intervals.py --replicates 1000 [--settings auc-0.75 r2]

A setting draws 3, 5 or 10 studies and the next one. `auc-A` is a score of two classes with normal
values, an AUC of A in the mean of the logits, and the spread of AUCs between studies of van Leeuwen
et al. (2025): log-normal with mean 0.055 and standard deviation 0.015; then none, and 0.1. `r2` and
`mae` are numbers with normal errors, whose logarithm of the mean squared error has a half-normal
spread with scale 0.5; then none, and 1. Each class of a study has 8 to 60 samples, a study of
numbers 12 to 100 (log-uniform). Prints how often the 95 % interval of the mean has the true one,
and the prediction interval the true score of the next study, with mean widths: by
`aam.evaluation.meta_analysis`, and by Hartung and Knapp with tau of DerSimonian and Laird and
variances of each study. With 1,000 replicates a rate of 95 % has a standard error of 0.7 %.

"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm

from aam.arrays import F64
from aam.evaluation.intervals import SCORED, ResampledMetrics, units_of
from aam.evaluation.meta_analysis import POOLED, Spread, on_scale, random_effects, summarise
from aam.evaluation.metrics import PROPORTION, ScoredPredictions, value_of

STUDIES = (3, 5, 10)
SPREADS = ("published", "none", "large")
SETTINGS = ("auc-0.6", "auc-0.75", "auc-0.9", "r2", "mae")


class Coverage(NamedTuple):
    """Rates of the replicates whose interval has the truth, and mean widths of the intervals."""

    summary: float
    summary_width: float
    following: float
    following_width: float


def main() -> None:
    """Simulate the settings, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    arguments = parser.parse_args()
    heads = "mean | width | next study | width"
    print(f"| setting | spread | studies | {heads} | HK: {heads} |\n|{'---|' * 11}")
    for setting in arguments.settings:
        for spread in SPREADS:
            for number in STUDIES:
                rates = coverage(setting, spread, number, arguments.replicates)
                shown = " | ".join(f"{rate:.2f}" for row in rates for rate in row)
                print(f"| {setting} | {spread} | {number} | {shown} |", flush=True)


def coverage(setting: str, spread: str, number: int, replicates: int) -> tuple[Coverage, Coverage]:
    """Simulate a setting; the draws depend on its name alone.

    Returns:
        Rates by `aam.evaluation.meta_analysis`, and by Hartung and Knapp.
    """
    rng = np.random.default_rng(zlib.crc32(f"{setting} {spread} {number}".encode()))
    metric = setting.partition("-")[0]
    draw: Callable[[float], ScoredPredictions]
    if metric == "auc":
        mean = logit(float(setting.partition("-")[2]))
        slope = PROPORTION.slope(expit(mean))
        draw = lambda value: _classes(value, rng)  # noqa: E731
    else:
        mean, slope = np.log(0.5), 1.0
        draw = lambda value: _numbers(value, rng)  # noqa: E731
    rows: list[tuple[list[float], list[float]]] = []
    for _ in range(replicates):
        value_K = mean + slope * _tau(metric, spread, rng) * rng.normal(size=number + 1)
        models = [_resampled(metric, draw(value)) for value in value_K[:-1].tolist()]
        summary = summarise(metric, models)
        assert summary is not None
        truth = [_metric(metric, value) for value in (mean, value_K[-1])]
        ours = [summary.lower, summary.upper, summary.next_lower, summary.next_upper]
        rows.append((_rates(ours, truth), _rates(_hartung_knapp(metric, models), truth)))
    first, second = np.mean(rows, axis=0)
    return Coverage(*first), Coverage(*second)


def _resampled(metric: str, scored: ScoredPredictions) -> ResampledMetrics:
    """Compute a metric alone, without each sample: the others take most of the time."""
    units, function = units_of(np.arange(len(scored.actual))), SCORED[scored.type][metric]
    replicates = {metric: units.replicates(partial(function, scored))}
    return ResampledMetrics(scored, units, {metric: value_of(function, scored)}, replicates)


def _tau(metric: str, spread: str, rng: np.random.Generator) -> float:
    """Draw the standard deviation between studies, of AUCs or of logarithms."""
    if spread == "none":
        return 0.0
    if spread == "large":
        return 0.1 if metric == "auc" else 1.0
    if metric == "auc":
        variance = np.log1p((0.015 / 0.055) ** 2)
        return float(rng.lognormal(np.log(0.055) - variance / 2, np.sqrt(variance)))
    return float(abs(rng.normal(scale=0.5)))


def _size(low: int, high: int, rng: np.random.Generator) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def _classes(value: float, rng: np.random.Generator) -> ScoredPredictions:
    """Draw a study of two classes with normal scores, whose AUC has a given logit."""
    codes = np.repeat([0, 1], [_size(8, 60, rng), _size(8, 60, rng)])
    separation = np.sqrt(2) * norm.ppf(expit(value))
    chance = expit(codes * separation + rng.normal(size=len(codes)))
    chances = np.stack([1 - chance, chance], axis=1)
    return ScoredPredictions(codes, chances.argmax(axis=1), (), ("no", "yes"), chances)


def _numbers(value: float, rng: np.random.Generator) -> ScoredPredictions:
    """Draw a study of standard normal numbers, with a given logarithm of the squared error."""
    actual = rng.normal(size=_size(12, 100, rng))
    errors = rng.normal(size=len(actual)) * np.exp(value / 2)
    return ScoredPredictions(actual, actual + errors)


def _metric(metric: str, value: float) -> float:
    """Return the true score of the parameter of a study."""
    if metric == "auc":
        return float(expit(value))
    return float(1 - np.exp(value) if metric == "r2" else np.sqrt(2 / np.pi) * np.exp(value / 2))


def _rates(limits: list[float], truth: list[float]) -> list[float]:
    rates = []
    for (low, high), value in zip((limits[:2], limits[2:]), truth, strict=True):
        low, high = min(low, high), max(low, high)
        rates += [float(low <= value <= high), high - low]
    return rates


def _hartung_knapp(metric: str, models: list[ResampledMetrics]) -> list[float]:
    """Return both intervals with tau of DerSimonian and Laird, and no prior."""
    scale, _, _ = POOLED[metric]
    value_K, variance_K = on_scale(metric, models)
    found = random_effects(value_K, variance_K, Spread(0.0, 0.0))
    ends: F64 = scale.inverse(
        found.mean + np.array([-found.half, found.half, -found.next_half, found.next_half])
    )
    return [float(end) for end in ends]


if __name__ == "__main__":
    main()
