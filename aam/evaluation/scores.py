"""Evaluation of an ensemble and its members: the content of `scores.json` in the run folder.

    verdict         whether the ensemble is better than the dummy: {outcome, sentence, metric,
                    model, dummy (values of the metric), difference, lower, upper (the paired
                    interval), p, shufflings (of the permutation test of the ensemble's
                    predictions; null and 0 without one), units}. outcome: "better" where the
                    interval is above 0, the score above that of no skill, and the test significant
                    or missing; "worse" where the interval is below 0; "undecided" without an
                    interval, or where it is above 0 and the test not significant; else "not
                    better", also where repeated subjects that the split divides explain the score
    column, kind    column of the metadata; "regression", "classification" or "ordinal"
    classes         names of the classes, of an ordinal target the lowest first; empty for a number
    part            scored samples: "test" or "validation"
    samples, groups numbers of scored samples, and of groups among them (samples without groups)
    repeats         partitions of the samples into folds; every score is the mean of theirs
    group_column    column of the groups; null without one
    level           of the confidence intervals, which leave out groups in turn
    metric          the metric that compares models: "r2", "auc" or "weighted_kappa"
    weights         {model: {member: weight}, folds: [{member: weight}]} of the ensemble; of the
                    final model, and of each fold, chosen inside its training part
    models          name -> {metrics, cpu_seconds}; the names are "ensemble", the members,
                    and "dummy": the mean or the class frequencies of the training samples.
                    metrics: name -> {value, lower, upper}, each a number or null; metrics without
                    an interval have only a value. cpu_seconds: of members, else null.
                    AUC, Pearson and Spearman compare samples of the same fold alone, see
                    `aam.evaluation.metrics`: the AUC is the fraction of concordant pairs among all
                    pairs of samples of the same fold, so the dummy has 0.5
    differences     [{model, reference, metric, value, lower, upper, beyond_noise, sentence}]:
                    paired, of the ensemble and each member, and of each two members; without
                    pairs of the same score whichever unit is left out, such as an ensemble that
                    is one of its members
    interval        {coverage, half_width, covered}: prediction intervals of a number or a rank,
                    and the fraction of the held-out samples that lie in theirs; null for classes
                    and with too few groups
    calibration     {temperature, log_loss, uncalibrated_log_loss} of the ensemble's probabilities
                    for held-out samples; null for a number
    repeated_samples  {column, groups, metric, given, grouped, lower, upper, better, sentence}: of
                    a column of repeated subjects that the split divides, see `pipeline`: the
                    kernel's score on this split and with the subjects kept together, and whether
                    the latter is better than the dummy by its paired interval; absent without
    inputs          only of models that read metadata columns, see `aam.pipeline.run`: {columns,
                    models, differences, conclusion, counts_add}; the models "metadata alone",
                    "counts alone" and "metadata and counts" have metric -> {value, lower, upper}
    learning_curve  only with a kernel, see the function: {model, metric, units, points,
                    sentence}, scores of kernels fitted to fewer groups; null with few groups
    confounders     [{column, metric, value, lower, upper, other_form}]: other columns of the
                    metadata, or "sequencing depth", that alone predict as well as the ensemble,
                    see `confounding`; the depth, then the best first. other_form: the column
                    determines the target; files of earlier versions have other_units, of numbers
                    alone, or neither
    equal_depth     only with --equal-depth, or where the sequencing depth is such a column: {depth,
                    samples, metric, plain, value, lower, upper, better, confounder, sentence}: the
                    score on rarefied samples, and (plain) that of the same samples with all reads;
                    confounder: whether the depth is such a column

The held-out predictions themselves are in `predictions.tsv`: `fold`, and `predicted`, `lower`,
`upper`, `p_<class>` of the ensemble, and the same columns of each member with the prefix
`<member>_`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from aam.evaluation.calibration import COVERAGE
from aam.evaluation.ensemble import Combined
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import (
    LEVEL,
    MIN_UNITS,
    NO_SKILL,
    SCORED,
    TITLES,
    ResampledMetrics,
    Score,
)
from aam.evaluation.metrics import compute_metrics
from aam.evaluation.permutation import PermutationTest
from aam.number_format import fixed, metric_text

ENSEMBLE, DUMMY = "ensemble", "dummy"

SIGNIFICANT = 0.05
"""Level of the permutation test."""

_GUESSES = {
    "regression": "the mean of the training samples",
    "classification": "the class frequencies of the training samples",
    "ordinal": "the mean rank of the training samples",
}
"""Predictions of the dummy."""


def evaluate(
    column: str,
    folds: Folds,
    combined: Combined,
    seconds: Mapping[str, float],
    test: PermutationTest | None = None,
    repeated: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score the ensemble, its members and the dummy on the held-out samples.

    Args:
        column: metadata column that is predicted.
        folds, combined: labels and splits, and the ensemble of them.
        seconds: CPU-seconds of each member, by name.
        test: permutation test of the same samples; None without one.
        repeated: `repeated_samples` of the content; None without such a column.

    Returns:
        The content of `scores.json`, without `inputs` and `confounders`.
    """
    labels = folds.labels
    drawn = {
        name: folds.drawn(predictions_MC)
        for name, predictions_MC in (
            (ENSEMBLE, combined.predictions_MC),
            *combined.members.items(),
            (DUMMY, folds.dummy_MC),
        )
    }
    models: dict[str, Any] = {}
    for name, model in drawn.items():
        metrics: dict[str, Any] = {
            metric: {"value": value} for metric, value in compute_metrics(model.scored).items()
        }
        del metrics["samples"]
        # Those of `SCORED` have an interval.
        metrics |= {metric: asdict(score) for metric, score in model.score().items()}
        models[name] = {"metrics": metrics, "cpu_seconds": seconds.get(name)}
    known, widths_M = folds.held_out, combined.half_widths_M
    interval, calibration = None, None
    if widths_M is not None and np.isfinite(widths_M).all():
        errors_M = np.abs(combined.predictions_MC[:, 0] - known.values)
        interval = {
            "coverage": COVERAGE,
            "half_width": combined.ensemble.half_width,
            "covered": float((errors_M <= widths_M).mean()),
        }
    if labels.classes:
        codes_M, names = known.values.astype(np.int64), range(len(labels.classes))
        before_MC, after_MC = combined.uncalibrated_MC, combined.predictions_MC
        calibration = {
            "temperature": combined.ensemble.temperature,
            "log_loss": float(log_loss(codes_M, after_MC, labels=names)),
            "uncalibrated_log_loss": float(log_loss(codes_M, before_MC, labels=names)),
        }
    compared = (ENSEMBLE, *combined.members) if len(combined.members) > 1 else ()
    return {
        "verdict": _verdict(column, drawn[ENSEMBLE], drawn[DUMMY], folds, test, repeated),
        **({} if repeated is None else {"repeated_samples": repeated}),
        "column": column,
        "kind": labels.type,
        "classes": list(labels.classes or labels.levels),
        "part": folds.part,
        "samples": len(folds.first.rows_M),
        "repeats": folds.repeats,
        "groups": folds.held_out_units.number,
        "group_column": folds.group_column,
        "level": LEVEL,
        "metric": next(iter(SCORED[labels.type])),
        "weights": {
            "model": dict(combined.ensemble.weights),
            "folds": [dict(weights) for weights in combined.fold_weights],
        },
        "models": models,
        "differences": [
            compare(drawn, model, reference, folds.units)
            for model, reference in itertools.combinations(compared, 2)
            if not drawn[model].equals(drawn[reference])
        ],
        "interval": interval,
        "calibration": calibration,
    }


