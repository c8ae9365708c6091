"""Repeated samples: the column of the metadata whose values are subjects with several samples.

A random split puts samples of one subject on both sides, and a model that recognizes the subject
scores too well. The column is found by structure, not by its name: it has many values, each on few
samples, and the most similar community of a sample is that of another sample of the same value. The
neighbour is searched among samples of the same class or of a similar number, so that another form
of the target is no evidence. Neighbouring numbers are alike in a measure, such as a day or a
weight, but not in the number of a subject.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.stats import rankdata

from aam.contract.errors import DataError
from aam.contract.options.commands.train import Train
from aam.data.metadata import as_numbers
from aam.data.targets import category_codes
from aam.evaluation.folds import Folds, training_rows
from aam.evaluation.intervals import SCORED, TITLES
from aam.evaluation.metrics import value_of
from aam.evaluation.splits import FOLDS, make_splits
from aam.members.member import TrainingSamples, estimator
from aam.training.labelled_study import LabelledStudy

_MAX_SAMPLES = 4000  # samples that are compared with each other; 4,000 take 2 CPU-seconds
_MIN_GROUPS = 8
_MIN_REPEATED = 0.25  # part of the samples that share their value with another sample
# Of 60 columns of four public studies, the subjects have 0.63 (26 times chance), others at most 5
# times chance, but combinations of properties of the subjects.
_MIN_HITS, _MIN_OVER_CHANCE = 0.1, 6
_MIN_NAMES = 15
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?$|\d{1,2}:\d\d")


@dataclass(frozen=True)
class RepeatedSamples:
    """Column of subjects with several samples, which the split divides.

    Attributes:
        column: its name.
        groups: number of subjects with several samples.
        values: value of each sample; "" where unknown.
    """

    column: str
    groups: int
    values: list[str]

    @property
    def labels(self) -> list[str]:
        """Subject of each sample; samples without a value are a group each."""
        return [text or f"sample {row}" for row, text in enumerate(self.values)]

    @property
    def sentence(self) -> str:
        """Advice, in one sentence."""
        return (
            f"{self.groups} values of '{self.column}' have several samples that are alike, which "
            f"the split divides: add --group-column {shlex.quote(self.column)}, or the score is "
            "too good."
        )


def find_repeated_samples(
    options: Train, study: LabelledStudy, folds: Folds
) -> RepeatedSamples | None:
    """Return the column of the metadata whose values are most clearly repeated subjects."""
    if options.split.group_column is not None:
        return None
    # The most similar sample of each one among those of a similar target, -1 for none, by the
    # Bhattacharyya coefficient of the relative abundances.
    table, labels = study.study.table, folds.labels
    number = len(table.sample_ids)
    rows = np.arange(number)
    if number > _MAX_SAMPLES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MAX_SAMPLES, replace=False))
    shares = sparse.csr_array(table.counts[rows], dtype=np.float64)
    shares = sparse.csr_array(shares.multiply(1 / table.reads[rows][:, None])).sqrt()
    similarity = (shares @ shares.T).toarray()
    values = labels.values[rows]
    if labels.classes or labels.levels:
        comparable = values[:, None] == values[None, :]
    else:
        ranks = rankdata(values)
        comparable = np.abs(ranks[:, None] - ranks[None, :]) <= len(rows) / 6
    np.fill_diagonal(comparable, False)
    similarity[~comparable] = -1
    nearest = similarity.argmax(axis=1)
    neighbour_N = np.full(number, -1)
    similar = similarity[np.arange(len(rows)), nearest] > 0
    neighbour_N[rows[similar]] = rows[nearest[similar]]
    best, most = None, 0.0
    ids = study.study.table.sample_ids
    for name in study.metadata.columns:
        if name == options.target.metadata_column:
            continue
        texts = study.metadata.values(name, ids).tolist()
        if (found := _excess(texts, neighbour_N, folds)) <= most:
            continue
        several = sum(n > 1 for n in Counter(filter(None, texts)).values())
        repeated = RepeatedSamples(name, several, texts)
        code_N = np.unique(repeated.labels, return_inverse=True)[1]
        # A column whose values the split keeps together is no leak.
        if any(
            np.isin(code_N[training_rows(split)], code_N[split.held_out[1]]).any()
            for split in folds.splits
        ):
            best, most = repeated, found
    return best


def score_with_groups(
    options: Train,
    study: LabelledStudy,
    samples: TrainingSamples,
    folds: Folds,
    repeated: RepeatedSamples,
    given_MC: npt.NDArray[np.float64] | None,
) -> dict[str, Any] | None:
    """Return `repeated_samples` of scores.json: the kernel's score with and without the subjects.

    None where the subjects cannot be split.
    """
    kernel = estimator("kernel")
    codes = category_codes(options.target, study.values) if options.split.stratify else None
    groups_N = np.unique(repeated.labels, return_inverse=True)[1]
    number = len(folds.splits) if len(folds.splits) > 1 else FOLDS
    try:
        splits = make_splits(
            len(groups_N), test_size=0, folds=min(number, int(groups_N.max()) + 1),
            seed=folds.seed, groups=repeated.labels, classes=codes,
        )  # fmt: skip
        labels = dataclasses.replace(folds.labels, groups=groups_N)
        apart = Folds(labels, splits, folds.seed, repeated.column, folds.scale)
        grouped_MC = kernel.cross_validate(samples, apart, False, "groups").predictions_MC
    except DataError:  # fewer subjects than folds, or a class of one subject
        return None
    if given_MC is None:
        given_MC = kernel.cross_validate(samples, folds, False, "split").predictions_MC
    metric, function = next(iter(SCORED[folds.labels.type].items()))
    given = value_of(function, folds.scored(given_MC))
    drawn = apart.drawn(grouped_MC)
    grouped = drawn.whole[metric]
    if np.isnan(given) or np.isnan(grouped):
        return None
    title = TITLES[metric]
    ahead = drawn.paired_difference(apart.drawn(apart.dummy_MC))[1]
    return {
        "column": repeated.column,
        "groups": repeated.groups,
        "metric": metric,
        "given": given,
        "grouped": grouped,
        "lower": ahead.lower,
        "upper": ahead.upper,
        "better": ahead.lower is not None and ahead.lower > 0,
        "sentence": (
            f"With all samples of a '{repeated.column}' on one side of the split the kernel has "
            f"{title} {grouped:.3f}, on this split {given:.3f}: add --group-column "
            f"{shlex.quote(repeated.column)}"
        ),
    }


def _excess(texts: Sequence[str], neighbour_N: npt.NDArray[np.int64], folds: Folds) -> float:
    """Return how often the neighbour has the same value, over chance; 0 of other columns."""
    known_N = np.array([bool(text) for text in texts])
    values: npt.NDArray[Any] = np.array(texts)
    numbers_N = as_numbers(texts)
    numeric = not np.isnan(numbers_N[known_N]).any()
    if numeric:
        # Numbers of subjects are whole; infinite values are none.
        if not all(number.is_integer() for number in numbers_N[known_N].tolist()):
            return 0.0  # a measure
        values = numbers_N
    elif all(_DATE.match(text) for text in texts if text):
        return 0.0
    _, code_N, size_V = np.unique(values, return_inverse=True, return_counts=True)
    size_N = np.where(known_N, size_V[code_N], 0)
    repeated_N, samples = size_N > 1, int(known_N.sum())
    sizes = np.unique(code_N[known_N], return_counts=True)[1]
    if (
        len(sizes) < _MIN_GROUPS
        or np.median(sizes) > samples / _MIN_GROUPS
        or repeated_N.sum() < _MIN_REPEATED * len(texts)
    ):
        return 0.0
    target_N = folds.labels.values
    compared = np.flatnonzero(repeated_N & (neighbour_N >= 0) & known_N[neighbour_N])
    if len(compared) >= _MIN_GROUPS:
        other = neighbour_N[compared]
        hits = float((code_N[compared] == code_N[other]).mean())
        # Among samples of the same class a value of few samples is a larger part than among all.
        class_N = np.zeros_like(code_N)
        if folds.labels.type != "regression":
            class_N = np.unique(target_N, return_inverse=True)[1]
        both_N = np.unique(np.stack([class_N, code_N]), axis=1, return_inverse=True)[1].ravel()
        alike_N = (np.bincount(both_N)[both_N] - 1) / np.maximum(
            np.bincount(class_N)[class_N] - 1, 1
        )
        chance = max(float(alike_N[compared].mean()), 1 / samples)
        beside = float((np.abs(code_N[compared] - code_N[other]) == 1).mean()) if numeric else 0.0
        if hits >= max(_MIN_HITS, _MIN_OVER_CHANCE * chance, 3 * beside):
            return hits / chance
    # Without alike communities, values of few samples that all have the same target: a name that
    # repeats the number itself is another form of it, and neighbouring numbers of a measure have
    # the same class.
    if len(sizes) < _MIN_NAMES or numeric:
        return 0.0
    # The numbers in the names are the target, as in `31 years`.
    inside_N = as_numbers([re.sub(r"[^\d.]", "", text).strip(".") for text in texts])
    if np.isclose(inside_N, target_N).mean() > 0.5:
        return 0.0
    repeated = [np.flatnonzero(code_N == code) for code in np.unique(code_N[repeated_N])]
    constant = np.mean([len(np.unique(target_N[rows])) == 1 for rows in repeated])
    shares = np.unique(target_N[known_N], return_counts=True)[1] / samples
    expected = np.mean([(shares ** len(rows)).sum() for rows in repeated])
    named = len(sizes) >= 3 * len(folds.labels.classes or folds.labels.levels)
    return float(constant) if named and constant >= 0.9 and expected <= 0.6 else 0.0


def same_values(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two columns divide the samples alike, whatever the values are called."""
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))
