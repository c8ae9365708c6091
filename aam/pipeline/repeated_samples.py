"""Repeated samples: the column of the metadata whose values are subjects with several samples.

A random split puts samples of one subject in training and in test, and a model that recognizes the
subject scores too well. The sample with the nearest community is then often another sample of the
same subject. Neighbours are searched, and chance is computed, among samples of the same class or
with similar numbers: a column that refines the target is no evidence. Measures, such as a day, are
no evidence either, since adjacent values are alike too. Samples of a site or a study are as alike
as samples of a subject, but come from persons of both sexes, several at a time.
`docs/experiments/intervals.md` measures how often subjects, and other columns, are found.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.stats import rankdata, spearmanr

from aam.arrays import F64, Rows
from aam.data.metadata import Metadata, as_numbers
from aam.data.table import FeatureTable
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import FILE_GROUPS

_MAX_SAMPLES = 4000  # samples that are compared with each other; 4,000 take 2 CPU-seconds
_MIN_REPEATED = 0.25  # fraction of the samples that share their value with another sample
_MIN_COMPARED = 8  # samples with a comparable one of the same value, and one of another

# Between samples of real subjects (infants, mouths) kappa is 0.27 to 0.29 with 2 samples each, with
# more 0.5 to 0.7. Months and diets by month of independent samples have at most 0.1.
_MIN_KAPPA = 0.2  # (hits - chance) / (1 - chance)
_MIN_RATIO = 4.0  # hits / chance
_SURE_KAPPA = 0.4  # where so few values are comparable that no ratio is as high
_MIN_Z = 4.0  # standard errors of the hits by chance
_MIN_VALUES = 12  # sites, studies and treatments have fewer
_LARGE = 5  # median samples of a value; a household or a cage of fewer may be of both sexes
_FEW_VALUES = 5  # of one sex each, or with one sample at a time
_MAX_BY_TARGET = 1.5  # neighbours of the same value by the target, over those by chance
_MIN_EXPECTED = 12  # pairs of samples that share two values by chance
_MAX_RECURRING = 0.2  # pairs that do, over those
_NAMED_MIN_Z = 3.0  # the only limit of a column that is named after subjects

_SUBJECTS = re.compile(
    r"(?:host[ _.-]?)?(?:subject|patient|participant|individual|donor|volunteer|proband)s?|"
    r"(?:\w+[ _.-]?)?(?:subject|patient|participant|individual|donor|volunteer|proband|person|host"
    r"|infant|child|animal|mouse)(?P<id>[ _.-]?(?:id|ids|code|nr|no|num|number))|anonymized_name",
    re.IGNORECASE,
)
"""Names of columns of subjects, as MIMARKS's host_subject_id."""

_FACTORS = re.compile(
    r".*(?:collect|sampling|visit|extract|sequenc|timestamp|plate|batch|lane|(?:^|[ _.-])run).*|"
    r"(?!study[ _.-](?:id|code|nr|no|number))(?:\w+[ _.-])?(?:(?:body)?site|study|project|cohort"
    r"|data[ _]?set|country|city|region|province|location|geo_loc_name|biome|habitat|species|breed"
    r"|strain|genotype|taxon|cent(?:er|re)|clinic|hospital|lab|arm|treatment|intervention|diet|drug"
    r"|dose|type|stage|season|month|week)s?(?:[ _.-](?:id|name|code|nr|no|number))?",
    re.IGNORECASE,
)
"""Names of columns of treatments, processing steps and origins."""

_SEX = re.compile(r"(?:\w+[ _.-])?(?:sex|gender)", re.IGNORECASE)


@dataclass(frozen=True)
class RepeatedSamples:
    """Column of subjects; some subjects have several samples."""

    column: str
    values: list[str]  # of each sample; "" where unknown
    in_training: bool  # some of a subject's samples train, others are held out

    @property
    def groups(self) -> int:
        """Number of subjects with several samples."""
        return sum(n > 1 for n in Counter(filter(None, self.values)).values())

    @property
    def labels(self) -> list[str]:
        """Subject of each sample; samples without a value are a group each."""
        return [text or f"sample {row}" for row, text in enumerate(self.values)]

    @property
    def sentence(self) -> str:
        """Advice, in one sentence."""
        text = f"{self.groups} values of '{self.column}' have several similar samples each"
        option = f"--group-column {shlex.quote(self.column)}"
        if self.in_training:
            return (
                f"{text}, some in training and some in test: add {option}, or scores are too high."
            )
        return f"{text}: they count as groups, not as independent samples (add {option})."


