"""Ensemble of kernel and forest beside the models that a researcher would use instead.

    python -m benchmarks.peers DATA RESULTS [--tasks TASK ...] [--seeds 1 2 3 4 5]
        [--peers forest ridge jaccard lightgbm]

DATA and RESULTS are those of `benchmarks/members.py`, which has to have run before: the ensemble is
made of its predictions, and the peers are fitted on the same folds. Every peer reads the ASVs alone
and has the defaults of its library; penalties are chosen by inner folds that divide no group. The
rows printed at the end have the score of each model and its paired difference from the ensemble
with 95 % intervals over groups (means of the seeds), and the mean rank over the tasks.

LightGBM is no dependency of this project: `pip install lightgbm`, or leave it out of --peers.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import rankdata

from aam.arrays import F64, Rows
from aam.evaluation.ensemble import combine_members
from aam.evaluation.folds import Folds, training_rows
from aam.evaluation.intervals import resample_metrics, units_of
from aam.evaluation.labels import Labels
from benchmarks.members import (
    ESTIMATORS,
    TASKS,
    Labelled,
    ScoredSeed,
    load,
    mean_score,
    predictions_file,
    read_members,
    shown,
    study_folder,
)

PEERS = {
    "forest": "random forest of 500 trees",
    "ridge": "L2 logistic regression or ridge on CLR",
    "jaccard": "Jaccard kernel ridge",
    "lightgbm": "LightGBM",
}
INNER_FOLDS = 5
ENSEMBLE = "ensemble"


def main() -> None:
    """Compute the predictions that are not there, and print the rows of all tasks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    arguments = parser.parse_args()
    labelled = {
        name: load(TASKS[name], study_folder(TASKS[name].study, arguments.data, arguments.results))
        for name in arguments.tasks
    }
    for seed in arguments.seeds:
        for name, study in labelled.items():
            folds = study.folds(TASKS[name], seed)
            for peer in arguments.peers:
                file = predictions_file(arguments.results, name, seed, f"peer-{peer}")
                if not file.exists():
                    began = time.process_time()
                    predictions_MC = predict(peer, study, folds)
                    seconds = time.process_time() - began
                    np.savez(file, predictions_MC=predictions_MC, cpu_seconds=seconds)
                    print(f"{file} written", flush=True)
    models = [ENSEMBLE, *ESTIMATORS, *(PEERS[peer] for peer in arguments.peers)]
    print(f"| task | {' | '.join(models)} |\n|{'---|' * (len(models) + 1)}", flush=True)
    ranks = []
    for name, study in labelled.items():
        scored = [
            score_seed(name, study, seed, arguments.results, arguments.peers)
            for seed in arguments.seeds
        ]
        means = [mean_score(scored, model) for model in models]
        ranks.append(rankdata([-mean[0] for mean in means]))
        cells = [shown(means[0])]
        for model, mean in zip(models[1:], means[1:], strict=True):
            difference = mean_score(scored, f"{ENSEMBLE} - {model}")
            cells.append(f"{mean[0]:.3f}; {shown(difference, '+')}")
        print(f"| {name} ({TASKS[name].metric}) | {' | '.join(cells)} |", flush=True)
    mean_ranks = np.mean(ranks, axis=0)
    print(f"| mean rank | {' | '.join(f'{rank:.1f}' for rank in mean_ranks)} |")
    for name, study in labelled.items():
        if TASKS[name].studies:
            print_by_study(name, study, arguments.seeds, arguments.results, arguments.peers)


def print_by_study(
    name: str, study: Labelled, seeds: Sequence[int], results: Path, peers: Sequence[str]
) -> None:
    """Print the AUC in each study that is left out, and their mean; means of the seeds."""
    from sklearn.metrics import roc_auc_score

    aucs: dict[str, list[list[float]]] = {}
    for seed in seeds:
        folds = study.folds(TASKS[name], seed)
        codes_M, fold_M = folds.held_out.values, folds.fold_M
        for model, predicted_MC in read_predicted(name, folds, seed, results, peers).items():
            of_studies = [
                float(roc_auc_score(codes_M[fold_M == k], predicted_MC[fold_M == k, 1]))
                for k in np.unique(fold_M)
            ]
            aucs.setdefault(model, []).append([*of_studies, float(np.mean(of_studies))])
    heads = [name, *study.folds(TASKS[name], seeds[0]).studies, "mean"]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for model, values in aucs.items():
        print(f"| {model} | {' | '.join(f'{auc:.3f}' for auc in np.mean(values, axis=0))} |")


