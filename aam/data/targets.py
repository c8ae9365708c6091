"""Targets: labels of samples from a metadata column, classes, transforms and ranges of numbers.

`aam train`, `aam inspect` and `aam evaluate` use the same functions, so equal options select equal
samples.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aam.arrays import F64
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.groups import TransformName
from aam.contract.records import AboveZero
from aam.data.formats.text import likely_difference, number_remedy
from aam.data.metadata import (
    DOUBTFUL,
    LARGEST_NUMBER,
    Metadata,
    as_numbers,
    is_missing,
    normalized,
    warn_of_codes,
)

_REFERENCES = {"control", "controls", "healthy", "normal", "no", "non", "not", "negative"}
_REFERENCES |= {"absent", "baseline", "false", "0", "ctrl", "hc"}
"""Words in the name of a reference class (control)."""

_FEW_SAMPLES = 10
_FEW_NUMBERS = 20  # distinct numbers up to which a column may be classes


@dataclass(frozen=True)
class LabelledSamples:
    """Samples with a label."""

    rows: NDArray[np.int64]  # [n], ascending positions in the sample ids
    values: F64  # [n], numbers, ranks of ordered categories, or codes into `classes`
    classes: tuple[str, ...] = ()  # names; empty for numbers and ranks


def has_classes(metadata: Metadata, column: str) -> bool:
    """Return whether a column has classes: words, or any values if #q2:types says categorical.

    A few cells that are not numbers, decimal commas, and a word for values below a detection limit
    are errors in a numeric column, not classes. Dates count as numbers. A column whose values
    differ in nearly all samples has ids.

    >>> def of(*cells: str, **types: frozenset[str]) -> bool:
    ...     return has_classes(Metadata(cells, {"x": cells}, **types), "x")
    >>> of("sick", "well", "sick", "NA", "well"), of("4,5", "5,1", "high")
    (True, False)
    >>> of("low", "low", "low", "4.5", "5.1"), of(*["2024-03-01"] * 3)
    (False, False)
    >>> of("1", "2", "1", "2"), of("1", "2", "1", "2", categorical=frozenset({"x"}))
    (False, True)
    """
    present = [cell for cell in metadata.columns.get(column, ()) if not is_missing(cell)]
    counts = Counter(present)
    is_word = {
        cell: bool(np.isnan(number)) and not number_remedy([cell], "")
        for cell, number in zip(counts, as_numbers(list(counts)).tolist(), strict=True)
    }
    # Words must be the majority of the samples and of the distinct values.
    samples_with_words = sum(counts[cell] for cell in counts if is_word[cell])
    are_words = 2 * samples_with_words > len(present) and 2 * sum(is_word.values()) > len(counts)
    return (are_words or column in metadata.categorical) and not _as_ids(len(counts), len(present))


def _as_ids(classes: int, samples: int) -> bool:
    """Return whether a column has so many distinct values that it holds ids or numbers."""
    return 2 * classes > samples > _FEW_SAMPLES


def likely_positive(classes: Sequence[str]) -> str:
    """Guess the positive class of two: the class that is no control, else the second.

    >>> likely_positive(["Crohn's disease", "healthy"]), likely_positive(["control", "healthy"])
    ("Crohn's disease", 'healthy')
    """
    words_of_classes = ({*re.findall(r"[a-z]+|^0$", name.casefold())} for name in classes)
    first, second = (bool(_REFERENCES & of_class) for of_class in words_of_classes)
    return classes[0] if second and not first else classes[1]


def label_samples(
    metadata: Metadata,
    column: str,
    sample_ids: Sequence[str],
    classifier: bool = False,
    levels: Sequence[str] = (),
    *,
    min_classes: int = 2,
    of_model: str = "",
) -> LabelledSamples:
    """Label the samples with a value in `column`; print how many are left out, and why."""
    names = [normalized(level) for level in levels]
    order = f"{'the model has' if of_model else '--ordinal'} {','.join(levels)}"
    if levels and (len(names) < 2 or len(set(names)) < len(names) or "" in names):
        remedy = "name each category of the column once, the lowest first"
        raise UsageError("No order of two or more categories", order, remedy)
    rows, labels = _with_value(metadata, column, sample_ids, names, classifier or bool(levels))
    if not classifier and not levels:
        remedy = of_model or "correct them, or add --classifier if it is a category"
        values = _numbers(column, labels, [sample_ids[row] for row in rows.tolist()], remedy)
        return LabelledSamples(rows, values)
    labels = [normalized(text) for text in labels]
    counts = Counter(labels)
    if unknown := {name: counts[name] for name in sorted(counts) if levels and name not in names}:
        raise DataError(
            f"The column '{column}' has values that the order does not have",
            f"{first_few(unknown)} in {sum(unknown.values())} of {len(labels)} samples, {order}",
            f"{'--relabel them' if of_model else 'add them at their place in the order'}, or leave "
            "the samples out by --where",
        )
    if len(counts) < (2 if levels else min_classes):
        raise _constant(column, labels)
    if levels:
        if absent := [name for name in names if name not in counts]:
            warn(f"Categories of --ordinal that no sample has in '{column}': {first_few(absent)}.")
        _warn_of_single(column, counts)
        return LabelledSamples(rows, encode_labels(labels, names).astype(np.float64))
    _check_classes(column, counts, of_model or "leave out --classifier")
    classes = tuple(sorted(counts))
    return LabelledSamples(rows, encode_labels(labels, classes).astype(np.float64), classes)


def _with_value(
    metadata: Metadata,
    column: str,
    sample_ids: Sequence[str],
    levels: Sequence[str],
    is_category: bool,
) -> tuple[NDArray[np.int64], list[str]]:
    """Find the samples with a value; print how many have none, and why."""
    texts = metadata.texts(column, sample_ids)
    present = [(row, text) for row, text in enumerate(texts) if text is not None]
    # `none` and `NA` are values if --ordinal names them.
    labelled = [(row, text) for row, text in present if text in levels or not is_missing(text)]
    missing = Counter(text for _, text in present if text not in levels and is_missing(text))
    reasons = [f"{times} with '{column}' '{value}'" for value, times in missing.most_common()]
    if len(present) < len(texts):
        likely = likely_difference(sample_ids, metadata.ids)
        of_ids = f", whose ids differ from the metadata in {likely}" if likely else ""
        reasons.insert(0, f"{len(texts) - len(present)} without metadata{of_ids}")
    counted = f"{len(texts) - len(labelled)} of {len(texts)} ({', '.join(reasons)})"
    if not labelled:
        raise DataError(
            f"No sample has a value in the column '{column}'", counted, "name another column"
        )
    # "none" or "NA" may be the name of a class.
    doubtful = {text: n for text, n in missing.items() if text.strip().lower() in DOUBTFUL}
    if doubtful and is_category:
        names = " and ".join(f"'{text}'" for text in doubtful)
        remedy = "name it in --ordinal, or write it otherwise in the metadata"
        warn(f"Samples left out: {counted}. If {names} is a class, {remedy}.")
    elif reasons:
        info(f"Samples left out: {counted}.")
    return np.array([row for row, _ in labelled], dtype=np.int64), [text for _, text in labelled]


def spelling(name: str) -> str:
    """Normalize the spelling of a class name: lower case, single spaces."""
    return " ".join(name.casefold().split())


def _check_classes(column: str, counts: Counter[str], of_numbers: str) -> None:
    """Refuse numbers as classes, and warn of doubtful classes; `counts` has samples by class."""
    classes, samples = sorted(counts), counts.total()
    are_numbers = not np.isnan(as_numbers(classes)).any()
    if _as_ids(len(classes), samples):
        if are_numbers:
            raise DataError(
                f"The column '{column}' is numeric",
                f"it has {len(classes)} different numbers in {samples} samples",
                of_numbers,
            )
        if len(classes) == samples:
            raise DataError(
                f"The column '{column}' has another value in every sample",
                f"{first_few(classes)} in {samples} samples",
                "name a column with several samples in each class; ids and dates are no classes",
            )
        warn(
            f"'{column}' has {len(classes)} classes in {samples} samples, as a column of ids "
            "has: name another --metadata-column, or restrict the samples by --where."
        )
        return
    if len(classes) > _FEW_NUMBERS and are_numbers:
        warn(
            f"The {len(classes)} classes of '{column}' are numbers: without --classifier the "
            "number is predicted."
        )
    _warn_of_single(column, counts)
    # Two spellings of one class would be learnt as two classes.
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(spelling(name), []).append(name)
    if same := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        warn(
            f"Classes of '{column}' that differ in case or spaces alone: {first_few(same)}. "
            "Write them alike in the metadata if they are one class."
        )


def _warn_of_single(column: str, counts: Counter[str]) -> None:
    if single := [name for name in sorted(counts) if counts[name] == 1]:
        warn(
            f"Classes of '{column}' with a single sample: {first_few(single)}. A model that learns "
            "such a class cannot be tested on it: merge it, or leave it out (--where)."
        )


def _numbers(column: str, texts: Sequence[str], sample_ids: Sequence[str], of_words: str) -> F64:
    values = as_numbers(texts)
    if wrong := [texts[row] for row in np.flatnonzero(np.isnan(values)).tolist()]:
        raise DataError(
            f"The column '{column}' is not numeric",
            f"{len(wrong)} of {len(texts)} values are not numbers, distinct ones: "
            f"{first_few(dict.fromkeys(wrong))}",
            number_remedy(wrong, of_words),
        )
    for fault, is_wrong, remedy in (
        ("infinite values", np.isinf(values), "leave these cells empty"),
        (
            f"numbers beyond {LARGEST_NUMBER:g}",
            np.abs(values) > LARGEST_NUMBER,
            "give the column in larger units, or leave these cells empty",
        ),
    ):
        if samples := [sample_ids[row] for row in np.flatnonzero(is_wrong).tolist()]:
            evidence = f"in samples {first_few(samples)}"
            raise DataError(f"The column '{column}' has {fault}", evidence, remedy)
    if np.all(values == values[0]):
        raise _constant(column, texts)
    warn_of_codes(column, values)
    return values


def _constant(column: str, texts: Sequence[str]) -> DataError:
    return DataError(
        f"The column '{column}' has one value only",
        f"'{texts[0]}' in {len(texts)} samples",
        "there is nothing to learn or to score; name another column",
    )


def encode_labels(labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Encode labels as integer codes into `classes`.

    >>> encode_labels(["sick", "well", "sick"], ["well", "sick"]).tolist()
    [1, 0, 1]
    """
    code_of = {name: code for code, name in enumerate(classes)}
    return np.array([code_of[label] for label in labels], dtype=np.int64)