@dataclass(frozen=True)
class Communities:
    """Similarity of the communities of R of N samples."""

    rows_R: Rows
    # cosine of the fourth roots of the abundances, 0 to 1; -1 of a sample with itself. Subjects
    # differ in rare ASVs too; these count more than in other similarities
    similarity_RR: npt.NDArray[np.float32]
    # whether two samples have the same class, or numbers that at most a quarter of the samples lie
    # between
    comparable_RR: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, counts: sparse.csr_array, labels: Labels) -> Communities:
        """Compare the samples of a table [N, F], or `_MAX_SAMPLES` of them."""
        rows_R = np.arange(counts.shape[0])
        if len(rows_R) > _MAX_SAMPLES:
            rows_R = np.sort(np.random.default_rng(0).choice(rows_R, _MAX_SAMPLES, replace=False))
        roots = sparse.csr_array(counts[rows_R], dtype=np.float32).sqrt()
        # The squares of fourth roots are square roots.
        roots = sparse.csr_array(roots.multiply(1 / roots.sum(axis=1)[:, None])).sqrt()
        similarity_RR = (roots @ roots.T).toarray().astype(np.float32)
        values_R = labels.values[rows_R]
        if labels.classes or labels.levels:
            comparable_RR = values_R[:, None] == values_R[None, :]
        else:
            ranks_R = rankdata(values_R)
            comparable_RR = np.abs(ranks_R[:, None] - ranks_R[None, :]) <= len(rows_R) / 4
        np.fill_diagonal(comparable_RR, False)
        np.fill_diagonal(similarity_RR, -1)
        return cls(rows_R, similarity_RR, comparable_RR)

    def nearest(
        self, code_N: Rows, known_N: npt.NDArray[np.bool_], all_samples: bool
    ) -> tuple[Rows, Rows, F64]:
        """Return values of samples, values of their nearest samples, and the chance of agreement.

        Neighbours and chance are among the comparable samples; among all, if the values hardly
        follow the target. Only samples that have comparable samples both with their own value and
        with another value are returned.
        """
        rows = np.flatnonzero(known_N[self.rows_R])
        code_R, similarity_RR = code_N[self.rows_R[rows]], self.similarity_RR[np.ix_(rows, rows)]
        comparable_RR = self.comparable_RR[np.ix_(rows, rows)]
        among_RR = similarity_RR >= 0
        same_RR = among_RR & (code_R[:, None] == code_R)
        # Pairs with the same value that are comparable by chance; more if they follow the target.
        expected = same_RR.sum() * (comparable_RR.sum() / max(among_RR.sum(), 1))
        if not all_samples and (same_RR & comparable_RR).sum() > _MAX_BY_TARGET * expected:
            among_RR &= comparable_RR
        similarity_RR[~among_RR] = -1
        alike_R = (among_RR & same_RR).sum(axis=1)
        among_R = among_RR.sum(axis=1)
        used_R = (similarity_RR.max(axis=1, initial=-1) > 0) & (alike_R > 0) & (alike_R < among_R)
        neighbours_R = code_R[similarity_RR[used_R].argmax(axis=1)] if used_R.any() else code_R[:0]
        return code_R[used_R], neighbours_R, alike_R[used_R] / among_R[used_R]


def find_repeated_samples(
    table: FeatureTable, metadata: Metadata, folds: Folds, target: str
) -> RepeatedSamples | None:
    """Return the column of the metadata whose values are most clearly repeated subjects.

    None if the user named the column of the subjects; the `target` is no such column.
    """
    if folds.group_column not in (None, FILE_GROUPS):
        return None
    communities, ids = Communities.of(table.counts, folds.labels), table.sample_ids
    compared = [ids[row] for row in communities.rows_R.tolist()]
    columns = {name: metadata.values(name, compared).tolist() for name in metadata.columns}
    fitted = [split.training_rows for split in folds.splits]
    best, most = None, (False, 0.0)
    for name in metadata.columns:
        if name in (target, folds.study_column):
            continue
        texts = metadata.values(name, ids).tolist()
        # A column with the name of subjects is preferred to one that divides them further.
        ratio = alikeness(name, texts, columns, communities, folds.labels)
        evidence = (has_subjects_name(name, texts), ratio)
        if ratio == 0 or evidence <= most:
            continue
        repeated = RepeatedSamples(name, texts, any(map(len, fitted)))
        code_N = np.unique(repeated.labels, return_inverse=True)[1]
        # A column whose values the split keeps together is no leak; another study has no split.
        if not repeated.in_training or any(
            np.isin(code_N[rows], code_N[split.held_out[1]]).any()
            for rows, split in zip(fitted, folds.splits, strict=True)
        ):
            best, most = repeated, evidence
    return best


