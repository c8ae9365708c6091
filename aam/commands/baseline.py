"""`aam baseline`: a random forest on the same split as a model."""

from __future__ import annotations

import json

import numpy as np

from aam.console import say
from aam.contract.errors import UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options import to_plain
from aam.contract.options.commands import Baseline
from aam.data.labels import read_labels, split_samples
from aam.data.metadata import ID_HEADER, read_metadata
from aam.data.metrics import summary
from aam.data.splits import write_splits
from aam.data.study import load_table
from aam.data.table import FeatureTable
from aam.report.terminal import show
from aam.training.random_forest import ForestOptions, ForestPredictions, cross_validate

FILES = ("predictions.tsv", "metrics.json", "splits.tsv")


def run(options: Baseline) -> None:
    """Train and score the forests; write predictions.tsv, metrics.json and splits.tsv.

    Raises:
        UsageError: invalid options of the forest.
        MissingInput, DataError: see the readers.
        CannotCreate: results exist already, or the folder cannot be written.
    """
    forest = _forest(options)
    for name in FILES:
        refuse_existing(options.output_dir / name, options.overwrite)
    table = load_table(options.input)
    metadata = read_metadata(options.target.metadata)
    asked = read_labels(options.target, metadata, table.sample_ids)
    table, classes = table.take_samples(asked.rows), asked.classes
    target = asked.values.astype(np.int64) if classes else asked.values
    splits, labels = split_samples(
        options.split,
        options.folds,
        options.seed,
        table.sample_ids,
        metadata,
        asked.values.astype(np.int64) if classes else None,
    )
    answers = cross_validate(table.counts, target, classes, splits, forest)
    found = summary(answers.scored, options.target.metadata_column) | {
        "model": "random forest",
        "split": answers.split,
    }
    show(found)
    _write(options, table, answers, found)
    write_splits(options.output_dir / "splits.tsv", table.sample_ids, splits, labels)
    say(f"{', '.join(FILES)} in {options.output_dir}")


def _forest(options: Baseline) -> ForestOptions:
    wrong = [
        f"{flag} {value}"
        for flag, value, fine in (
            ("--n-estimators", options.n_estimators, 1 <= options.n_estimators <= 100_000),
            ("--max-features", options.max_features, 0 < options.max_features <= 1),
            ("--min-samples-leaf", options.min_samples_leaf, 1 <= options.min_samples_leaf < 2**31),
            ("--n-jobs", options.n_jobs, 1 <= options.n_jobs <= 4096 or options.n_jobs == -1),
            ("--seed", options.seed, 0 <= options.seed < 2**32),
        )
        if not fine
    ]
    if wrong:
        raise UsageError("No such forest", ", ".join(wrong), "see `aam baseline --help`")
    return ForestOptions(
        options.n_estimators,
        options.max_features,
        options.min_samples_leaf,
        options.seed,
        options.n_jobs,
    )


def _write(
    options: Baseline, table: FeatureTable, answers: ForestPredictions, found: dict[str, object]
) -> None:
    import pandas as pd

    scored, names = answers.scored, answers.scored.classes
    columns: dict[str, object] = {
        ID_HEADER: [table.sample_ids[row] for row in answers.rows],
        "fold": answers.folds,
        "split": answers.split,
        "actual": [names[code] for code in scored.actual] if names else scored.actual,
        "predicted": [names[code] for code in scored.predicted] if names else scored.predicted,
    }
    if scored.probabilities is not None:
        columns |= {f"p_{name}": scored.probabilities[:, c] for c, name in enumerate(names)}
    with atomic_write(options.output_dir / "predictions.tsv") as temporary:
        pd.DataFrame(columns).to_csv(temporary, sep="\t", index=False)
    with atomic_write(options.output_dir / "metrics.json") as temporary:
        content = found | {"options": to_plain(options)}
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