@dataclass(frozen=True)
class TransformFunctions:
    """Functions of a target transform `(forward(value) - shift) / scale`."""

    # maps the forward values of the training samples [N] to (shift, scale)
    fit: Callable[[F64], tuple[float, float]]
    # forward, inverse: elementwise functions [N] -> [N], inverse to each other
    forward: Callable[[F64], F64] = np.asarray
    inverse: Callable[[F64], F64] = np.asarray
    slope: Callable[[F64], F64] = np.ones_like  # elementwise derivative of `inverse`
    above: float = -math.inf  # exclusive lower bound of the values that `forward` accepts


def _minmax(values: F64) -> tuple[float, float]:
    return float(values.min()), float(np.ptp(values))


def _zscore(values: F64) -> tuple[float, float]:
    return float(values.mean()), float(values.std())


TRANSFORMS: dict[TransformName, TransformFunctions] = {
    "none": TransformFunctions(lambda values: (0.0, 1.0)),
    "minmax": TransformFunctions(_minmax),
    "zscore": TransformFunctions(_zscore),
    "log-minmax": TransformFunctions(_minmax, np.log1p, np.expm1, np.exp, above=-1.0),
    "log-zscore": TransformFunctions(_zscore, np.log1p, np.expm1, np.exp, above=-1.0),
}
"""Registry of --target-transform; `TransformName` lists the same names."""


