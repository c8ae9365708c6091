"""Samples that are named unlike the training samples: how many are by chance, and what they score.

    nice python benchmarks/unlike_training.py [--seeds 8]
    nice python benchmarks/unlike_training.py --table T --metadata M --column C --study-column S

Simulated studies are cross-validated in three folds by subject: the held-out samples are of the
same population, so 5 % are expected beyond the limit, and no warning. Prints the mean part and the
folds that warn: 24 a setting with 8 seeds, in three CPU-minutes.

With a table a kernel is fitted to all studies but one, and predicts that one. Prints for each study
the AUC, or R², of samples that resemble the training samples and of the others, and their
difference.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold

from aam import AAMRegressor, AamWarning
from aam.cli import main as aam
from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate
from aam.evaluation.scores import Scores

SETTINGS = ((30, 10), (30, 30), (90, 30))  # samples, subjects


def unlike(samples: int, subjects: int, seed: int) -> list[tuple[float, bool]]:
    """Return the part of the held-out samples beyond the limit, and whether a fold warns of it."""
    options = Example(
        output_dir=Path("unwritten"), samples=samples, subjects=subjects, asvs=200, richness=40,
        length=80, seed=seed,
    )  # fmt: skip
    study = simulate(options)
    frame = pd.DataFrame(study.counts.toarray(), study.sample_ids, study.feature_ids)
    frame = frame.loc[:, frame.sum() > 0]
    found = []
    for train, test in GroupKFold(3).split(frame, groups=study.places.subject):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AamWarning)
            model = AAMRegressor(members="kernel", evaluate=False)
            model.fit(frame.iloc[train], study.places.ph[train], groups=study.places.subject[train])
            predicted = model.model_.predict(frame.iloc[test])
        part = float((predicted["unlike_training"] == "yes").mean())
        found.append((part, any("unlike" in str(warning.message) for warning in caught)))
    return found


def studies(table: Path, metadata: Path, column: str, study_column: str) -> None:
    """Print the scores of samples that resemble the other studies, and of the others."""
    names = pd.read_csv(metadata, sep="\t", dtype=str)[study_column].dropna().unique()
    given = ["--table", str(table), "--metadata", str(metadata), "--metadata-column", column]
    for name in sorted(names):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            model, output = Path(folder) / "model", Path(folder) / "scores"
            words = ["--members", "kernel", "--repeats", "1", "--folds", "2", "--output-dir"]
            others = ["--where", f"{study_column}!={name}"]
            aam(["train", *given, *words, str(model), *others])
            here = ["--where", f"{study_column}={name}", "--output", str(output)]
            aam(["evaluate", "--model", str(model), *given, *here])
            external = Scores.read(output / "scores.json").external
        assert external is not None
        for text in external.sentences():
            if "samples like the training samples" in text:
                print(f"{name}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--metadata", type=Path)
    parser.add_argument("--column")
    parser.add_argument("--study-column")
    arguments = parser.parse_args()
    if arguments.table is not None:
        studies(arguments.table, arguments.metadata, arguments.column, arguments.study_column)
        return
    seeds = range(arguments.seeds)
    for samples, subjects in SETTINGS:
        folds = [fold for seed in seeds for fold in unlike(samples, subjects, seed)]
        parts, warned = zip(*folds, strict=True)
        print(
            f"{samples} samples of {subjects} subjects: {np.mean(parts):.1%} unlike, "
            f"{sum(warned)} of {len(folds)} folds warn",
            flush=True,
        )


if __name__ == "__main__":
    main()
