"""Covariates: metadata columns that a model reads besides the counts, and their encoder.

The encoder is fitted to training samples. Category 0 is "unknown": the value is missing, or fewer
than two training samples have it, so samples from a new site can be predicted. A missing number is
replaced by the mean of the training samples and marked as missing.
Shape suffixes: N samples, K categorical columns, J numeric columns, W features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aam.arrays import F64
from aam.console import warn
from aam.contract.errors import DataError, UsageError, first_few, repeated
from aam.contract.options.groups import CovariateOptions
from aam.contract.records import AboveZero
from aam.data.formats.text import number_remedy
from aam.data.metadata import LARGEST_NUMBER, Metadata, as_numbers, warn_of_codes

UNKNOWN = 0  # code of a category that is missing or unknown
_MIN_SAMPLES = 2  # smallest number of training samples with a known category

_MAX_NUMBERS = 10
"""Distinct numbers up to which a column with mostly unique values counts as categorical."""


@dataclass(frozen=True)
class Covariates:
    """Values of the covariates of N samples."""

    categories: Mapping[str, npt.NDArray[np.str_]]  # column -> str [N], "" where missing
    numbers: Mapping[str, F64]  # column -> float64 [N], NaN where missing

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (*self.categories, *self.numbers)

    @property
    def samples(self) -> int:
        """Number of samples, N."""
        return len(next(iter((*self.categories.values(), *self.numbers.values()))))

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Whether each sample has all values, [N]."""
        known = [values != "" for values in self.categories.values()]
        complete_N: npt.NDArray[np.bool_]
        complete_N = np.all([*known, *map(np.isfinite, self.numbers.values())], axis=0)
        return complete_N

    def take(self, rows: npt.NDArray[np.int64]) -> Covariates:
        """Return the values of the samples at `rows`."""
        return Covariates(
            {name: values[rows] for name, values in self.categories.items()},
            {name: values[rows] for name, values in self.numbers.items()},
        )

    def warn_of_constant_target(self, values_N: F64, column: str) -> None:
        """Warn about categories whose samples all have the same target value."""
        for name, categories in self.categories.items():
            names = sorted(set(categories.tolist()) - {""})
            shared = [category for category in names if (categories == category).sum() > 1]
            constant = [
                category for category in shared if np.ptp(values_N[categories == category]) == 0
            ]
            if constant:
                warn(
                    f"'{column}' is the same in all samples of {len(constant)} of {len(shared)} "
                    f"categories of '{name}' ({first_few(constant)}): these predict it alone."
                )

    @classmethod
    def read(
        cls,
        options: CovariateOptions,
        metadata: Metadata,
        sample_ids: Sequence[str],
        column_of_flag: Mapping[str, str | None],
    ) -> Covariates | None:
        """Read the covariates of a study; None without any."""
        categorical = metadata.listed(options.categorical_columns)
        numeric = metadata.listed(options.numeric_columns)
        columns = (*categorical, *numeric)
        if not columns:
            return None
        if twice := repeated(columns):
            raise UsageError(
                "A metadata column is an input of the model twice",
                first_few(twice),
                "name each once",
            )
        for flag, column in column_of_flag.items():
            if column in columns:
                raise UsageError(
                    f"The column of {flag} cannot be an input of the model",
                    f"'{column}'",
                    "leave it out of --categorical-columns and --numeric-columns",
                )
        covariates = _read(categorical, numeric, metadata, sample_ids)
        for name, values in covariates.categories.items():
            counts = Counter(values[values != ""].tolist())
            mostly_different = len(counts) > _MAX_NUMBERS and 2 * len(counts) > counts.total()
            if mostly_different and np.isfinite(as_numbers(list(counts))).all():
                raise DataError(
                    f"The column '{name}' of --categorical-columns is numeric",
                    f"it has {len(counts)} different numbers in {counts.total()} samples",
                    "name it in --numeric-columns",
                )
            if max(counts.values(), default=0) < _MIN_SAMPLES:
                raise DataError(
                    f"No two samples have the same category of '{name}'",
                    f"{len(counts)} categories in {len(values)} samples",
                    "leave it out of --categorical-columns",
                )
            if single := sorted(value for value, number in counts.items() if number < _MIN_SAMPLES):
                warn(
                    f"Categories of '{name}' with a single sample count as unknown: "
                    f"{first_few(single)}."
                )
        return covariates


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of a number in the training samples."""

    mean: float
    spread: AboveZero


@dataclass(frozen=True)
class CovariateEncoder:
    """Encoder of covariates, fitted to training samples; stored in checkpoints."""

    categories: dict[str, tuple[str, ...]]  # column -> its known categories, with codes from 1 on
    numbers: dict[str, Standard]  # column -> its mean and spread

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (*self.categories, *self.numbers)

    @property
    def width(self) -> int:
        """Number of features, W."""
        return sum(map(len, self.categories.values())) + 2 * len(self.numbers)

    def codes_NK(self, covariates: Covariates) -> npt.NDArray[np.int64]:
        """Encode categories as integers, int64 [N, K]; `UNKNOWN` for an unknown category."""
        columns = []
        for name, categories in self.categories.items():
            code_of = {value: code for code, value in enumerate(categories, start=UNKNOWN + 1)}
            values = covariates.categories[name].tolist()
            columns.append([code_of.get(value, UNKNOWN) for value in values])
        return np.array(columns, dtype=np.int64).reshape(len(columns), covariates.samples).T

    def numbers_NJ(self, covariates: Covariates) -> F64:
        """Standardize the numbers, and append indicators of missing numbers, [N, 2 J]."""
        columns = [
            (covariates.numbers[name] - standard.mean) / standard.spread
            for name, standard in self.numbers.items()
        ]
        values = np.array(columns, dtype=np.float64).reshape(len(columns), covariates.samples).T
        missing = np.isnan(values)
        return np.hstack([np.where(missing, 0.0, values), missing])

    def features_NW(self, covariates: Covariates) -> F64:
        """One-hot encode the known categories and append the numbers, float64 [N, W]."""
        codes_NK, categories_K = self.codes_NK(covariates), self.categories.values()
        indicators = [
            # An unknown category has 0 in every column, so it needs no column.
            np.eye(len(names) + 1)[codes][:, 1:]
            for codes, names in zip(codes_NK.T, categories_K, strict=True)
        ]
        return np.hstack([*indicators, *([self.numbers_NJ(covariates)] if self.numbers else [])])

    def by_column(self, effects_NW: F64) -> dict[str, F64]:
        """Sum effects of the features over the features of each column."""
        names = [name for name, categories in self.categories.items() for _ in categories]
        names += 2 * list(self.numbers)  # each number, and whether it is missing
        return {
            column: effects_NW[:, [name == column for name in names]].sum(axis=1)
            for column in self.columns
        }

    def read(self, metadata: Metadata, sample_ids: Sequence[str]) -> Covariates:
        """Read the columns of new samples, and warn about unknown and missing values."""
        columns = _read(tuple(self.categories), tuple(self.numbers), metadata, sample_ids)
        for name, codes in zip(self.categories, self.codes_NK(columns).T, strict=True):
            values = columns.categories[name]
            new = Counter(values[(codes == UNKNOWN) & (values != "")].tolist())
            if new:
                warn(
                    f"Categories of '{name}' without training samples count as unknown: "
                    f"{new.total()} of {len(values)} samples, {first_few(sorted(new))}."
                )
        return columns

    @classmethod
    def fit(cls, covariates: Covariates | None) -> CovariateEncoder | None:
        """Fit a covariate encoder to the training samples; None without covariates.

        Held-out samples must not decide which categories are known.

        >>> sites = np.array(["gut", "gut", "skin", "oral", "oral"])
        >>> encoder = CovariateEncoder.fit(Covariates({"site": sites}, {}))
        >>> encoder.categories["site"]
        ('gut', 'oral')
        """
        if covariates is None:
            return None
        categories = {}
        for name, values in covariates.categories.items():
            counts = Counter(values[values != ""].tolist())
            names = sorted(value for value, number in counts.items() if number >= _MIN_SAMPLES)
            categories[name] = tuple(names)
        numbers = {}
        for name, column_values in covariates.numbers.items():
            present = column_values[~np.isnan(column_values)]
            mean, spread = (present.mean(), present.std()) if len(present) else (0.0, 0.0)
            # A constant column has the standard deviation 0; dividing by 1 avoids a division by 0.
            numbers[name] = Standard(float(mean), float(spread) or 1.0)
        return cls(categories, numbers)


def _read(
    categorical: Sequence[str],
    numeric: Sequence[str],
    metadata: Metadata,
    sample_ids: Sequence[str],
) -> Covariates:
    columns = (*categorical, *numeric)
    if absent := [name for name in columns if name not in metadata.columns]:
        raise DataError(
            f"The metadata lacks columns that the model reads: {', '.join(absent)}",
            f"it has {first_few(list(metadata.columns))}",
            "add them, with empty cells for unknown values",
        )
    texts = {name: metadata.values(name, sample_ids) for name in columns}
    numbers = {name: as_numbers(texts[name].tolist()) for name in numeric}
    for name, values in numbers.items():
        usable = np.isfinite(values) & (np.abs(values) <= LARGEST_NUMBER)
        if wrong := sorted(set(texts[name][(texts[name] != "") & ~usable].tolist())):
            raise DataError(
                f"The column '{name}' of --numeric-columns is not numeric",
                f"distinct values that are not numbers, infinite or beyond {LARGEST_NUMBER:g}: "
                f"{first_few(wrong)}",
                number_remedy(wrong, "correct them, or name it in --categorical-columns"),
            )
        warn_of_codes(name, values)
    missing = {name: int((texts[name] == "").sum()) for name in columns}
    if incomplete := [f"{number} without '{name}'" for name, number in missing.items() if number]:
        warn(
            f"Samples with missing metadata: {', '.join(incomplete)}; a missing category counts as "
            "unknown, a missing number as the mean of the training samples."
        )
    return Covariates({name: texts[name] for name in categorical}, numbers)
