"""Leaving one study out: AUC within studies of the members, with --study-column and without.

    OMP_NUM_THREADS=1 nice python -m benchmarks.across_studies --runs 200

Each run is a new set of studies of 60 samples together, whose classes have frequencies from 0.2 to
0.8 and whose ASVs differ between studies, see `benchmarks/class_order.py`. With signal 0 the class
is predictable between studies, by their frequencies, and within none: an AUC within studies other
than 0.5 would be a gain from the proportions. `--group-column` leaves the same studies out, and
chooses and fits without regard to them.

With `--frequencies` the studies have 60 samples each, and these parts of cases. `--effective`
compares `--study-column` with weights that go from 1 towards its own as far as the effective sample
size is that part of the number, in paired differences.

With `--table` the communities are those of real studies, each named by the part of the sample ids
before the first point: 40 to 80 samples of some of them, whose class follows 60 ASVs and 15 clades
(`--sparse`: 6 and 3) with noise of 0.6 standard deviations, above a threshold of each study. Prints
means over the runs with their standard errors.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from aam.arrays import F64
from aam.console import as_library
from aam.contract.options.groups import TableOptions
from aam.data.study import Study, load_study
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import study_splits
from aam.members.forest import clades, membership
from aam.members.member import TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.cross_validation import combine_results
from benchmarks.class_order import study

MEMBERS = ("kernel", "forest")


def main() -> None:
    """Run the settings, and print a row of the table for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--studies", nargs="+", type=int, default=[3, 6])
    parser.add_argument("--signals", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frequencies", nargs="+", type=float, default=[])
    parser.add_argument("--effective", nargs="*", type=float, default=[])
    parser.add_argument("--members", nargs="+", default=list(MEMBERS), choices=MEMBERS)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--sparse", action="store_true")
    arguments = parser.parse_args()
    real = None
    if arguments.table is not None:
        real = load_study(TableOptions(table=arguments.table)).sorted_by_id()
        arguments.signals = [1.0]
    models = [*arguments.members, *(["ensemble"] if len(arguments.members) > 1 else [])]
    print(f"| studies | signal | option | {' | '.join(models)} |")
    print(f"|---|---|---|{'---|' * len(models)}")
    if arguments.frequencies:
        arguments.studies = [len(arguments.frequencies)]
    for studies in arguments.studies:
        for signal in arguments.signals:
            rows: dict[str, list[list[float]]] = {"--study-column": []}
            if arguments.effective:
                rows |= {f"--study-column, {part:g} n": [] for part in arguments.effective}
            else:
                rows = {"--group-column": [], **rows}
            for run in range(arguments.runs):
                rng = np.random.default_rng([arguments.seed, studies, run])
                if real is None:
                    samples, folds = study(rng, studies, False, signal, arguments.frequencies)
                else:
                    samples, folds = planted(rng, real, studies, arguments.sparse)
                for option, scores in rows.items():
                    divided = left_out(folds, option)
                    scores.append(within_studies(samples, divided, arguments.members))
            for option, scores in rows.items():
                values = np.array(scores)
                means, errors = values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))
                cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(means, errors, strict=True)]
                if arguments.effective:
                    changes = values - np.array(rows["--study-column"])
                    errors = changes.std(axis=0) / np.sqrt(len(changes))
                    parts = zip(cells, changes.mean(axis=0), errors, strict=True)
                    cells = [f"{cell}; {change:+.3f} ± {e:.3f}" for cell, change, e in parts]
                row = (str(studies), f"{signal:g}", f"`{option}`", *cells)
                print(f"| {' | '.join(row)} |", flush=True)