@dataclass(frozen=True)
class TargetTransform:
    """Fitted target transform `(forward(value) - shift) / scale`; `kind` as in `TRANSFORMS`."""

    kind: TransformName
    shift: float
    scale: AboveZero

    def apply(self, values: F64) -> F64:
        """Transform values in units of the target."""
        return (TRANSFORMS[self.kind].forward(values) - self.shift) / self.scale

    def undo(self, values: F64) -> F64:
        """Transform values back to the units of the target."""
        return TRANSFORMS[self.kind].inverse(values * self.scale + self.shift)

    @classmethod
    def fit(cls, name: TransformName, values: F64) -> TargetTransform:
        """Fit a target transform to the labels [N] of the training samples.

        >>> transform = TargetTransform.fit("zscore", np.array([1.0, 3.0]))
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
        return cls(name, *functions.fit(forward))


@dataclass(frozen=True)
class OutputRange:
    """Range of numeric predictions, in units of the target; None for no limit."""

    lowest: float | None = None
    highest: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest value; infinite without a limit."""
        return (
            -math.inf if self.lowest is None else self.lowest,
            math.inf if self.highest is None else self.highest,
        )

    def clip(self, values: F64) -> F64:
        """Clip values to the range."""
        return np.clip(values, *self.limits)

    def check(self, values: F64, column: str) -> None:
        """Refuse an empty range (UsageError), and labels outside the range (DataError)."""
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

    @classmethod
    def of(
        cls, levels: Sequence[str], output_min: float | None, output_max: float | None
    ) -> OutputRange:
        """Make the range of predictions: ranks of --ordinal, or --output-min to --output-max."""
        return cls(0.0, len(levels) - 1.0) if levels else cls(output_min, output_max)


UNLIMITED = OutputRange()


@dataclass(frozen=True)
class TargetScale:
    """Scale of the predictions of estimators: a target transform without fitted parameters."""

    transform: TransformName = "none"  # "none" also for class probabilities
    range: OutputRange = UNLIMITED  # range of the predictions of a numeric target, in its units

    def forward(self, values: F64) -> F64:
        """Transform values in units of the target."""
        return TRANSFORMS[self.transform].forward(values)

    def inverse(self, predictions: F64) -> F64:
        """Transform predictions back to units of the target, and clip them to the range."""
        return self.range.clip(TRANSFORMS[self.transform].inverse(predictions))


UNSCALED = TargetScale()


def contrasts(classes: int) -> F64:
    """Return the contrast matrix [classes, C] from logits or log probabilities to scores.

    Two classes have one score: the log odds of the second class. More classes have one score each:
    the log probability minus the mean over classes.

    >>> (np.log([0.2, 0.8]) @ contrasts(2)).round(3).tolist()
    [1.386]
    """
    if classes == 2:
        return np.array([[-1.0], [1.0]])
    return np.eye(classes) - 1 / classes
