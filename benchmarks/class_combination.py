"""Other rules and kernels for classes than those of `aam train`, on the same predictions.

    OMP_NUM_THREADS=1 nice python -m benchmarks.class_combination DATA RESULTS
        [--compare rules presence] [--tasks TASK ...] [--seeds 1 2 3 4 5]

DATA and RESULTS are those of `benchmarks/members.py`. A variant of a member (`VARIANTS`) is fitted
once for each task and seed; RESULTS keeps its held-out predictions, and those of the training
samples without their group. `rules` compares how kernel and forest are combined, `presence` the
kernel with a kernel of shared presence instead of the Gaussian widths, on all reads and at equal
depth. With `--simulated RUNS` tasks are `SIMULATED`, and seeds the runs.

Prints for each task AUC within folds and log loss, their paired differences from the present rule
with 95 % intervals over groups (AUC of simulated studies: mean of the folds, standard errors over
runs), and the calibration slope; means of the seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import t
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from aam.arrays import F64
from aam.console import as_library
from aam.data.table import auto_depth
from aam.evaluation.calibration import log_losses
from aam.evaluation.ensemble import choose_weights, combine_members, weighted_mean
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.members.forest import Forest
from aam.members.kernel import (
    CLADE_SHARES,
    Kernel,
    KernelInputs,
    KernelModel,
    KernelTerms,
    Landmarks,
    _Gram,
    _grams,
)
from aam.members.kernel_ridge import fit_logistic, fit_ridge, probabilities, product
from aam.members.member import Estimator, TrainingSamples
from aam.members.relations import AsvRelations
from aam.pipeline.run_scores import rarefied
from benchmarks.across_studies import left_out
from benchmarks.class_order import SETTINGS, study
from benchmarks.members import TASKS as ALL_TASKS
from benchmarks.members import (
    Labelled,
    Task,
    cross_validate,
    left_out_predictions,
    load,
    mean_score,
    predictions_file,
    score_predictions,
    shown,
)

TASKS = {
    **{name: ALL_TASKS[name] for name in ("ravel-nugent", "ravel-group")},
    "celiac-active-random": Task("celiac_stool_active", "Diagnosed_Celiac", True),
    "celiac-treated-random": Task("celiac_stool_treated", "Diagnosed_Celiac", True),
    **{name: ALL_TASKS[name] for name in ("ecam-delivery", "ecam-diet")},
    **{name: ALL_TASKS[name] for name in ("celiac-active", "celiac-treated")},
}
SIMULATED = {
    "3 studies": ("3 studies", "--study-column", 1.0),
    "6 studies": ("6 studies", "--study-column", 1.0),
    "60 samples": ("60 samples", "", 0.7),
    "30 subjects": ("30 subjects of one class", "", 0.7),
}
"""Setting of `benchmarks/class_order.py`, option by which it is divided, and signal."""

PRESENCE_SHARES = (0.3, 0.7)
"""Parts of the kernel of shared presence in the variance, beside 0."""


@dataclass(frozen=True)
class Regression(Kernel):
    """The kernel of `aam train`, whose predictions are those of its regression."""

    def fit(self, inputs: KernelInputs, labels: Labels, seed: int) -> Any:
        """Fit the kernel without its logistic regression."""
        model = super().fit(inputs, labels, seed)
        ridge = fit_ridge(model.kernel(inputs), np.arange(len(labels.values)), labels)
        return dataclasses.replace(model, logits=np.empty((0, 0)), left_out_NC=ridge.aligned_NC)

    def left_out(self, model: Any, inputs: KernelInputs, labels: Labels, seed: int) -> F64 | None:
        """Return regressed indicators of the training samples without their group."""
        grouped = len(np.unique(labels.groups)) < len(labels.groups)
        if grouped and labels.several_groups:
            return self.predict_parts(inputs, labels, seed)
        left_out_NC: F64 = model.left_out_NC
        return left_out_NC


@dataclass(frozen=True)
class PresenceModel:
    """Ridge regression on the linear sum and a kernel of shared presence."""

    linear: KernelModel
    fitted: KernelInputs
    scale: float
    left_out_NC: F64

    def predict(self, inputs: KernelInputs) -> F64:
        """Return regressed indicators."""
        kernel_NR = self.linear.kernel(inputs) + self.scale * shared_presence(inputs, self.fitted)
        return product(kernel_NR, self.linear.dual_RC) + self.linear.offset_C


@dataclass(frozen=True)
class Presence(Regression):
    """The best linear sum, with parts of a kernel of shared presence instead of the widths."""

    def fit(self, inputs: KernelInputs, labels: Labels, seed: int) -> Any:
        """Fit the best share of the clades, then of shared presence."""
        rows = np.arange(len(inputs.norms_N))
        sequences, clades, _ = _grams(inputs, rows, None)
        fits = [
            (fit_ridge(sequences.plus(clades, scale).kernel_NR, rows, labels), scale)
            for scale in sequences.scales(clades, CLADE_SHARES)
        ]
        ridge, clade_scale = min(fits, key=lambda fit: fit[0].error)
        counts, presence_scale = sequences.plus(clades, clade_scale), 0.0
        presence = _Gram(shared_presence(inputs, inputs), np.ones(len(rows)))
        for scale in counts.scales(presence, PRESENCE_SHARES):
            fit = fit_ridge(counts.plus(presence, scale).kernel_NR, rows, labels)
            if fit.error < ridge.error:
                ridge, presence_scale = fit, scale**2
        terms = KernelTerms(inputs.dendrogram if clade_scale else None, clade_scale)
        landmarks, none = Landmarks.of(inputs.with_features(terms), rows), np.empty(0)
        linear = KernelModel(landmarks, 0.0, ridge.dual_RC, ridge.offset_C, none, terms, none)
        return PresenceModel(linear, inputs, presence_scale, ridge.aligned_NC)


def shared_presence(one: KernelInputs, two: KernelInputs) -> F64:
    """Return the ASVs that two samples share, relative to the geometric mean of their numbers."""
    one_NF, two_RF = ((inputs.weights > 0).astype(np.float64) for inputs in (one, two))
    one_N, two_R = (np.asarray(present.sum(axis=1)).ravel() for present in (one_NF, two_RF))
    shared_NR: F64 = (one_NF @ two_RF.T).toarray() / np.sqrt(one_N[:, None] * two_R)
    return shared_NR


FOREST, REGRESSION = Forest(n_jobs=1), Regression()
SMALL_FOREST = Forest(60, n_jobs=1)  # of simulated studies that are left out, 300 trees
VARIANTS: dict[str, tuple[Estimator[Any], bool]] = {
    "forest": (FOREST, False),
    "kernel": (Kernel(), False),
    "ridge": (REGRESSION, False),
    "overlap": (Presence(), False),
    "forest-depth": (FOREST, True),
    "ridge-depth": (REGRESSION, True),
    "overlap-depth": (Presence(), True),
}
"""Estimator, and whether it reads tables of equal depth."""

READ = {
    "rules": ("forest", "kernel", "ridge"),
    "presence": ("forest", "ridge", "overlap"),
    "presence-depth": ("forest-depth", "ridge-depth", "overlap-depth"),
}
Arrays = Mapping[str, F64]


def main() -> None:
    """Compute the predictions that are not there, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--compare", nargs="+", default=["rules", "presence"], choices=READ)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--simulated", type=int, default=0, metavar="RUNS")
    arguments = parser.parse_args()
    compared = [name for name in READ if name.split("-")[0] in arguments.compare]
    print("| task | rule | AUC | log loss | slope |\n|---|---|---|---|---|")
    if arguments.simulated:
        for name in SIMULATED:
            print_simulated(name, arguments.simulated, arguments.results)
        return
    for name in arguments.tasks:
        task = TASKS[name]
        labelled = load(task, arguments.data, arguments.results)
        for comparison in compared:
            print_task(name, labelled, comparison, arguments.seeds, arguments.results)