def planted(
    rng: np.random.Generator, real: Study, studies: int, sparse: bool
) -> tuple[TrainingSamples, Folds]:
    """Return real communities of some studies, with classes that follow ASVs and clades."""
    study_N = np.array([name.split(".")[0] for name in real.table.sample_ids])
    names, sizes = np.unique(study_N, return_counts=True)
    chosen = rng.choice(names[sizes >= 40], studies, replace=False)
    drawn = [
        rng.permutation(np.flatnonzero(study_N == name))[: rng.integers(40, 81)] for name in chosen
    ]
    rows = np.sort(np.concatenate(drawn))
    samples = Samples.of(real.take_samples(rows), None)
    kept = np.flatnonzero(np.asarray((samples.counts > 0).sum(axis=0)).ravel() > 1)
    samples = dataclasses.replace(
        samples, counts=samples.counts[:, kept], tokens_FL=samples.tokens_FL[kept]
    )
    relations = AsvRelations(samples.tokens_FL)
    asvs_NF = samples.log_abundances.toarray()
    clades_NG = np.log10(1 + 1e4 * (samples.relative @ membership(clades(relations))).toarray())
    numbers = (6, 3) if sparse else (60, 15)
    columns = []
    for features, share, number in zip((asvs_NF, clades_NG), (0.15, 0.2), numbers, strict=True):
        common = np.flatnonzero((features > 0).mean(axis=0) > share)
        columns.append(features[:, rng.permutation(common)[:number]])
    effects = np.hstack(columns)
    score_N = effects @ rng.normal(size=effects.shape[1])
    codes_N = np.zeros(len(rows))
    group_N = np.unique(study_N[rows], return_inverse=True)[1]
    for group in range(studies):
        inside = group_N == group
        score_N[inside] -= score_N[inside].mean()
    score_N += 0.6 * score_N.std() * rng.normal(size=len(rows))
    for group in range(studies):
        inside = group_N == group
        codes_N[inside] = score_N[inside] > np.quantile(score_N[inside], rng.uniform(0.2, 0.8))
    labels = Labels(codes_N, ("a", "b"), group_N)
    return TrainingSamples(samples, relations), Folds(labels, (), 0, "group")


def left_out(folds: Folds, option: str) -> Folds:
    """Return folds of one study each, whose groups are studies with --study-column."""
    names = [f"{group:02d}" for group in folds.labels.groups]
    rows = np.arange(len(names))
    splits = study_splits(names, test_size=0, seed=0, fitted=rows, groups=names)
    labels, (option, _, effective) = folds.labels, option.partition(", ")
    if option == "--study-column":
        labels = dataclasses.replace(labels, studies=labels.groups, groups=rows)
    if effective:
        plain = {part.name: getattr(labels, part.name) for part in dataclasses.fields(labels)}
        labels = ScaledLabels(**plain, effective=float(effective.split()[0]))
    return dataclasses.replace(folds, labels=labels, splits=splits)


@dataclass(frozen=True)
class ScaledLabels(Labels):
    """Labels whose weights go from 1 towards those of studies and classes."""

    effective: float = 0.7  # least effective sample size, part of the number; 1 for equal weights

    @property
    def weights_N(self) -> F64:
        """Weights of the samples."""
        full_N = super().weights_N
        step = np.sqrt((1 / self.effective - 1) / max(full_N.var(), 1e-9)).clip(max=1)
        scaled_N: F64 = 1 + step * (full_N - 1)
        return scaled_N


def within_studies(
    samples: TrainingSamples, folds: Folds, members: Sequence[str] = MEMBERS
) -> list[float]:
    """Return the mean AUC within studies of each member and of the ensemble."""
    with as_library():
        found = {
            name: estimator(name).cross_validate(samples, folds, False, weighed=len(members) > 1)
            for name in members
        }
    predictions: list[F64] = [member.predictions_MC for member in found.values()]
    if len(found) > 1:
        predictions.append(combine_results(found, folds).predictions_MC)
    codes_M, fold_M = folds.held_out.values, folds.fold_M
    return [
        float(
            np.mean(
                [
                    roc_auc_score(codes_M[fold_M == fold], predicted_MC[fold_M == fold, 1])
                    for fold in np.unique(fold_M)
                ]
            )
        )
        for predicted_MC in predictions
    ]


if __name__ == "__main__":
    main()
