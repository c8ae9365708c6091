"""`aam baseline`: a random forest or a sequence kernel on the same split as a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.files import atomic_write, refuse_existing, write_json
from aam.contract.options import to_plain
from aam.contract.options.commands.compare import Baseline
from aam.data.labels import category_codes, check_options, read_labels, split_samples
from aam.data.metadata import read_metadata
from aam.data.metrics import summary
from aam.data.splits import write_splits
from aam.data.study import load_study, load_table
from aam.members.base import Estimator, Labels, Samples
from aam.members.cross_validation import cross_validate
from aam.members.estimators import ESTIMATORS
from aam.members.folds import Folds
from aam.members.forest import Forest
from aam.members.relations import AsvRelations
from aam.members.tables import held_out_table
from aam.report.terminal import show

FILES = ("predictions.tsv", "metrics.json", "splits.tsv")
_TITLES = {"forest": "random forest", "kernel": "sequence kernel"}


def run(options: Baseline) -> None:
    """Train and score the models; write predictions.tsv, metrics.json and splits.tsv.

    Raises:
        UsageError: invalid options of the forest, or see `check_options`.
        MissingInput, DataError: see the readers.
        CannotCreate: results exist already, or the folder cannot be written.
    """
    estimator = _estimator(options)
    check_options(options.split, options.target)
    for name in FILES:
        refuse_existing(options.output_dir / name, options.overwrite)
    if options.member == "forest":  # it needs no sequences
        table = load_table(options.input)
        tokens_FL = np.empty((len(table.feature_ids), 0), dtype=np.uint8)
    else:
        study = load_study(options.input)
        table, tokens_FL = study.table, study.tokens_FL
    metadata = read_metadata(options.target.metadata)
    found = read_labels(options.target, metadata, table.sample_ids)
    table = table.take_samples(found.rows)
    splits, groups = split_samples(
        options.split,
        options.folds,
        options.seed,
        table.sample_ids,
        metadata,
        category_codes(options.target, found.values),
    )
    labels = Labels.of(found.values, found.classes, groups, options.target.levels)
    folds, name = Folds(labels, splits, options.seed), options.member
    samples, relations = Samples.of(table, tokens_FL), AsvRelations(tokens_FL)
    result = cross_validate(name, estimator, samples, relations, folds, final=False)
    metrics = summary(folds.scored(result.predictions_MC), options.target.metadata_column) | {
        "model": _TITLES[name],
        "split": folds.part,
    }
    show(metrics)
    predictions = held_out_table(table.sample_ids, folds, result.predictions_MC)
    with atomic_write(options.output_dir / "predictions.tsv") as temporary:
        predictions.to_csv(temporary, sep="\t", index=False)
    write_json(options.output_dir / "metrics.json", metrics | {"options": to_plain(options)})
    write_splits(options.output_dir / "splits.tsv", table.sample_ids, splits, groups)
    info(f"{', '.join(FILES)} in {options.output_dir}")


def _estimator(options: Baseline) -> Estimator[Any]:
    """Return the estimator with the parameters of the options.

    Raises:
        UsageError: one of them is out of range.
    """
    wrong = [
        f"{flag} {value}"
        for flag, value, valid in (
            ("--n-estimators", options.n_estimators, 1 <= options.n_estimators <= 100_000),
            ("--max-features", options.max_features, 0 < options.max_features <= 1),
            ("--min-samples-leaf", options.min_samples_leaf, 1 <= options.min_samples_leaf < 2**31),
            ("--n-jobs", options.n_jobs, 1 <= options.n_jobs <= 4096 or options.n_jobs == -1),
            ("--seed", options.seed, 0 <= options.seed < 2**32),
        )
        if not valid
    ]
    if wrong:
        raise UsageError(
            "Invalid options of the baseline", ", ".join(wrong), "see `aam baseline --help`"
        )
    if options.member != "forest":
        return ESTIMATORS[options.member]
    return Forest(
        options.n_estimators, options.max_features, options.min_samples_leaf, options.n_jobs
    )