def combine(comparison: str, folds: Folds, arrays: Mapping[str, Arrays]) -> dict[str, F64]:
    """Return the held-out probabilities [M, C] of each rule, the present one first."""
    if comparison == "rules":
        return rules(folds, *arrays.values())
    # The same mean for both kernels, whose order it keeps.
    forest, ridge, overlap = (values["predictions_MC"] for values in arrays.values())
    return {
        "widths": (fractions(ridge) + forest) / 2,
        "presence": (fractions(overlap) + forest) / 2,
        "widths, kernel alone": fractions(ridge),
        "presence, kernel alone": fractions(overlap),
    }


def rules(folds: Folds, forest: Arrays, kernel: Arrays, ridge: Arrays) -> dict[str, F64]:
    """Return the held-out probabilities of the ways to combine forest and kernel."""
    left_out_of = {
        "kernel": left_out_predictions(kernel, folds),
        "forest": left_out_predictions(forest, folds),
    }
    held_out = {"kernel": kernel["predictions_MC"], "forest": forest["predictions_MC"]}
    on_one_scale = held_out | {"kernel": fractions(ridge["predictions_MC"])}
    fractions_of = [
        None if left_out_NC is None else fractions(left_out_NC)
        for left_out_NC in left_out_predictions(ridge, folds)
    ]
    found = {
        "present": combine_members(held_out, folds, left_out_of).predictions_MC,
        "on one scale": combine_members(
            on_one_scale, folds, left_out_of | {"kernel": fractions_of}
        ).predictions_MC,
        "equal parts on one scale": combine_members(on_one_scale, folds).predictions_MC,
    }
    calibrated_MC, stacked_MC = np.empty_like(found["present"]), np.empty_like(found["present"])
    for k, rows in enumerate(folds.fitted_rows[:-1]):
        inside, labels = folds.fold_M == k + 1, folds.labels.training(rows)
        part = {name: predictions_MC[inside] for name, predictions_MC in on_one_scale.items()}
        both = {"kernel": fractions_of[k], "forest": left_out_of["forest"][k]}
        inner = {name: values_NC for name, values_NC in both.items() if values_NC is not None}
        weights = choose_weights(inner, labels)
        logits = fit_logistic(weighted_mean(inner, weights), labels)
        calibrated_MC[inside] = probabilities(weighted_mean(part, weights), logits)
        slopes, logits = fit_stacking(inner, labels)
        stacked_MC[inside] = probabilities(weighted_mean(part, slopes), logits)
    found["on one scale, calibrated on left-out"] = calibrated_MC
    return found | {"stacked": stacked_MC}