def predict(peer: str, study: Labelled, folds: Folds) -> F64:
    """Return a peer's predictions [M, C] of the held-out samples; scores of classes may be any."""
    relative_NF, predictions = study.samples.relative, []
    for split in folds.splits:
        train, held_out = training_rows(split), split.held_out[1]
        labels = folds.labels.training(train)
        fitted_NF, predicted_NF = relative_NF[train], relative_NF[held_out]
        with warnings.catch_warnings():
            # Of rare classes in inner folds, and of solvers that stop at their limit.
            warnings.simplefilter("ignore")
            predictions.append(MODELS[peer](fitted_NF, labels, predicted_NF, folds.seed))
    return np.concatenate(predictions)


def forest(
    fitted_NF: sparse.csr_array, labels: Labels, predicted_NF: sparse.csr_array, seed: int
) -> F64:
    """Fit scikit-learn's forest of 500 trees, with a third of the ASVs at a node for numbers."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    if labels.classes:
        model = RandomForestClassifier(500, random_state=seed)
    else:
        model = RandomForestRegressor(500, max_features=1 / 3, random_state=seed)
    model.fit(fitted_NF.toarray(), targets(labels))
    return outputs(model, labels, predicted_NF.toarray())


def lightgbm(
    fitted_NF: sparse.csr_array, labels: Labels, predicted_NF: sparse.csr_array, seed: int
) -> F64:
    """Fit boosted trees."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMClassifier if labels.classes else LGBMRegressor
    model = kind(random_state=seed, n_jobs=1, verbose=-1)
    model.fit(fitted_NF.toarray(), targets(labels))
    return outputs(model, labels, predicted_NF.toarray())


def ridge(
    fitted_NF: sparse.csr_array, labels: Labels, predicted_NF: sparse.csr_array, seed: int
) -> F64:
    """Fit the CLR of the ASVs in 5 % of the training samples, with half a count for zeros."""
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frequent = np.bincount(fitted_NF.indices, minlength=fitted_NF.shape[1]) >= 0.05 * len(
        labels.values
    )
    inner = inner_folds(labels, seed)
    if labels.classes:
        regression: Any = LogisticRegressionCV(
            Cs=np.logspace(-5, 1, 7), cv=inner, scoring="neg_log_loss", max_iter=300
        )
    else:
        regression = RidgeCV(np.logspace(0, 6, 13), cv=inner)
    model = make_pipeline(StandardScaler(), regression)
    model.fit(centred_log_ratios(fitted_NF, frequent), targets(labels))
    return outputs(model, labels, centred_log_ratios(predicted_NF, frequent))


