"""Labels and splits of samples, from the metadata and the options.

`aam train` and `aam inspect` use the same functions, so that the same options select the same
samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.study import SplitOptions, TargetOptions
from aam.data.metadata import Metadata, groups, rows_where
from aam.data.splits import FOLDS, PARTS, Split, make_splits, read_splits
from aam.data.target_columns import class_target, numeric_target, ordinal_target


@dataclass(frozen=True)
class LabelledSamples:
    """Samples with their labels.

    Attributes:
        rows: int64 [n], ascending positions in the sample ids.
        values: float64 [n], numbers, ranks of ordered categories, or codes of `classes`.
        classes: names; empty for numbers and ranks.
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    classes: tuple[str, ...]


def read_labels(
    target: TargetOptions, metadata: Metadata, sample_ids: Sequence[str]
) -> LabelledSamples:
    """Read the label of each sample; leave out samples without one or outside --where.

    Args:
        target: --metadata-column, --classifier, --ordinal and --where.
        metadata: metadata of the study.
        sample_ids: ids of the N samples of the study.

    Returns:
        The labelled samples: rows of `sample_ids`, their values, and the classes if there are any.

    Raises:
        DataError: no such column, no labelled sample, a label of another type than the target or
            the same label in all samples; --where leaves no sample.
        UsageError: --where is not a condition, or see `ordinal_target`.
    """
    inside = rows_where(target.where, metadata, sample_ids)
    ids = [sample_ids[row] for row in inside]
    classes: tuple[str, ...] = ()
    values: npt.NDArray[np.float64]
    if target.classifier:
        rows, codes, classes = class_target(metadata, target.metadata_column, ids)
        values = codes.astype(np.float64)
    elif target.ordinal:
        rows, ranks = ordinal_target(metadata, target.metadata_column, ids, target.levels)
        values = ranks.astype(np.float64)
    else:
        rows, values = numeric_target(metadata, target.metadata_column, ids)
        if len(distinct := np.unique(values)) == 2:
            warn(
                f"'{target.metadata_column}' has two values only, {distinct[0]:g} and "
                f"{distinct[1]:g}, and is predicted as a number: add --classifier if they are "
                "classes."
            )
    return LabelledSamples(inside[rows], values, classes)


def category_codes(
    target: TargetOptions, values: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64] | None:
    """Return the codes or ranks by which samples are stratified.

    Args:
        target: options of the target.
        values: float64 [N], labels as `read_labels` encodes them.

    Returns:
        int64 [N], codes of classes or ranks of ordered classes; None for a numeric target.
    """
    return values.astype(np.int64) if target.type != "regression" else None


def check_options(split: SplitOptions, target: TargetOptions) -> None:
    """Refuse groups that are the target: training samples have no held-out value of it.

    Raises:
        UsageError: --group-column is --metadata-column.
    """
    if split.group_column == target.metadata_column:
        raise UsageError(
            "The groups are the target, so no training sample has the value of a held-out one",
            f"--group-column {split.group_column}",
            "name the column of the subjects or of other groups, or leave the option out",
        )


def split_samples(
    options: SplitOptions,
    folds: int | Literal["auto"],
    seed: int,
    sample_ids: Sequence[str],
    metadata: Metadata | None,
    codes: npt.NDArray[np.int64] | None = None,
) -> tuple[tuple[Split, ...], list[str] | None]:
    """Make or read the splits; also return the group of each sample (None without groups).

    Args:
        options: --test-size, --stratify, --group-column and --splits.
        folds: folds of the cross-validation; 1 for one split; "auto": `FOLDS`, or one for each
            group if there are fewer.
        seed: seed of the shuffles.
        sample_ids: ids of the samples.
        metadata: contains the group column.
        codes: class or rank of each sample, see `category_codes`; None for a numeric target.

    Raises:
        DataError: fewer groups or samples than parts; an invalid splits file, or one that divides
            a group; all validation samples are of one class.
    """
    labels = None
    if options.group_column is not None:
        assert metadata is not None, "--group-column needs --metadata"
        labels = groups(metadata, options.group_column, sample_ids).tolist()
    if options.splits is not None:
        read, of_file = read_splits(options.splits, sample_ids)
        labels = of_file if labels is None else labels
        if labels is not None:
            _check_groups(read, labels, options.group_column)
        _check_classes(read, codes, refuse=False)
        return read, labels
    number = _auto_folds(labels or sample_ids) if folds == "auto" else folds
    if folds == "auto" and labels is not None and number < FOLDS:
        info(f"Folds: {number}, one for each group of '{options.group_column}'.")
    made = make_splits(
        len(sample_ids),
        test_size=options.test_size,
        folds=number,
        seed=seed,
        groups=labels,
        classes=codes if options.stratify else None,
    )
    _check_classes(made, codes, refuse=number == 1)
    return made, labels


def _auto_folds(units: Sequence[str]) -> int:
    """Return the number of folds for samples with these groups, or ids."""
    return min(FOLDS, max(2, len(set(units))))


def _check_classes(
    splits: Sequence[Split], codes: npt.NDArray[np.int64] | None, refuse: bool
) -> None:
    """Refuse splits whose held-out samples are of one class, or warn: any model scores 1.000."""
    if codes is None:
        return
    for fold, split in enumerate(splits, start=1):
        part, rows = split.held_out
        if len(rows) and len(set(codes[rows].tolist())) == 1:
            cause = f"All {part} samples are of one class"
            evidence = f"{len(rows)} samples of fold {fold}" if len(splits) > 1 else len(rows)
            if refuse:
                remedy = "choose another --seed or --test-size, or merge classes"
                raise DataError(cause, f"{evidence} of {len(codes)} samples", remedy)
            warn(f"{cause}, so they cannot measure a model: {evidence}.")


def _check_groups(splits: Sequence[Split], labels: Sequence[str], column: str | None) -> None:
    """Refuse splits of a file that divide a group between parts."""
    for split in splits:
        parts = [{labels[row] for row in getattr(split, part)} for part in PARTS]
        counts = Counter(chain.from_iterable(parts))
        if divided := [group for group, number in counts.items() if number > 1]:
            raise DataError(
                "The splits file divides groups between training, validation and test samples",
                first_few(sorted(divided)),
                "choose another file, or "
                + ("correct its column group" if column is None else "leave out --group-column"),
            )
