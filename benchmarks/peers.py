"""Ensemble of kernel and forest beside the models that a researcher would use instead.

    python -m benchmarks.peers DATA RESULTS [--tasks TASK ...] [--seeds 1 2 3 4 5]
        [--peers forest ridge jaccard lightgbm] [--train]

DATA and RESULTS are those of `benchmarks/members.py`: the ensemble is made of its predictions, and
the peers are fitted on the same folds. Every peer reads the ASVs alone and has the defaults of its
library; penalties are chosen by inner folds that divide no group. The rows that were measured
replace theirs of docs/results/peers.tsv, and of docs/results/studies.tsv where studies are left
out: means over the seeds with their range, and whether the paired 95 % interval over groups of the
difference from the ensemble excludes 0. Without predictions of our members the rows of the peers
alone are replaced. `--train` also runs `aam train --study-column` with each seed.
`benchmarks/draw_results.py` draws the tables.

LightGBM is no dependency of this project: `pip install lightgbm`, or leave it out of --peers.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from aam.arrays import F64, Rows
from aam.evaluation.ensemble import combine_members
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.scores import Scores
from benchmarks.members import (
    ESTIMATORS,
    TASKS,
    Labelled,
    ScoredSeed,
    left_out_predictions,
    load,
    mean_score,
    predictions_file,
    read_members,
    run_aam,
    score_predictions,
)

PEERS = {
    "forest": "random forest of 500 trees",
    "ridge": "L2 logistic regression or ridge on CLR",
    "jaccard": "Jaccard kernel ridge",
    "lightgbm": "LightGBM",
}
INNER_FOLDS = 5
ENSEMBLE = "ensemble"
TRAIN = "`aam train --study-column`"
PEERS_FILE, STUDIES_FILE = (
    Path(__file__).parents[1] / "docs" / "results" / name for name in ("peers.tsv", "studies.tsv")
)

Row = dict[str, str]


def main() -> None:
    """Compute the predictions that are not there, and write the rows of all tasks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    labelled = {
        name: load(TASKS[name], arguments.data, arguments.results) for name in arguments.tasks
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
    peer_rows, study_rows = list[Row](), list[Row]()
    for name, study in labelled.items():
        seeds = [
            score_seed(name, study, seed, arguments.results, arguments.peers)
            for seed in arguments.seeds
        ]
        peer_rows += rows_of(name, seeds, arguments.seeds)
        if TASKS[name].studies:
            aucs = [
                aucs_by_study(study.folds(TASKS[name], seed), predicted)
                for seed, predicted in zip(
                    arguments.seeds, predictions_of(name, study, arguments), strict=True
                )
            ]
            if arguments.train:
                trained = [train(name, study, seed, arguments.results) for seed in arguments.seeds]
                aucs = [auc | own for auc, own in zip(aucs, trained, strict=True)]
            study_rows += rows_of_studies(name, aucs, arguments.seeds)
    merge(PEERS_FILE, peer_rows, ("task", "model"))
    merge(STUDIES_FILE, study_rows, ("task", "model", "study"))


def rows_of(name: str, seeds: Sequence[ScoredSeed], numbers: Sequence[int]) -> list[Row]:
    """Return a row of each model: the mean over the seeds, and their range."""
    rows = []
    for model in (ENSEMBLE, *PEERS.values()):
        if model not in seeds[0].scores:
            continue
        values = np.array([seed.scores[model].value for seed in seeds], dtype=np.float64)
        beyond = ""
        if f"{ENSEMBLE} - {model}" in seeds[0].scores:
            _, lower, upper = mean_score(seeds, f"{ENSEMBLE} - {model}")
            beyond = "yes" if lower > 0 or upper < 0 else "no"
        metric = {"r2": "R²", "auc": "AUC"}[TASKS[name].metric]
        rows.append(measured(values, numbers, task=name, model=model, metric=metric) | {
            "beyond_noise": beyond, "partition": "present"
        })  # fmt: skip
    return rows


def rows_of_studies(
    name: str, aucs: Sequence[Mapping[str, Mapping[str, float]]], numbers: Sequence[int]
) -> list[Row]:
    """Return a row of each model and study that is left out, and of the mean over the studies."""
    return [
        measured(
            np.array([seed[model][study] for seed in aucs]), numbers,
            task=name, model=model, study=study,
        ) | {"note": ""}
        for model in aucs[0]
        for study in aucs[0][model]
    ]  # fmt: skip


def measured(values: F64, seeds: Sequence[int], **key: str) -> Row:
    """Return a row with the mean over seeds and their range."""
    ends = {"value": values.mean(), "lowest": values.min(), "highest": values.max()}
    return {**key, "seeds": " ".join(map(str, seeds)), **{k: f"{v:.3f}" for k, v in ends.items()}}


def merge(path: Path, rows: Sequence[Row], key: Sequence[str]) -> None:
    """Replace the rows of a file that have the same key, and append the others."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        fields, merged = list(reader.fieldnames or ()), list(reader)
    places = {tuple(row[name] for name in key): number for number, row in enumerate(merged)}
    for row in rows:
        number = places.get(tuple(row[name] for name in key))
        if number is None:
            merged.append(row)
        else:  # what was not measured again stays
            merged[number] |= {name: value for name, value in row.items() if value}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged)


def aucs_by_study(folds: Folds, predicted: Mapping[str, F64]) -> dict[str, dict[str, float]]:
    """Return the AUC of each model in each study that is left out, numbered, and their mean."""
    from sklearn.metrics import roc_auc_score

    codes_M, fold_M, aucs = folds.held_out.values, folds.fold_M, {}
    for model, predicted_MC in predicted.items():
        of_studies = {
            str(k): float(roc_auc_score(codes_M[fold_M == k], predicted_MC[fold_M == k, 1]))
            for k in np.unique(fold_M)
        }
        aucs[model] = of_studies | {"mean": float(np.mean([*of_studies.values()]))}
    return aucs


def predictions_of(
    name: str, study: Labelled, arguments: argparse.Namespace
) -> Iterator[dict[str, F64]]:
    """Yield the held-out predictions of each seed by model."""
    for seed in arguments.seeds:
        folds = study.folds(TASKS[name], seed)
        yield read_predicted(name, folds, seed, arguments.results, arguments.peers)


def train(name: str, study: Labelled, seed: int, results: Path) -> dict[str, dict[str, float]]:
    """Run `aam train --study-column`, and return the mean AUC over its studies."""
    task, folder = TASKS[name], results / f"{name}-{seed}-train"
    if not (folder / "scores.json").exists():
        run_aam(
            *("train", "--table", str(study.folder / "table.biom"), "--drop-empty-samples"),
            *("--metadata", str(study.folder / "metadata.tsv"), "--metadata-column", task.column),
            *("--classifier", "--study-column", str(task.group), "--seed", str(seed)),
            *("--output-dir", str(folder), "--overwrite"),
        )
    scores = Scores.read(folder / "scores.json")
    print(f"{name}, seed {seed}: {scores.verdict.sentence}", flush=True)
    assert scores.studies is not None
    aucs = [one.metrics["auc"].value or np.nan for one in scores.studies.studies]
    return {TRAIN: {"mean": float(np.mean(aucs))}}


def predict(peer: str, study: Labelled, folds: Folds) -> F64:
    """Return a peer's predictions [M, C] of the held-out samples; scores of classes may be any."""
    relative_NF, predictions = study.samples.relative, []
    for split in folds.splits:
        train, held_out = split.training_rows, split.held_out[1]
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
    """Read the held-out predictions [M, C] of the ensemble and its members, if any, and peers."""
    read = read_members(results, name, seed)
    predictions: dict[str, F64] = {}
    if read.keys() >= ESTIMATORS.keys():
        members = {member: read[member]["predictions_MC"] for member in ("kernel", "forest")}
        left_out = {member: left_out_predictions(read[member], folds) for member in members}
        combined_MC = combine_members(members, folds, left_out).predictions_MC
        predictions = {ENSEMBLE: combined_MC, **members}
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
    others = predictions.keys() - {ENSEMBLE} if ENSEMBLE in predictions else ()
    pairs = [(ENSEMBLE, model) for model in others]
    return score_predictions(predictions, folds, task.metric, pairs)


if __name__ == "__main__":
    main()
