"""Targets: labels of samples from a metadata column, their splits, and transforms of numbers.

`aam train` and `aam inspect` use the same functions, so that the same options select the same
samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.commands.train import Train
from aam.contract.options.study import SplitOptions, TargetOptions
from aam.contract.options.training import TransformName
from aam.contract.records import AboveZero
from aam.data.metadata import (
    LARGEST_NUMBER,
    Metadata,
    as_numbers,
    groups,
    is_missing,
    normalized,
    number_remedy,
    rows_where,
)
from aam.data.splits import FOLDS, PARTS, Split, make_splits, read_splits

_DOUBTFUL = frozenset({"missing", "unspecified", "na", "n/a", "nan", "none", "null"})
"""Missing values that a program or a person may also have written for a class."""

_FEW_SAMPLES = 10


def numeric_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the samples with a number in `column`, and the numbers."""
    rows, texts = _labelled(metadata, column, sample_ids)
    values = as_numbers(texts)
    if wrong := [texts[place] for place in np.flatnonzero(np.isnan(values)).tolist()]:
        raise DataError(
            f"The column '{column}' is not numeric",
            f"{len(wrong)} of {len(texts)} values are not numbers, distinct ones: "
            f"{first_few(dict.fromkeys(wrong))}",
            number_remedy(wrong, "correct them, or add --classifier if it is a category"),
        )
    if infinite := [sample_ids[row] for row in rows[np.isinf(values)]]:
        raise DataError(
            f"The column '{column}' has infinite values",
            f"in samples {first_few(infinite)}",
            "leave these cells empty",
        )
    if large := [sample_ids[row] for row in rows[np.abs(values) > LARGEST_NUMBER]]:
        raise DataError(
            f"The column '{column}' has numbers beyond {LARGEST_NUMBER:g}",
            f"in samples {first_few(large)}",
            "give the column in larger units, or leave these cells empty",
        )
    if np.all(values == values[0]):
        raise _constant(column, texts)
    return rows, values


def class_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return the samples with a class in `column`, their codes, and the classes."""
    rows, texts = _labelled(metadata, column, sample_ids, classes=True)
    labels = [normalized(text) for text in texts]
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise _constant(column, labels)
    numeric = not np.isnan(as_numbers(classes)).any()
    if 2 * len(classes) > len(labels) > _FEW_SAMPLES and numeric:
        raise DataError(
            f"The column '{column}' is numeric",
            f"it has {len(classes)} different numbers in {len(labels)} samples",
            "leave out --classifier",
        )
    if 2 * len(classes) > len(labels) > _FEW_SAMPLES:
        warn(
            f"'{column}' has {len(classes)} classes in {len(labels)} samples, as a column of ids "
            "has: name another --metadata-column, or restrict the samples by --where."
        )
        return rows, encode_labels(labels, classes), classes
    _warn_of_single(column, labels)
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(name.casefold().split()), []).append(name)
    if same := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        warn(
            f"Classes of '{column}' that differ in case or spaces alone: {first_few(same)}. Write "
            "them alike in the metadata if they are one class."
        )
    return rows, encode_labels(labels, classes), classes


def ordinal_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str], levels: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples with a category in `column`, and the ranks of their categories."""
    order = f"--ordinal {','.join(levels)}"
    names = [normalized(level) for level in levels]
    if len(names) < 2 or len(set(names)) < len(names) or "" in names:
        remedy = "name each category of the column once, the lowest first"
        raise UsageError("No order of two or more categories", order, remedy)
    rows, texts = _labelled(metadata, column, sample_ids, names, classes=True)
    labels = [normalized(text) for text in texts]
    if unknown := {name: labels.count(name) for name in sorted(set(labels) - set(names))}:
        raise DataError(
            f"The column '{column}' has values that the order does not have",
            f"{first_few(unknown)} in {sum(unknown.values())} of {len(labels)} samples, {order}",
            "add them at their place in the order, or leave the samples out by --where",
        )
    if len(set(labels)) < 2:
        raise _constant(column, labels)
    if absent := [name for name in names if name not in labels]:
        warn(f"Categories of --ordinal that no sample has in '{column}': {first_few(absent)}.")
    _warn_of_single(column, labels)
    return rows, encode_labels(labels, names)


def _warn_of_single(column: str, labels: Sequence[str]) -> None:
    if single := [name for name, number in sorted(Counter(labels).items()) if number == 1]:
        warn(f"Classes of '{column}' with a single sample: {first_few(single)}.")