def alikeness(
    name: str,
    texts: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    communities: Communities,
    labels: Labels,
) -> float:
    """Return how much likelier than by chance the nearest community has the same value of a column.

    0 if the values are no repeated subjects. `columns` has the values of the compared samples in
    all columns, "" if unknown.
    """
    is_named = has_subjects_name(name, texts)
    if _FACTORS.fullmatch(name) and not is_named:
        return 0.0
    known_N = np.array([bool(text) for text in texts])
    numbers_N = as_numbers(texts)
    numeric = not np.isnan(numbers_N[known_N]).any()
    # Numbers of subjects are whole; infinite values are none.
    if numeric and not is_named and not all(n.is_integer() for n in numbers_N[known_N].tolist()):
        return 0.0
    code_N = _ordered_codes(texts, numbers_N if numeric else None)
    size_V = np.bincount(code_N[known_N])
    size_V = size_V[size_V > 0]
    least = 2 if is_named else _FEW_VALUES
    if len(size_V) < least or size_V[size_V > 1].sum() < _MIN_REPEATED * len(texts):
        return 0.0
    if not is_named and _is_form_of(labels, code_N[known_N], labels.values[known_N]):
        return 0.0
    code_R, nearest_R, chance_R = communities.nearest(code_N, known_N, all_samples=False)
    if is_named and len(code_R) < _MIN_COMPARED:  # each subject has a class or number of its own
        code_R, nearest_R, chance_R = communities.nearest(code_N, known_N, all_samples=True)
    if len(code_R) < _MIN_COMPARED:
        return 0.0
    hits, chance = (nearest_R == code_R).mean(), chance_R.mean()
    # At most two samples are mutual neighbours; this doubles the variance.
    error = np.sqrt(2 * (chance_R * (1 - chance_R)).sum()) / len(code_R)
    if hits < chance + (_NAMED_MIN_Z if is_named else _MIN_Z) * error:
        return 0.0
    # Adjacent values of a measure are nearly as alike as equal ones.
    adjacent = (np.abs(nearest_R - code_R) == 1).mean()
    kappa = (hits - chance) / (1 - chance)
    is_alike = kappa >= _MIN_KAPPA and (hits >= _MIN_RATIO * chance or kappa >= _SURE_KAPPA)
    if not is_named and (
        not is_alike or hits < 2 * adjacent or not _may_be_subjects(name, columns, size_V)
    ):
        return 0.0
    # Columns are compared among all samples.
    code_R, nearest_R, chance_R = communities.nearest(code_N, known_N, all_samples=True)
    return float((nearest_R == code_R).mean() / chance_R.mean())


def _may_be_subjects(name: str, columns: Mapping[str, Sequence[str]], size_V: Rows) -> bool:
    """Return whether values are many, or few of one sex, or few with one sample at each time.

    A value with more than a few samples of both sexes is no subject, however many values there are.
    """
    has_many, large = len(size_V) >= _MIN_VALUES, np.median(size_V) > _LARGE
    for other_column, texts in columns.items():
        pairs = [pair for pair in zip(columns[name], texts, strict=True) if all(pair)]
        same, possible = _pairs(pairs), math.comb(len(pairs), 2)
        pairs_here = _pairs(text for text, _ in pairs)
        pairs_there = _pairs(text for _, text in pairs)
        if _SEX.fullmatch(other_column):
            if large and same < 0.8 * pairs_here:
                return False
            has_many |= same >= 0.95 * pairs_here and pairs_there < 0.8 * possible
        elif possible:
            expected = pairs_here * pairs_there / possible
            has_many |= expected >= _MIN_EXPECTED and same <= _MAX_RECURRING * expected
    return bool(has_many)


def _pairs(values: Iterable[object]) -> int:
    return sum(math.comb(number, 2) for number in Counter(values).values())


def has_subjects_name(name: str, texts: Sequence[str]) -> bool:
    """Return whether a column has the name of subjects, and values that are identifiers.

    >>> has_subjects_name("patient", ["P1", "P1", "P2"])
    True
    >>> has_subjects_name("patient", ["yes", "yes", "no"])
    False
    """
    match = _SUBJECTS.fullmatch(name)
    if match is None:
        return False
    return bool(match["id"]) or all(re.search(r"\d", text) for text in texts if text)


def _ordered_codes(
    texts: Sequence[str], numbers_N: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.int64]:
    """Number the values of a column in the order of their numbers: `week 2` before `week 10`."""
    if numbers_N is not None:
        return np.unique(numbers_N, return_inverse=True)[1]

    def key(text: str) -> list[tuple[int, str]]:
        return [
            (int(piece) if piece.isdecimal() else -1, piece)
            for piece in re.findall(r"\d+|\D+", text)
        ]

    rank = {text: position for position, text in enumerate(sorted(set(texts), key=key))}
    return np.array([rank[text] for text in texts])


def _is_form_of(labels: Labels, code_N: Rows, target_N: npt.NDArray[np.float64]) -> bool:
    """Return whether a column is a number in another unit or in intervals.

    A number that is constant within the values may be one of the subject: then the order decides.
    """
    if labels.type != "regression":
        return False  # of a class, comparable samples of its only value are all alike
    order = np.lexsort((target_N, code_N))
    starts = np.flatnonzero(np.diff(code_N[order], prepend=-1))
    low_V = np.minimum.reduceat(target_N[order], starts)
    high_V = np.maximum.reduceat(target_N[order], starts)
    sizes_V = np.diff(starts, append=len(order))
    if sizes_V[(sizes_V > 1) & (low_V == high_V)].sum() >= 0.9 * sizes_V[sizes_V > 1].sum():
        is_constant = low_V.min() == high_V.max()
        return bool(not is_constant and abs(spearmanr(code_N, target_N).statistic) >= 0.95)
    # Intervals that hardly overlap.
    order_V = np.argsort(low_V, kind="stable")
    below = np.maximum.accumulate(high_V[order_V])[:-1] <= low_V[order_V][1:]
    return bool(below.mean() >= 0.9)