def jaccard(
    fitted_NF: sparse.csr_array, labels: Labels, predicted_NF: sparse.csr_array, seed: int
) -> F64:
    """Fit numbers or indicators of classes by a ridge on the ASVs that two samples share."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV

    y_NC = labels.outputs_NC
    model = GridSearchCV(
        KernelRidge(kernel="precomputed"),
        {"alpha": np.logspace(-2, 2, 9)},
        cv=inner_folds(labels, seed),
        scoring="neg_mean_squared_error",
    )
    model.fit(jaccard_similarity(fitted_NF, fitted_NF), y_NC - y_NC.mean(axis=0))
    similarity_MN = jaccard_similarity(predicted_NF, fitted_NF)
    predicted_MC: F64 = model.predict(similarity_MN) + y_NC.mean(axis=0)
    return predicted_MC


MODELS = {"forest": forest, "ridge": ridge, "jaccard": jaccard, "lightgbm": lightgbm}


def inner_folds(labels: Labels, seed: int) -> list[tuple[Rows, Rows]]:
    """Divide training samples into folds that divide no group and are stratified by class."""
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    number = min(INNER_FOLDS, len(np.unique(labels.groups)))
    kind = StratifiedGroupKFold if labels.classes else GroupKFold
    splitter = kind(number, shuffle=True, random_state=seed)
    splits = splitter.split(labels.values, targets(labels), labels.groups)
    # An inner fold whose training part lacks a class cannot be fitted.
    everything = len(np.unique(labels.values)) if labels.classes else 0
    return [
        (train, test) for train, test in splits
        if not labels.classes or len(np.unique(labels.values[train])) == everything
    ]  # fmt: skip


def targets(labels: Labels) -> F64 | Rows:
    """Return numbers, or codes of classes."""
    return labels.values.astype(np.int64) if labels.classes else labels.values


def outputs(model: Any, labels: Labels, features_MF: F64) -> F64:
    """Return numbers as one column, or the probability of each class."""
    if not labels.classes:
        numbers_M1: F64 = model.predict(features_MF)[:, None]
        return numbers_M1
    chances_MC = np.zeros((len(features_MF), len(labels.classes)))
    chances_MC[:, model.classes_] = model.predict_proba(features_MF)
    return chances_MC


def centred_log_ratios(relative_NF: sparse.csr_array, kept_F: Any) -> F64:
    """Return the CLR of the columns that are kept; zeros are half of the sample's least part."""
    parts = relative_NF.toarray().astype(np.float64)
    least = np.where(parts > 0, parts, np.inf).min(axis=1, keepdims=True)
    logs = np.log(np.where(parts > 0, parts, least / 2)[:, kept_F])
    ratios: F64 = logs - logs.mean(axis=1, keepdims=True)
    return ratios


def jaccard_similarity(one_NF: sparse.csr_array, two_RF: sparse.csr_array) -> F64:
    """Return the part of the ASVs of two samples that both have, [N, R]."""
    one_NF, two_RF = (one_NF > 0).astype(np.float64), (two_RF > 0).astype(np.float64)
    shared_NR = (one_NF @ two_RF.T).toarray()
    either_NR = one_NF.sum(axis=1)[:, None] + two_RF.sum(axis=1) - shared_NR
    similarity_NR: F64 = shared_NR / either_NR
    return similarity_NR


def read_predicted(
    name: str, folds: Folds, seed: int, results: Path, peers: Sequence[str]
) -> dict[str, F64]:
    """Read the held-out predictions [M, C] of the ensemble, its members and the peers."""
    read = read_members(results, name, seed)
    members = {member: read[member]["predictions_MC"] for member in ("kernel", "forest")}
    left_out = {
        member: [read[member].get(f"left_out_{k}") for k in range(len(folds.fitted_rows))]
        for member in members
    }
    predictions: dict[str, F64] = {
        ENSEMBLE: combine_members(members, folds, left_out).predictions_MC,
        **members,
    }
    for peer in peers:
        stored = np.load(predictions_file(results, name, seed, f"peer-{peer}"))
        predictions[PEERS[peer]] = stored["predictions_MC"]
    return predictions


def score_seed(
    name: str, study: Labelled, seed: int, results: Path, peers: Sequence[str]
) -> ScoredSeed:
    """Score the ensemble, its members and the peers, and the ensemble minus each of the others."""
    task = TASKS[name]
    folds = study.folds(task, seed)
    predictions = read_predicted(name, folds, seed, results, peers)
    read = read_members(results, name, seed)
    seconds = {member: float(read[member]["cpu_seconds"]) for member in ESTIMATORS}
    for peer in peers:
        stored = np.load(predictions_file(results, name, seed, f"peer-{peer}"))
        seconds[PEERS[peer]] = float(stored["cpu_seconds"])
    units = units_of(folds.held_out.groups)
    drawn = {
        model: resample_metrics(folds.scored(predicted_MC), units)
        for model, predicted_MC in predictions.items()
    }
    scores = {model: metrics.score()[task.metric] for model, metrics in drawn.items()}
    for model, metrics in drawn.items():
        scores[f"{ENSEMBLE} - {model}"] = drawn[ENSEMBLE].paired_difference(metrics)[1]
    return ScoredSeed(scores, seconds, units.number)


if __name__ == "__main__":
    main()