def encode_labels(labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Encode labels as numbers of their classes.

    >>> encode_labels(["sick", "well", "sick"], ["well", "sick"]).tolist()
    [1, 0, 1]
    """
    code_of = {name: code for code, name in enumerate(classes)}
    return np.array([code_of[label] for label in labels], dtype=np.int64)


def label_names(values_N: NDArray[Any], names: Sequence[str]) -> object:
    """Return the names of codes or ranks; the numbers themselves without names.

    Args:
        values_N: codes of classes, ranks, or numbers.
        names: names of the classes or ranks; empty for a numeric target.
    """
    return [names[int(code)] for code in values_N] if names else values_N


def _labelled(
    metadata: Metadata,
    column: str,
    sample_ids: Sequence[str],
    named: Sequence[str] = (),
    classes: bool = False,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return positions and values of labelled samples; print how many are left out, and why."""
    texts = metadata.texts(column, sample_ids)
    present = [(row, text) for row, text in enumerate(texts) if text is not None]
    known = [(row, text) for row, text in present if text in named or not is_missing(text)]
    missing = Counter(text for _, text in present if text not in named and is_missing(text))
    reasons = [f"{times} with '{column}' '{value}'" for value, times in missing.most_common()]
    if len(present) < len(texts):
        likely = metadata.likely_reason(sample_ids)
        of_ids = f", whose ids differ in {likely} from those of the metadata" if likely else ""
        reasons.insert(0, f"{len(texts) - len(present)} without metadata{of_ids}")
    counted = f"{len(texts) - len(known)} of {len(texts)} ({', '.join(reasons)})"
    if not known:
        raise DataError(
            f"No sample has a value in the column '{column}'", counted, "name another column"
        )
    if reasons:
        info(f"Samples left out: {counted}.")
    doubtful = {text: n for text, n in missing.items() if text.strip().lower() in _DOUBTFUL}
    if classes and doubtful:
        shown = ", ".join(f"'{text}' in {n}" for text, n in doubtful.items())
        warn(
            f"Values of '{column}' that are taken as missing: {shown} of {len(texts)} samples. "
            "If one is a class, name it in --ordinal or write it otherwise in the metadata."
        )
    rows = np.array([row for row, _ in known], dtype=np.int64)
    return rows, [text for _, text in known]


def _constant(column: str, texts: Sequence[str]) -> DataError:
    return DataError(
        f"The column '{column}' has one value only",
        f"'{texts[0]}' in {len(texts)} samples",
        "there is nothing to learn; name another column",
    )


@dataclass(frozen=True)
class LabelledSamples:
    """Samples with their labels.

    Attributes:
        rows: int64 [n], ascending positions in the sample ids.
        values: float64 [n], numbers, ranks of ordered categories, or codes of `classes`.
        classes: names; empty for numbers and ranks.
    """

    rows: NDArray[np.int64]
    values: NDArray[np.float64]
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
    values: NDArray[np.float64]
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


def category_codes(target: TargetOptions, values: NDArray[np.float64]) -> NDArray[np.int64] | None:
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
    codes: NDArray[np.int64] | None = None,
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
            for split in read:
                parts = [{labels[row] for row in getattr(split, part)} for part in PARTS]
                counts = Counter(chain.from_iterable(parts))
                if divided := [group for group, number in counts.items() if number > 1]:
                    from_file = options.group_column is None
                    raise DataError(
                        "The splits file divides groups between training, validation and test "
                        "samples",
                        first_few(sorted(divided)),
                        "choose another file, or "
                        + ("correct its column group" if from_file else "leave out --group-column"),
                    )
        _check_classes(read, codes, refuse=False)
        return read, labels
    number = min(FOLDS, max(2, len(set(labels or sample_ids)))) if folds == "auto" else folds
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


def _check_classes(splits: Sequence[Split], codes: NDArray[np.int64] | None, refuse: bool) -> None:
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
                if np.unique(codes, return_counts=True)[1].min() == 1:
                    remedy = "merge the class of one sample, or leave it out (--where)"
                raise DataError(cause, f"{evidence} of {len(codes)} samples", remedy)
            warn(f"{cause}, so they cannot measure a model: {evidence}.")


Values = NDArray[np.float64]


@dataclass(frozen=True)
class TransformFunctions:
    """Functions of a transform `(forward(value) - shift) / scale`.

    Attributes:
        fit: maps the forward values of the training samples [N] to (shift, scale).
        forward, inverse: elementwise functions [N] -> [N], inverse to each other.
        slope: elementwise derivative of `inverse`.
        above: exclusive lower bound of the values that `forward` accepts.
    """

    fit: Callable[[Values], tuple[float, float]]
    forward: Callable[[Values], Values] = np.asarray
    inverse: Callable[[Values], Values] = np.asarray
    slope: Callable[[Values], Values] = np.ones_like
    above: float = -math.inf


def _minmax(values: Values) -> tuple[float, float]:
    return float(values.min()), float(np.ptp(values))


def _zscore(values: Values) -> tuple[float, float]:
    return float(values.mean()), float(values.std())


TRANSFORMS: dict[TransformName, TransformFunctions] = {
    "none": TransformFunctions(lambda values: (0.0, 1.0)),
    "minmax": TransformFunctions(_minmax),
    "zscore": TransformFunctions(_zscore),
    "log-minmax": TransformFunctions(_minmax, np.log1p, np.expm1, np.exp, above=-1.0),
    "log-zscore": TransformFunctions(_zscore, np.log1p, np.expm1, np.exp, above=-1.0),
}
"""Registry of --target-transform; the option lists the same names (`TransformName`)."""


@dataclass(frozen=True)
class TargetTransform:
    """Fitted transform `(forward(value) - shift) / scale`; `kind` is its name in `TRANSFORMS`."""

    kind: TransformName
    shift: float
    scale: AboveZero

    def apply(self, values: Values) -> Values:
        """Transform values from the units of the target."""
        return (TRANSFORMS[self.kind].forward(values) - self.shift) / self.scale

    def undo(self, values: Values) -> Values:
        """Transform values back to the units of the target."""
        return TRANSFORMS[self.kind].inverse(values * self.scale + self.shift)


@dataclass(frozen=True)
class OutputRange:
    """Range of the predictions of a number, in its units; None for no limit."""

    lowest: float | None = None
    highest: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest value; infinite without a limit."""
        return (
            -math.inf if self.lowest is None else self.lowest,
            math.inf if self.highest is None else self.highest,
        )

    def clip(self, values: Values) -> Values:
        """Replace values outside the range by its nearest limit."""
        return np.clip(values, *self.limits)

    def check(self, values: Values, column: str) -> None:
        """Refuse a range that the labels of the study contradict.

        Raises:
            UsageError: the lowest value is not below the highest.
            DataError: a label is outside the range.
        """
        low, high = self.limits
        flags = f"--output-min {low:g} --output-max {high:g}"
        if low >= high:
            raise UsageError("The range of the outputs is empty", flags, "give min below max")
        outside = values[(values < low) | (values > high)]
        if len(outside):
            raise DataError(
                f"Values of '{column}' are outside the range of the outputs",
                f"{flags}, {len(outside)} of {len(values)} values, for example {outside[0]:g}",
                "correct the values or the range",
            )


UNLIMITED = OutputRange()


def output_range(options: Train) -> OutputRange:
    """Return the range of --output-min and --output-max, or that of the ranks of --ordinal."""
    if levels := options.target.levels:
        return OutputRange(0.0, len(levels) - 1.0)
    return OutputRange(options.output_min, options.output_max)


@dataclass(frozen=True)
class TargetScale:
    """Scale on which estimators predict a target: its transform without fitted parameters.

    Attributes:
        transform: name of the transform of a numeric target; "none" for class probabilities.
        range: range of the predictions of a numeric target, in its units.
    """

    transform: TransformName = "none"
    range: OutputRange = UNLIMITED

    def forward(self, values: Values) -> Values:
        """Transform values from the units of the target."""
        return TRANSFORMS[self.transform].forward(values)

    def inverse(self, predictions: Values) -> Values:
        """Transform predictions to the units of the target, and clip them to the range."""
        return self.range.clip(TRANSFORMS[self.transform].inverse(predictions))


UNSCALED = TargetScale()


def fit_transform(name: TransformName, values: Values) -> TargetTransform:
    """Fit a transform to the values of the training samples.

    Args:
        name: value of --target-transform, a key of `TRANSFORMS`.
        values: float64 [N], labels of the training samples in the units of the target.

    Returns:
        The transform with its shift and scale.

    Raises:
        DataError: a value is outside the domain of the transform, or all values are equal.

    >>> transform = fit_transform("zscore", np.array([1.0, 3.0]))
    >>> transform.apply(np.array([3.0])).tolist(), transform.undo(np.array([1.0])).tolist()
    ([1.0], [3.0])
    """
    functions = TRANSFORMS[name]
    outside = values <= functions.above
    if outside.any():
        raise DataError(
            f"The target has values for which --target-transform {name} is not defined",
            f"{int(outside.sum())} of {functions.above:g} or less",
            "choose --target-transform zscore",
        )
    forward = functions.forward(values)
    if np.ptp(forward) == 0:
        raise DataError(
            "The target is the same in all training samples",
            f"{len(values)} samples of the split with {values[0]:g}",
            "add samples with other values, or choose other --folds, --seed or --splits",
        )
    return TargetTransform(name, *functions.fit(forward))


def contrasts(classes: int) -> Values:
    """Return the matrix [classes, C] from logits or log probabilities to scores.

    Two classes have one score, the log odds of the second; more have one for each, its log
    probability minus the mean of all.

    >>> (np.log([0.2, 0.8]) @ contrasts(2)).round(3).tolist()
    [1.386]
    """
    if classes == 2:
        return np.array([[-1.0], [1.0]])
    return np.eye(classes) - 1 / classes