def _verdict(
    column: str,
    model: ResampledMetrics,
    dummy: ResampledMetrics,
    folds: Folds,
    test: PermutationTest | None,
    repeated: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Decide whether the ensemble is shown to be better than the dummy, and state it."""
    metric, difference = model.paired_difference(dummy)
    value, guess = model.whole[metric], dummy.whole[metric]
    lower, upper = difference.lower, difference.upper
    reasons = []
    # An interval is a necessary condition. Few units have none, however small p is: of two studies
    # nobody knows what a third one would say.
    if lower is None or upper is None:
        outcome = "undecided"
    elif upper < 0:
        outcome = "worse"
    elif lower <= 0:
        outcome = "not better"
    # The dummy of folds of other means scores below 0 itself: to be above it is no skill.
    elif value <= NO_SKILL[metric]:
        outcome = "not better"
        reasons.append(f"a score of at most {NO_SKILL[metric]:g} is no skill")
    # The interval takes the models as they are. Those of several folds share training samples, so
    # that scores of random labels vary more than it says; the test allows for that.
    elif test is not None and test.p > SIGNIFICANT:
        outcome = "undecided"
        reasons.append("the interval is above 0, but shuffled labels often do as well")
    else:
        outcome = "better"
    # Interval and test are those of known subjects where the split divides these: the kernel also
    # has to be better with the subjects kept together.
    if outcome == "better" and repeated is not None:
        reason = (
            f"with all samples of a '{repeated['column']}' on one side of the split the kernel "
            f"has {TITLES[metric]} {fixed(repeated['grouped'])}"
        )
        if not repeated["better"]:
            outcome = "not better"
            reason += ", which is not beyond the dummy"
            if repeated["lower"] is not None:
                limits = fixed(repeated["lower"]), fixed(repeated["upper"])
                reason += f" (difference {limits[0]} to {limits[1]})"
            reason += ": the score of this split is that of known samples"
        reasons.append(reason)
    start = {
        "better": f"The model predicts '{column}' better than a dummy",
        "worse": f"The model predicts '{column}' worse than a dummy",
    }.get(outcome, f"The model is not shown to predict '{column}' better than a dummy")
    text = f"{start} ({_GUESSES[folds.labels.type]})"
    if difference.value is None:
        text += f": {TITLES[metric]} is not defined"
    else:
        text += f": {TITLES[metric]} {fixed(value)} against {fixed(guess)}, difference "
        text += f"{fixed(difference.value)} ("
        if lower is not None and upper is not None:
            text += f"{100 * LEVEL:.0f} % {fixed(lower)} to {fixed(upper)}, {folds.units})"
        else:
            text += f"no interval: {folds.units}, at least {MIN_UNITS} are needed"
            text += " in two classes)" if metric == "auc" else ")"
    if test is not None:
        text += f"; p = {test.p:.2g} ({test.shufflings} shufflings of the held-out labels)"
    return {
        "outcome": outcome,
        "sentence": f"{'; '.join([text, *reasons])}.",
        "metric": metric,
        "model": None if math.isnan(value) else value,
        "dummy": None if math.isnan(guess) else guess,
        "difference": difference.value,
        "lower": lower,
        "upper": upper,
        "p": None if test is None else test.p,
        "shufflings": 0 if test is None else test.shufflings,
        "units": folds.units,
    }


def compare(
    drawn: Mapping[str, ResampledMetrics], model: str, reference: str, units: str
) -> dict[str, Any]:
    """Return an entry of `differences`: a model minus a reference, on the same units."""
    metric, difference = drawn[model].paired_difference(drawn[reference])
    return {
        "model": model,
        "reference": reference,
        "metric": metric,
        **asdict(difference),
        "beyond_noise": difference.beyond_noise,
        "sentence": sentence(model, reference, metric, difference, units),
    }


def shown_metrics(metrics: Mapping[str, Mapping[str, float | None]]) -> str:
    """Format the metrics that have an interval, with that of the first, which compares models."""
    parts: list[str] = []
    for name, score in metrics.items():
        if score["value"] is None or "lower" not in score:
            continue
        limits, lower, upper = "", score["lower"], score["upper"]
        if lower is not None and upper is not None and not parts:
            limits = f" ({metric_text(name, lower)} to {metric_text(name, upper)})"
        parts.append(f"{name} {metric_text(name, score['value'])}{limits}")
    return ", ".join(parts)


def sentence(model: str, reference: str, metric: str, difference: Score, units: str) -> str:
    """Describe a paired difference."""
    if difference.value is None:
        return f"{model} and {reference} cannot be compared: {TITLES[metric]} is not defined"
    text = f"{model} is {'ahead of' if difference.value >= 0 else 'behind'} {reference} by "
    text += f"{fixed(abs(difference.value))} {TITLES[metric]}"
    if difference.lower is None or difference.upper is None:
        return f"{text} (no interval: {units})"
    limits = sorted([difference.lower, difference.upper])
    if difference.value < 0:
        limits = [-limits[1], -limits[0]]
    text += f" ({100 * LEVEL:.0f} % {fixed(limits[0])} to {fixed(limits[1])}, {units})"
    return text if difference.beyond_noise else f"{text}; within noise"