def fractions(outputs_NC: F64) -> F64:
    """Clip regressed indicators to probabilities."""
    clipped_NC = outputs_NC.clip(0, 1)
    fractions_NC: F64 = clipped_NC / clipped_NC.sum(axis=1, keepdims=True)
    return fractions_NC


def fit_stacking(inner: Mapping[str, F64], labels: Labels) -> tuple[dict[str, float], F64]:
    """Fit a logistic regression with a slope of at least 0 for each member.

    The squared differences of the standardised slopes from their mean are the penalty. Returns the
    slopes, and logits for the sum that they weigh.
    """
    present, codes_N = np.unique(labels.values.astype(np.int64), return_inverse=True)
    weights_N, rows, members = labels.weights_N, np.arange(len(codes_N)), len(inner)
    deviations = [np.sqrt(weights_N)[:, None] * (x - labels.mean_C) for x in inner.values()]
    scales_K = np.array([max(float(np.sqrt(np.square(d).mean())), 1e-9) for d in deviations])
    x_KNC = np.stack([x[:, present] for x in inner.values()]) / scales_K[:, None, None]

    def loss(parameters: F64) -> tuple[float, F64]:
        slopes_K, intercepts_C = parameters[:members], parameters[members:]
        scores_NC = np.tensordot(slopes_K, x_KNC, 1) + intercepts_C
        totals_N = logsumexp(scores_NC, axis=1)
        errors_NC = np.exp(scores_NC - totals_N[:, None])
        errors_NC[rows, codes_N] -= 1
        errors_NC *= weights_N[:, None]
        unequal_K = slopes_K - slopes_K.mean()
        penalty = np.square(unequal_K).sum() + 1e-4 * np.square(slopes_K).sum()
        gradient_K = (errors_NC * x_KNC).sum(axis=(1, 2)) + 2 * unequal_K + 2e-4 * slopes_K
        losses_N = weights_N * (totals_N - scores_NC[rows, codes_N])
        gradient = np.concatenate([gradient_K, errors_NC.sum(axis=0)])
        return float(losses_N.sum() + penalty), gradient

    frequencies_C = np.bincount(codes_N, weights_N) / len(codes_N)
    start = np.concatenate([np.zeros(members), np.log(frequencies_C)])
    bounds = [(0.0, None)] * members + [(None, None)] * len(present)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    logits = np.vstack([np.eye(len(labels.classes)), np.full(len(labels.classes), -1e9)])
    logits[-1, present] = found[members:]
    return dict(zip(inner, (found[:members] / scales_K).tolist(), strict=True)), logits


def print_task(
    name: str, labelled: Labelled, comparison: str, seeds: list[int], results: Path
) -> None:
    """Print the rows of a task."""
    samples = TrainingSamples(labelled.samples, AsvRelations(labelled.samples.tokens_FL))
    scored, losses, slopes = [], dict[str, list[F64]](), dict[str, list[float]]()
    for seed in seeds:
        folds = labelled.folds(TASKS[name], seed)
        arrays = {
            variant: predictions(name, variant, samples, folds, seed, results)
            for variant in READ[comparison]
        }
        combined = combine(comparison, folds, arrays)
        first = next(iter(combined))
        pairs = [(rule, first) for rule in combined]
        scored.append(score_predictions(combined, folds, TASKS[name].metric, pairs))
        codes_M = folds.held_out.values.astype(np.int64)
        for rule, chances_MC in combined.items():
            # In the order of the samples, which are held out once.
            loss_N = log_losses(chances_MC, codes_M)[np.argsort(folds.rows_M)]
            losses.setdefault(rule, []).append(loss_N)
            slopes.setdefault(rule, []).append(calibration_slope(chances_MC, codes_M))
    labels = folds.labels
    group_N = labels.groups if labels.studies is None else labels.studies
    reference_N = np.mean(next(iter(losses.values())), axis=0)
    for rule, of_seeds in losses.items():
        loss_N = np.mean(of_seeds, axis=0)
        auc = f"{mean_score(scored, rule)[0]:.3f}"
        auc += f", {shown(mean_score(scored, f'{rule} - {first}'), '+')}"
        difference_N = loss_N - reference_N
        loss = f"{loss_N.mean():.3f}, {clustered(difference_N, group_N[np.sort(folds.rows_M)])}"
        row = (f"{name}, {comparison}", rule, auc, loss, f"{np.mean(slopes[rule]):.2f}")
        print(f"| {' | '.join(row)} |", flush=True)


