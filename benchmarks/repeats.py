"""Repeats: how much the score of a study depends on the seed, by the number of partitions.

    nice python benchmarks/repeats.py --partitions 50 -- --table table.biom \
        --metadata metadata.tsv --metadata-column diagnosis --classifier

Trains kernel and forest of `aam train` on that many partitions of one study into folds, and prints
the standard deviation of the ensemble's score over seeds for 1, 5 and 10 partitions: that of the
means of disjoint sets of partitions. What follows `--` are options of `aam train`.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np

from aam.console import as_library
from aam.contract.options import build
from aam.contract.options.command_line import parse_command
from aam.contract.options.commands.train import Train
from aam.data.metadata import read_metadata
from aam.evaluation.intervals import COMPARED
from aam.members.member import estimator
from aam.members.option_checks import resolve
from aam.pipeline.cross_validation import combine_results
from aam.pipeline.labelled_study import label_study, read_study
from aam.pipeline.plan import plan


def main() -> None:
    """Score the partitions, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("train", nargs="+", help="options of `aam train`, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, as_library():
        words = [*arguments.train, "--output-dir", folder, "--repeats", str(arguments.partitions)]
        options = resolve(build(Train, parse_command("train", words)))
        study = label_study(
            options, read_study(options, None), read_metadata(options.target.metadata)
        )
        planned = plan(options, study)
        folds, samples = planned.folds, planned.samples()
        began = time.process_time()
        results = {
            name: estimator(name).cross_validate(samples, folds, final=False, weighed=True)
            for name in options.members
        }
        scored = folds.scored(combine_results(results, folds).predictions_MC)
        seconds = (time.process_time() - began) / arguments.partitions
    name, metric = COMPARED[folds.labels.type]
    scores = np.array([part.value(metric) for _, part in scored.partitions])
    units = folds.held_out_units.number
    print(f"{len(study.values)} samples, {units} units: {name} {scores.mean():.3f}")
    print(f"{seconds:.1f} CPU-seconds a partition")
    for number in (1, 5, 10):
        means = scores[: len(scores) // number * number].reshape(-1, number).mean(axis=1)
        print(f"sd over {len(means)} seeds with {number} partitions: {means.std(ddof=1):.3f}")


if __name__ == "__main__":
    main()
