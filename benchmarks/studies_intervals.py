"""Coverage of the summary over studies and of the next study, by simulation.

    nice python benchmarks/studies_intervals.py --replicates 1000 [--settings auc-0.75 r2]
    python benchmarks/studies_intervals.py --prior

A setting draws 3, 5 or 10 studies and the next one. `auc-A` is a score of two classes with normal
values, an AUC of A in the mean of the logits, and a standard deviation of 0, 0.3, 0.6 or 0.8
between the logits of studies. `r2` and `mae` are numbers with normal errors, whose logarithm of the
mean squared error has a half-normal spread with scale 0.5; then none, and 1. Each class of a study
has 8 to 60 samples, a study of numbers 12 to 100 (log-uniform). Prints how often the 95 % interval
of the mean has the true one, and the prediction interval the true score of the next study, with
mean widths: by `aam.evaluation.meta_analysis`, and by Hartung and Knapp with tau of DerSimonian and
Laird and variances of each study. `extreme` repeats the coverage of the next study in replicates
with an AUC of 0, of 1, or below 0.42. With 1,000 replicates a rate of 95 % has a standard error of
0.7 %.

`--prior` estimates the spread between studies of published models.
"""

from __future__ import annotations

import argparse
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit
from scipy.stats import halfnorm, norm

from aam.arrays import F64
from aam.evaluation.intervals import SCORED, ResampledMetrics, Units
from aam.evaluation.meta_analysis import (
    POOLED,
    Spread,
    auc_variance,
    on_scale,
    random_effects,
    summarise,
)
from aam.evaluation.metrics import ScoredPredictions

STUDIES = (3, 5, 10)
SPREADS = {"auc": (0.0, 0.3, 0.6, 0.8), "numbers": ("published", "none", "large")}
SETTINGS = ("auc-0.6", "auc-0.75", "auc-0.9", "r2", "mae")

DISEASES = {
    "diarrhoea": ((0.99, 93, 154), (0.98, 89, 154), (0.91, 25, 25), (0.96, 201, 82)),
    "obesity": (
        (0.67, 185, 428), (0.84, 195, 61), (0.44, 101, 96), (0.49, 37, 26), (0.86, 25, 16),
    ),
    "colorectal cancer": ((0.77, 120, 172), (0.82, 41, 75), (0.9, 44, 54), (0.78, 21, 22)),
    "bowel inflammation": ((0.71, 146, 16), (0.81, 108, 18), (0.84, 66, 24), (0.66, 45, 35)),
    "HIV": ((0.67, 205, 34), (0.92, 23, 13), (0.22, 21, 15)),
    "autism": ((0.39, 59, 44), (0.76, 19, 20)),
    "type 1 diabetes": ((0.71, 57, 55), (0.77, 21, 8)),
    "fatty liver": ((0.68, 16, 22), (0.93, 22, 16)),
}  # fmt: skip
"""AUC, cases and controls of each comparison of Duvallet et al. (2017): final/tables/table1 and
table5 of github.com/cduvallet/microbiomeHD."""

CANCER = {
    "AT": (46, 63, {"CN": 0.789, "DE": 0.607, "FR": 0.788, "US": 0.596}),
    "CN": (74, 54, {"AT": 0.698, "DE": 0.616, "FR": 0.784, "US": 0.718}),
    "DE": (60, 60, {"AT": 0.629, "CN": 0.754, "FR": 0.738, "US": 0.677}),
    "FR": (53, 61, {"AT": 0.726, "CN": 0.794, "DE": 0.641, "US": 0.658}),
    "US": (52, 52, {"AT": 0.608, "CN": 0.663, "DE": 0.583, "FR": 0.618}),
}
"""Cases and controls of each study of Wirbel et al. (2019), and the AUC of its model in the others:
files/genes/ml_results/auroc_values.tsv of github.com/zellerlab/crc_meta."""


class Coverage(NamedTuple):
    """Rates of the replicates whose interval has the truth, and mean widths of the intervals."""

    summary: float
    summary_width: float
    following: float
    following_width: float
    extreme: float


