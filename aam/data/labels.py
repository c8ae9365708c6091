"""Targets and splits: the samples that have a label, and which of them train or judge.

`aam train` and `aam baseline` go through here, so that the same options mean the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aam.console import say, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.groups import SplitOptions, TargetOptions
from aam.data.metadata import Metadata, class_target, groups, numeric_target
from aam.data.splits import PARTS, Split, make_splits, read_splits


@dataclass(frozen=True)
class LabelledSamples:
    """Samples with their answers.

    Attributes:
        rows: int64 [n], ascending positions in the sample ids.
        values: float64 [n], numbers or codes of `classes`.
        classes: names; empty for numbers.
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    classes: tuple[str, ...]


def read_labels(
    target: TargetOptions, metadata: Metadata, sample_ids: Sequence[str]
) -> LabelledSamples:
    """Find the answer of each sample; samples without one, or outside --where, are left out.

    Raises:
        DataError: see `numeric_target` and `class_target`; nobody is left by --where.
        UsageError: --where is no condition.
    """
    inside = _where(target.where, metadata, sample_ids)
    ids = [sample_ids[row] for row in inside]
    classes: tuple[str, ...] = ()
    values: npt.NDArray[np.float64]
    if target.classifier:
        rows, codes, classes = class_target(metadata, target.metadata_column, ids)
        values = codes.astype(np.float64)
    else:
        rows, values = numeric_target(metadata, target.metadata_column, ids)
    return LabelledSamples(inside[rows], values, classes)


def split_samples(
    options: SplitOptions,
    folds: int,
    seed: int,
    sample_ids: Sequence[str],
    metadata: Metadata | None,
    codes: npt.NDArray[np.int64] | None = None,
) -> tuple[tuple[Split, ...], list[str] | None]:
    """Decide the splits, and name each sample's group (None without groups).

    Args:
        options: how.
        folds: parts of the cross-validation; 1 for one split.
        seed: of the shuffles.
        sample_ids: the samples that take part.
        metadata: where the groups are.
        codes: class of each sample, for --stratify; None for numbers.

    Raises:
        UsageError: options that miss what they need.
        DataError: see `make_splits` and `read_splits`; a file that tears groups apart; validation
            samples of one class.
    """
    if options.stratify and codes is None:
        raise UsageError("--stratify is for classes", "without --classifier", "leave it out")
    labels = None
    if options.group_column is not None:
        if metadata is None:
            raise UsageError("Groups need metadata", "--group-column", "add --metadata")
        labels = groups(metadata, options.group_column, sample_ids).tolist()
    if options.splits is not None:
        read = read_splits(options.splits, sample_ids)
        if labels is not None:
            _check_apart(read, labels)
        _check_classes(read, codes, refuse=False)
        return read, labels
    made = make_splits(
        len(sample_ids),
        test_size=options.test_size,
        folds=folds,
        seed=seed,
        groups=labels,
        classes=codes if options.stratify else None,
    )
    _check_classes(made, codes, refuse=folds == 1)
    return made, labels


def _check_classes(
    splits: Sequence[Split], codes: npt.NDArray[np.int64] | None, refuse: bool
) -> None:
    """Refuse or report splits whose judging samples are of one class: any model scores 1.000.

    Raises:
        DataError: there is one, and `refuse` is true.
    """
    if codes is None:
        return
    for fold, split in enumerate(splits, start=1):
        part, rows = split.held_out
        if len(rows) and len(set(codes[rows].tolist())) == 1:
            evidence = f"{len(rows)} samples of fold {fold}" if len(splits) > 1 else len(rows)
            if refuse:
                raise DataError(
                    f"All {part} samples are of one class",
                    f"{evidence} of {len(codes)} samples",
                    "add --stratify, or choose another --seed or --test-size",
                )
            warn(f"All {part} samples are of one class, so they cannot judge: {evidence}.")


def _check_apart(splits: Sequence[Split], labels: Sequence[str]) -> None:
    """Refuse splits of a file that put a group on two sides."""
    for split in splits:
        sides = [{labels[row] for row in getattr(split, part)} for part in PARTS]
        torn = (sides[0] & sides[1]) | (sides[0] & sides[2]) | (sides[1] & sides[2])
        if torn:
            raise DataError(
                "The splits file puts groups on two sides",
                first_few(sorted(torn)),
                "choose another file, or leave out --group-column",
            )


def _where(
    condition: str | None, metadata: Metadata, sample_ids: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Rows whose metadata meets COLUMN=VALUE."""
    if condition is None:
        return np.arange(len(sample_ids))
    column, equals, value = condition.partition("=")
    if not equals:
        raise UsageError("No condition", f"--where '{condition}'", "write COLUMN=VALUE")
    found = metadata.values(column, sample_ids)
    rows = np.flatnonzero(found == value)
    if not len(rows):
        there = sorted(set(found.tolist()) - {""})[:10]
        raise DataError(
            "No sample meets the condition",
            f"--where '{condition}', the column has {', '.join(there)}",
            "name one of its values",
        )
    say(f"Samples with {condition}: {len(rows)} of {len(sample_ids)}.")
    return rows
