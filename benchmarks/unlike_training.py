"""Held-out samples that are named unlike the training samples, in studies without any difference.

    nice python benchmarks/unlike_training.py [--seeds 8]

Simulated studies are cross-validated in three folds by subject: the held-out samples are of the
same population, so 5 % are expected beyond the limit, and no warning. Prints the mean part and the
folds that warn: 24 a setting with 8 seeds, in three CPU-minutes.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold

from aam import AAMRegressor, AamWarning
from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate

SETTINGS = ((30, 10), (30, 30), (90, 30))  # samples, subjects


def unlike(samples: int, subjects: int, seed: int) -> list[tuple[float, bool]]:
    """Return the part of the held-out samples beyond the limit, and whether a fold warns of it."""
    options = Example(
        output_dir=Path("unwritten"), samples=samples, subjects=subjects, asvs=200, richness=40,
        length=80, seed=seed,
    )  # fmt: skip
    study = simulate(options)
    frame = pd.DataFrame(study.counts.toarray(), study.sample_ids, study.sequences)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    seeds = range(parser.parse_args().seeds)
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