def main() -> None:
    """Simulate the settings, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--prior", action="store_true", help="the spread of published models")
    arguments = parser.parse_args()
    if arguments.prior:
        prior()
        return
    heads = "mean | width | next study | width | extreme"
    print(f"| setting | spread | studies | {heads} | HK: {heads} |\n|{'---|' * 13}")
    for setting in arguments.settings:
        for spread in SPREADS["auc" if setting.startswith("auc") else "numbers"]:
            for number in STUDIES:
                rates = coverage(setting, spread, number, arguments.replicates)
                shown = " | ".join(f"{rate:.2f}" for row in rates for rate in row)
                print(f"| {setting} | {spread} | {number} | {shown} |", flush=True)


def coverage(
    setting: str, spread: str | float, number: int, replicates: int
) -> tuple[Coverage, Coverage]:
    """Simulate a setting; the draws depend on its name alone.

    Returns:
        Rates by `aam.evaluation.meta_analysis`, and by Hartung and Knapp.
    """
    rng = np.random.default_rng(zlib.crc32(f"{setting} {spread} {number}".encode()))
    metric = setting.partition("-")[0]
    draw: Callable[[float], ScoredPredictions]
    if metric == "auc":
        mean = logit(float(setting.partition("-")[2]))
        draw = lambda value: _classes(value, rng)  # noqa: E731
    else:
        mean = np.log(0.5)
        draw = lambda value: _numbers(value, rng)  # noqa: E731
    rows: list[tuple[list[float], ...]] = []
    for _ in range(replicates):
        value_K = mean + _tau(spread, rng) * rng.normal(size=number + 1)
        models = [_resampled(metric, draw(value)) for value in value_K[:-1].tolist()]
        summary = summarise(metric, models)
        assert summary is not None
        truth = [_metric(metric, value) for value in (mean, value_K[-1])]
        ours = [summary.lower, summary.upper, summary.next_lower, summary.next_upper]
        auc_K = np.array([model.values.get("auc", 0.5) for model in models])
        extreme = bool(((auc_K < 0.42) | (auc_K == 1)).any())
        pairs = (_rates(ours, truth), _rates(_hartung_knapp(metric, models), truth))
        rows.append(tuple([*rates, rates[2] if extreme else np.nan] for rates in pairs))
    with warnings.catch_warnings():  # no replicate with an extreme AUC
        warnings.simplefilter("ignore", RuntimeWarning)
        first, second = np.nanmean(rows, axis=0)
    return Coverage(*first), Coverage(*second)


def _resampled(metric: str, scored: ScoredPredictions) -> ResampledMetrics:
    """Compute a metric alone, without each sample: the others take most of the time."""
    units, function = Units.of(np.arange(len(scored.actual))), SCORED[scored.type][metric]
    replicates = {metric: units.replicates(partial(function, scored))}
    return ResampledMetrics(scored, units, {metric: scored.value(function)}, replicates)


def _tau(spread: str | float, rng: np.random.Generator) -> float:
    """Draw the standard deviation between studies, of logits or of logarithms."""
    if isinstance(spread, float):
        return spread
    return {"none": 0.0, "large": 1.0, "published": float(abs(rng.normal(scale=0.5)))}[spread]


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


def prior() -> None:
    """Print the spread between studies of each disease and model, of all, and a fitted prior."""
    tau_T = np.linspace(0.005, 4, 800)
    sources = {name: np.array(rows).T for name, rows in DISEASES.items()}
    for trained, (_, _, auc_of) in CANCER.items():
        rows = [(auc, *CANCER[tested][:2]) for tested, auc in auc_of.items()]
        sources[f"model of {trained}"] = np.array(rows).T
    logs = {name: _restricted(columns, tau_T) for name, columns in sources.items()}
    for name, log_T in logs.items():
        print(f"{name}: {tau_T[log_T.argmax()]:.2f}")
    diseases = np.stack([logs[name] for name in DISEASES])
    print(f"one spread of all diseases: {tau_T[diseases.sum(axis=0).argmax()]:.2f}")
    # The five models of cancer are in the same studies: they count as one disease.
    cancer = np.mean([logs[name] for name in logs if name not in DISEASES], axis=0)
    scale_S = np.linspace(0.1, 3, 291)
    chance_TS = halfnorm.pdf(tau_T[:, None], scale=scale_S) * (tau_T[1] - tau_T[0])
    log_S = np.log(np.exp(np.vstack([diseases, cancer])) @ chance_TS).sum(axis=0)
    inside = scale_S[log_S > log_S.max() - 1.92]
    print(f"half-normal: {scale_S[log_S.argmax()]:.2f} ({inside.min():.2f} to {inside.max():.2f})")


def _restricted(studies_3K: F64, tau_T: F64) -> F64:
    """Return the restricted log-likelihood of spreads, from AUC, cases and controls of studies."""
    value_K, variance_K = logit(studies_3K[0]), auc_variance(*studies_3K)
    weight_TK = 1 / (variance_K + tau_T[:, None] ** 2)
    mean_T1 = (weight_TK @ value_K / weight_TK.sum(axis=1))[:, None]
    squares_TK = weight_TK * np.square(value_K - mean_T1)
    sums_T = np.log(weight_TK).sum(axis=1) - squares_TK.sum(axis=1)
    log_T: F64 = 0.5 * (sums_T - np.log(weight_TK.sum(axis=1)))
    return log_T


if __name__ == "__main__":
    main()