def print_simulated(name: str, runs: int, results: Path) -> None:
    """Print the rows of simulated studies."""
    setting, option, signal = SIMULATED[name]
    groups, pure = SETTINGS[setting]
    values: dict[str, list[tuple[float, float, float]]] = {}
    for run in range(runs):
        samples, folds = study(np.random.default_rng([0, groups, run]), groups, pure, signal)
        if option:
            folds = left_out(folds, option)
        arrays = {
            variant: predictions(
                f"simulated-{name.replace(' ', '-')}", variant, samples, folds, run, results
            )
            for variant in READ["rules"]
        }
        codes_M = folds.held_out.values.astype(np.int64)
        for rule, chances_MC in combine("rules", folds, arrays).items():
            aucs = [
                roc_auc_score(codes_M[inside], chances_MC[inside, 1])
                for inside in (folds.fold_M == k for k in np.unique(folds.fold_M))
                if len(np.unique(codes_M[inside])) == 2
            ]
            loss = float(log_losses(chances_MC, codes_M).mean())
            slope = calibration_slope(chances_MC, codes_M)
            values.setdefault(rule, []).append((float(np.mean(aucs)), loss, slope))
    reference_R = np.array(next(iter(values.values())))
    for rule, of_runs in values.items():
        means = np.nanmean(of_runs, axis=0)
        changes = np.array(of_runs) - reference_R
        errors = changes.std(axis=0, ddof=1) / np.sqrt(runs)
        cells = [f"{means[k]:.3f}, {changes[:, k].mean():+.3f} ± {errors[k]:.3f}" for k in range(2)]
        row = (f"{name} ({runs} runs)", rule, *cells, f"{np.nanmedian(of_runs, axis=0)[2]:.2f}")
        print(f"| {' | '.join(row)} |", flush=True)


def calibration_slope(chances_MC: F64, codes_M: Any) -> float:
    """Return the slope of class membership on the log odds of the probability, of all classes."""
    chances_MC = chances_MC.clip(1e-6, 1 - 1e-6)
    odds_MC = np.log(chances_MC / (1 - chances_MC))
    of_class_MC = np.eye(chances_MC.shape[1])[codes_M]
    if chances_MC.shape[1] == 2:
        odds_MC, of_class_MC = odds_MC[:, 1:], of_class_MC[:, 1:]
    if np.ptp(odds_MC) == 0:
        return float("nan")
    model = LogisticRegression(C=1e6).fit(odds_MC.reshape(-1, 1), of_class_MC.ravel())
    return float(model.coef_[0, 0])


def clustered(differences_N: F64, group_N: Any) -> str:
    """Format a mean difference and its 95 % interval, whose errors are those of the groups."""
    mean, sums_I = differences_N.mean(), np.bincount(group_N, differences_N)
    sums_I = sums_I[np.bincount(group_N) > 0]
    if len(sums_I) < 4:
        return f"{mean:+.3f}"
    error = np.sqrt(len(sums_I)) * sums_I.std(ddof=1) / len(differences_N)
    half = t.ppf(0.975, len(sums_I) - 1) * error
    return f"{mean:+.3f} ({mean - half:.3f} to {mean + half:.3f})"


def predictions(
    name: str, variant: str, samples: TrainingSamples, folds: Folds, seed: int, results: Path
) -> Arrays:
    """Return held-out and left-out predictions of a variant, computed if they are not there."""
    file = predictions_file(results, name, seed, variant)
    if not file.exists():
        member, equal_depth = VARIANTS[variant]
        if equal_depth:
            reads = np.asarray(samples.samples.counts.sum(axis=1)).ravel()
            samples = rarefied(samples.samples, auto_depth(reads), folds.seed)
        if folds.studies == () and folds.labels.studies is not None and member is FOREST:
            member = SMALL_FOREST
        with as_library():
            cross_validate(member, samples, folds, file)
    return dict(np.load(file))


if __name__ == "__main__":
    main()
