"""Splits of samples into training, validation (chooses the epoch) and test (measures the result).

A single split has training and validation samples. Cross-validation has one split per fold: the
fold is the test set, and validation samples are drawn from the other samples, so that no test
sample decides when training stops. A group (a subject, a study) is never divided.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.arrays import Rows
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few, repeated
from aam.contract.options.groups import SplitOptions
from aam.data.covariates import Covariates
from aam.data.formats.text import read_text, write_table
from aam.data.joined_metadata import STUDY
from aam.data.metadata import ID_HEADER, Metadata
from aam.data.targets import spelling
from aam.evaluation.subjects import Subjects

PARTS = ("train", "validation", "test")
HEADER = [ID_HEADER, "fold", "split", "group", "repeat"]
FILE_GROUPS = "the splits file"
"""Name of groups that come from a splits file, without a metadata column."""

MIN_UNITS = 6
"""Fewest groups, or samples, for an interval of a score; an AUC needs them in each of two classes.
With fewer, no method without further assumptions holds its level (Cameron, Gelbach and Miller
2008)."""

FOLDS = 5
"""Default folds of a cross-validation; one for each group if there are fewer groups."""

REPEATS = 5
SMALL_SAMPLES, SMALL_GROUPS = 300, 100
"""With fewer samples or groups the score of one partition depends on its seed
(benchmarks/repeats.py), so cross-validation is repeated `REPEATS` times."""

_REPEAT_SEEDS, _ATTEMPTS = 1000, 10
"""Distance between the seeds of two repeats, beyond those of the folds; seeds tried for each."""

_DRAWS, _DRAWN_CELLS, _EVEN = 500, 20_000_000, 25
"""Most partitions of groups that are drawn; the same times groups, classes and folds, about a
CPU-second; and the number of most even partitions from which the repeats are chosen."""

MIN_STUDIES = 3
"""Fewest studies to leave out in turn: with two, only one study would remain for choices."""


@dataclass(frozen=True)
class Split:
    """Rows of the training, validation and test samples; `test` is empty without cross-validation.

    The folds of one `repeat`, counted from 1, partition the samples; each repeat is a different
    partition.
    """

    train: Rows
    validation: Rows
    test: Rows
    repeat: int = 1

    @property
    def held_out(self) -> tuple[str, Rows]:
        """Name and rows of the samples that measure the result: test samples, else validation."""
        return ("test", self.test) if len(self.test) else ("validation", self.validation)

    @property
    def training_rows(self) -> Rows:
        """Samples that an estimator may be fitted to: all of the split that are not held out.

        It needs no validation samples, because it chooses hyper-parameters by leaving out groups.
        """
        if not len(self.test):
            return self.train
        return np.sort(np.concatenate([self.train, self.validation]))

    @property
    def rows(self) -> Rows:
        """Rows of all samples of the split."""
        return np.concatenate([self.train, self.validation, self.test])


def make_splits(
    samples: int,
    *,
    test_size: float,
    folds: int,
    seed: int,
    groups: Sequence[str] | None = None,
    classes: npt.NDArray[np.int64] | None = None,
    repeats: int = 1,
) -> tuple[Split, ...]:
    """Split samples for one hold-out or a cross-validation; equal arguments give equal splits.

    `test_size` is the fraction of the (remaining) samples for validation, 0 only with folds; one
    fold means a single split. Groups are not divided. Classes are stratified as far as they and the
    groups are large enough: a class with fewer samples than folds is absent from some folds. Each
    repeat is a different partition; there may be fewer partitions than `repeats`.

    >>> subjects = ["a", "a", "b", "b", "c", "c"]
    >>> splits = make_splits(6, test_size=0, folds=3, seed=0, groups=subjects)
    >>> sorted("".join(subjects[row] for row in split.test) for split in splits)
    ['aa', 'bb', 'cc']
    """
    if not 0 <= test_size < 1 or folds < 1 or (test_size == 0 and folds == 1):
        raise UsageError(
            "Invalid split options",
            f"--test-size {test_size} --folds {folds}",
            "give a test size above 0 and below 1, and 1 or more folds",
        )
    rows = np.arange(samples)
    group_N = None if groups is None else np.asarray(groups, dtype=str)
    subsets = max(folds, 2)
    if group_N is not None and (number := len(set(group_N))) < subsets:
        remedy = "give another --group-column"
        if number > 1:
            remedy = f"give --folds 2 to {number}, or another --group-column"
        raise DataError("Too few groups to divide", f"{number} for {subsets} parts", remedy)
    if samples < subsets:
        remedy = "add samples" if samples < 2 else f"give --folds 2 to {samples}"
        raise DataError("Too few samples to divide", f"{samples} for {subsets} parts", remedy)
    if folds == 1:
        return (_hold_out(rows, test_size, seed, group_N, classes, test=rows[:0]),)
    partitions = _partitions(rows, folds, seed, group_N, classes, repeats)
    if len(partitions) < repeats:
        info(
            f"Repeats: {len(partitions)} instead of {repeats} (--repeats), because no other "
            f"partition of the samples into {folds} folds was found."
        )
    return tuple(
        replace(
            _hold_out(
                rows[assigned != k], test_size, seed + _REPEAT_SEEDS * repeat + k, group_N, classes,
                rows[assigned == k],
            ),
            repeat=repeat + 1,
        )
        for repeat, assigned in enumerate(partitions)
        for k in range(folds)
    )  # fmt: skip


def study_splits(
    studies: Sequence[str],
    *,
    test_size: float,
    seed: int,
    fitted: Rows,
    groups: Sequence[str] | None = None,
    classes: npt.NDArray[np.int64] | None = None,
) -> tuple[Split, ...]:
    """Leave one study out: return a split for each study as test set, in the order of their names.

    Validation samples are whole studies if at least `MIN_STUDIES` remain, else whole groups. Models
    may be fitted to the samples in `fitted` (`trainable_rows`).
    """
    study_N = np.asarray(studies, dtype=str)
    group_N = None if groups is None else np.asarray(groups, dtype=str)
    splits = []
    for k, study in enumerate(np.unique(study_N)):
        remaining = fitted[study_N[fitted] != study]
        if not len(remaining):
            cause = "No study with several categories is left to fit a model to"
            remedy = "add studies that have all categories; subjects are groups: --group-column"
            raise DataError(cause, f"when '{study}' is held out", remedy)
        across_studies = len(np.unique(study_N[remaining])) >= MIN_STUDIES
        units_N = study_N if across_studies else group_N
        test = np.flatnonzero(study_N == study)
        splits.append(_hold_out(remaining, test_size, seed + k, units_N, classes, test))
    return tuple(splits)


def trainable_rows(studies: Sequence[str], codes: npt.NDArray[np.int64] | None) -> Rows:
    """Return the samples to which models may be fitted: of studies with several categories.

    A study with one category only teaches differences between studies. `codes` are the categories
    of the samples; None for a number, for which all studies are used.
    """
    names, study_N = np.unique(studies, return_inverse=True)
    if codes is None:
        return np.arange(len(study_N))
    number_of = np.bincount(np.unique(np.stack([study_N, codes]), axis=1)[0])
    if single := [str(name) for name in names[number_of < 2]]:
        warn(
            "No model is fitted to studies of one category, because they only teach differences "
            f"between studies: {first_few(single)}."
        )
    return np.flatnonzero(number_of[study_N] > 1)


def write_splits(
    path: Path,
    sample_ids: Sequence[str],
    splits: Sequence[Split],
    groups: Sequence[str] | None = None,
) -> None:
    """Write `splits.tsv`, one line per sample and fold: sample-id, fold (from 1), split, group.

    With several repeats there is a column `repeat`.
    """
    import pandas as pd

    rows = [
        (sample_ids[row], fold, name, "" if groups is None else groups[row], split.repeat)
        for fold, split in enumerate(splits, start=1)
        for name in PARTS
        for row in getattr(split, name)
    ]
    table = pd.DataFrame(rows, columns=HEADER)
    write_table(path, table if splits[-1].repeat > 1 else table.drop(columns="repeat"))


def read_assignments(path: Path) -> Iterator[tuple[int, str, str, str, str, str]]:
    """Read `splits.tsv`: the number of each line, and its cells, "" if one is missing."""
    text = io.StringIO(read_text(path, "splits file"), newline="")
    reader = csv.reader(text, dialect="excel-tab", strict=True)
    try:
        if next(reader, [])[:3] != HEADER[:3]:
            remedy = f"its first line must be '{chr(9).join(HEADER[:4])}'"
            raise DataError("Not a splits file", f"'{path}'", remedy)
        for cells in reader:
            # Editors drop the tab before an empty group.
            sample, fold, name, group, repeat = (cells + [""] * len(HEADER))[: len(HEADER)]
            yield reader.line_num, sample, fold, name, group, repeat
    except csv.Error as error:
        evidence = f"line {reader.line_num} of '{path}', {error}"
        raise DataError("Invalid splits file", evidence, "correct the line") from error


def read_splits(
    path: Path, sample_ids: Sequence[str]
) -> tuple[tuple[Split, ...], list[str] | None]:
    """Read the splits of another run by sample id; report ids that only file or table have."""
    row_of = {name: row for row, name in enumerate(sample_ids)}
    folds: dict[str, dict[str, list[int]]] = {}
    repeat_of: dict[str, int] = {}
    assigned: set[tuple[str, str]] = set()
    absent: dict[str, None] = {}
    group_of: dict[str, str] = {}
    for number, sample, fold, split_name, group, repeat in read_assignments(path):
        repeat = repeat or "1"
        wrong = ""
        if split_name not in PARTS:
            wrong = f"has the split '{split_name}'"
        elif (fold, sample) in assigned:
            wrong = "repeats a sample"
        elif not repeat.isdecimal() or repeat_of.setdefault(fold, int(repeat)) != int(repeat):
            wrong = f"has the repeat '{repeat}'"
        if wrong:
            raise DataError(
                "Invalid splits file", f"line {number} of '{path}' {wrong}", "correct the line"
            )
        # Samples that this table lacks are checked too: a repeated line shows a damaged file.
        assigned.add((fold, sample))
        if group:
            group_of[sample] = group
        if sample in row_of:
            rows = folds.setdefault(fold, {name: [] for name in PARTS})
            rows[split_name].append(row_of[sample])
        else:
            absent[sample] = None
    if not folds or any(not rows["train"] for rows in folds.values()):
        raise DataError("The splits file leaves no training sample", f"'{path}'", "check its ids")
    if any(not (rows["validation"] or rows["test"]) for rows in folds.values()):
        cause = "The splits file leaves no validation or test sample"
        raise DataError(cause, f"'{path}'", "check its ids")
    assigned_ids = {sample for _, sample in assigned}
    unlisted = [name for name in sample_ids if name not in assigned_ids]
    if absent:
        info(f"Ids of '{path.name}' without a labelled sample in the table: {first_few(absent)}.")
    if unlisted:
        info(f"Samples that are not in '{path.name}' are not used: {first_few(unlisted)}.")
    splits = tuple(
        Split(
            **{key: np.array(sorted(rows), dtype=np.int64) for key, rows in folds[name].items()},
            repeat=repeat_of[name],
        )
        # By number: `10` comes after `9` in any order of the lines.
        for name in sorted(folds, key=lambda name: (repeat_of[name], len(name), name))
    )
    return splits, [group_of.get(name, name) for name in sample_ids] if group_of else None


def _hold_out(
    rows: Rows,
    test_size: float,
    seed: int,
    group_N: npt.NDArray[np.str_] | None,
    classes: npt.NDArray[np.int64] | None,
    test: Rows,
) -> Split:
    """Draw validation samples; each class keeps a sample or group in training if possible."""
    if test_size == 0:
        return Split(rows, rows[:0], test)
    unit_N = np.arange(rows.max() + 1) if group_N is None else group_N
    validation, pinned = _draw(rows, test_size, seed, group_N, classes), rows[:0]
    while classes is not None:
        training = np.setdiff1d(rows, validation)
        untrained = np.flatnonzero(~np.isin(classes[validation], classes[training]))
        if not len(untrained):
            break
        # A unit of the class stays in training, and the validation set is drawn from the others.
        pinned = np.union1d(pinned, rows[unit_N[rows] == unit_N[validation[untrained[0]]]])
        other_rows = np.setdiff1d(rows, pinned)
        if not len(other_rows):
            break
        # `_draw` leaves a single unit in training.
        redrawn = _draw(other_rows, test_size, seed, group_N, classes)
        validation = redrawn if len(redrawn) else other_rows
    return Split(np.setdiff1d(rows, validation), validation, test)


def _draw(
    rows: Rows,
    test_size: float,
    seed: int,
    group_N: npt.NDArray[np.str_] | None,
    classes: npt.NDArray[np.int64] | None,
) -> Rows:
    """Draw the validation samples among `rows`, of whole groups, stratified if possible."""
    from sklearn.model_selection import StratifiedShuffleSplit

    size = min(max(1, round(len(rows) * test_size)), len(rows) - 1)
    number = 0 if group_N is None else len(np.unique(group_N[rows]))
    if classes is not None and number > 1:
        # GroupShuffleSplit does not stratify, so the validation set is one or more stratified
        # folds. Folds of about four groups are even; a small validation set needs more folds.
        most = min(number, max(5, min(number // 4, 20), round(1 / test_size)))
        share = Fraction(test_size).limit_denominator(most)
        share = min(max(share, Fraction(1, most)), Fraction(most - 1, most))
        (assigned,) = _partitions(rows, share.denominator, seed, group_N, classes)
        return rows[assigned < share.numerator]
    if group_N is not None:
        # Groups are added as long as the number of rows approaches `size`, and at least one.
        validation = rows[:0]
        # The last group stays in training.
        for name in np.random.default_rng(seed).permutation(np.unique(group_N[rows]))[:-1]:
            larger = np.concatenate([validation, rows[group_N[rows] == name]])
            if len(validation) == 0 or abs(len(larger) - size) < abs(len(validation) - size):
                validation = larger
        return np.sort(validation)
    if classes is not None and can_stratify(classes[rows], size):
        # The only sample of a class stays in training: no other sample teaches its class.
        frequent = rows[np.bincount(classes[rows])[classes[rows]] > 1]
        splitter = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
        ((_, positions),) = splitter.split(frequent, classes[frequent])
        return np.sort(frequent[positions])
    return np.sort(np.random.default_rng(seed).permutation(rows)[:size])


def can_stratify(codes: npt.NDArray[np.int64], size: int) -> bool:
    """Return whether `size` held-out samples can include each class that has several samples.

    >>> can_stratify(np.array([0, 0, 0, 1, 1, 2]), size=2)
    True
    """
    counts = np.bincount(codes)
    frequent = counts[counts > 1]
    return 0 < len(frequent) <= min(size, int(frequent.sum()) - size)


def _partitions(
    rows: Rows,
    folds: int,
    seed: int,
    group_N: npt.NDArray[np.str_] | None,
    classes: npt.NDArray[np.int64] | None,
    repeats: int = 1,
) -> list[Rows]:
    """Return up to `repeats` different partitions: the fold of each of `rows`.

    No fold is empty. Classes and group sizes are balanced over the folds.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    y = np.zeros(len(rows), dtype=np.int64) if classes is None else classes[rows]
    if group_N is not None:
        _, group_of = np.unique(group_N[rows], return_inverse=True)
        return [fold_I[group_of] for fold_I in _divided_groups(group_of, y, folds, seed, repeats)]
    # scikit-learn stratifies only if a class has a sample for each fold.
    stratify = classes is not None and np.bincount(y).max() >= folds
    splitter = StratifiedKFold if stratify else KFold
    partitions: dict[bytes, Rows] = {}
    with warnings.catch_warnings():
        # A class with fewer samples than folds is absent from some folds, which is allowed.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        for attempt in range(_ATTEMPTS * repeats):
            assigned = np.empty(len(rows), dtype=np.int64)
            shuffled = splitter(folds, shuffle=True, random_state=seed + _REPEAT_SEEDS * attempt)
            for number, (_, positions) in enumerate(shuffled.split(y, y)):
                assigned[positions] = number
            partitions.setdefault(_in_order(assigned[None]).tobytes(), assigned)
            if len(partitions) == repeats:
                break
    return [*partitions.values()]


def _divided_groups(group_of: Rows, y: Rows, folds: int, seed: int, repeats: int) -> list[Rows]:
    """Return up to `repeats` different partitions of I groups: the fold of each group.

    Many partitions are drawn: groups in random order go to the fold with the fewest samples of
    their classes. The first of the most even draws is taken, then repeatedly the draw that is least
    similar to the taken ones.
    """
    from sklearn.metrics import adjusted_rand_score

    _, code_of = np.unique(y, return_inverse=True)
    # Samples of each class, and of all classes, in each group as shares of their totals.
    share_IC = np.zeros((int(group_of.max()) + 1, int(code_of.max()) + 2))
    np.add.at(share_IC, (group_of, code_of), 1)
    share_IC[:, -1] = share_IC.sum(axis=1)
    share_IC /= share_IC.sum(axis=0)
    draw_D = np.arange(np.clip(_DRAWN_CELLS // (share_IC.size * folds), 20, _DRAWS))
    order_DI = np.tile(np.arange(len(share_IC)), (len(draw_D), 1))
    order_DI = np.random.default_rng(seed).permuted(order_DI, axis=1)
    fold_DI, load_DKC = np.empty_like(order_DI), np.zeros((len(draw_D), folds, share_IC.shape[1]))
    for group_D in order_DI.T:
        # The fold with the least increase of the squared loads; an empty fold comes first.
        share_DC = share_IC[group_D]
        fold_D = np.einsum("dkc,dc->dk", load_DKC, share_DC).argmin(axis=1)
        fold_DI[draw_D, group_D] = fold_D
        load_DKC[draw_D, fold_D] += share_DC
    different = np.sort(np.unique(_in_order(fold_DI), axis=0, return_index=True)[1])
    uneven_D = np.square(load_DKC[different]).sum(axis=(1, 2)).round(12)
    even = np.sort(np.argsort(uneven_D, kind="stable")[: max(_EVEN, repeats)])
    even_DI = fold_DI[different[even]]
    taken, alike_D = [even_DI[0]], np.full(len(even_DI), -1.0)
    while len(taken) < min(repeats, len(even_DI)):
        # Agreement of two partitions on pairs of groups; 1 if they are equal.
        pairs = [adjusted_rand_score(taken[-1], fold_I) for fold_I in even_DI]
        alike_D = np.maximum(alike_D, pairs)
        taken.append(even_DI[alike_D.argmin()])
    return taken


def _in_order(fold_DI: Rows) -> Rows:
    """Number the folds of each partition by their first member, so that equal partitions match."""
    first_KD = [(fold_DI == fold).argmax(axis=1) for fold in range(int(fold_DI.max()) + 1)]
    rank_DK = np.argsort(np.argsort(first_KD, axis=0), axis=0).T
    return np.take_along_axis(rank_DK, fold_DI, axis=1)


def check_groups(target: str, group: str | None, study: str | None) -> None:
    """Refuse the target as group or study: training would have no held-out value of it."""
    for flag, column in {"--group-column": group, "--study-column": study}.items():
        if column == target:
            raise UsageError(
                "The groups are the target, so no training sample has the value of a held-out one",
                f"{flag} {column}",
                "name the column of the subjects or of other groups, or leave the option out",
            )
    if study is not None and group == study:
        remedy = "name the column of the subjects, or leave --group-column out"
        raise UsageError("The groups are the studies", f"--group-column {group}", remedy)


def read_studies(
    column: str | None, metadata: Metadata, sample_ids: Sequence[str]
) -> list[str] | None:
    """Read the study of each sample; None without --study-column."""
    if column is None:
        return None
    studies: list[str] = metadata.values(column, sample_ids).tolist()
    if missing := [name for name, study in zip(sample_ids, studies, strict=True) if not study]:
        remedy = f"fill the column '{column}', or leave the samples out (--where)"
        raise DataError("Samples without a study", first_few(missing), remedy)
    if len(set(studies)) < 2:
        raise DataError(
            "A single study",
            f"all {len(studies)} samples have '{studies[0]}' as '{column}'",
            "name another --study-column, or leave the option out",
        )
    sizes = Counter(studies)
    if alike := repeated(map(spelling, sizes)):
        warn(f"Studies whose names differ in case or spaces alone: {first_few(alike)}.")
    if max(sizes.values()) < MIN_UNITS and column != STUDY:  # `aam prepare` wrote STUDY
        raise DataError(
            f"The values of '{column}' are no studies: each has too few samples for a score",
            f"{len(sizes)} values with {min(sizes.values())} to {max(sizes.values())} samples; a "
            f"score needs {MIN_UNITS}",
            f"if they are subjects, --group-column {column} keeps the samples of each together",
        )
    return studies


def same_partition(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether two columns divide the samples in the same way, whatever their values are.

    >>> same_partition("aab", "xxy"), same_partition("aab", "xyy")
    (True, False)
    """
    return len({*zip(first, second, strict=True)}) == len({*first}) == len({*second})


def several_studies(
    metadata: Metadata, sample_ids: Sequence[str], target: str, kept_apart: Sequence[str | None]
) -> int:
    """Count the studies that `aam prepare` joined; 0 if they are the target or kept apart."""
    if target == STUDY or STUDY not in metadata.columns:
        return 0
    studies = metadata.values(STUDY, sample_ids).tolist()
    columns = [metadata.values(column, sample_ids).tolist() for column in kept_apart if column]
    if any(same_partition(studies, values) for values in columns):
        return 0
    number = len({*studies} - {""})
    return number if number > 1 else 0


def split_samples(
    options: SplitOptions,
    folds: int | Literal["auto"],
    seed: int,
    sample_ids: Sequence[str],
    subjects: Subjects,
    codes: npt.NDArray[np.int64] | None = None,
    repeats: int | Literal["auto"] = 1,
    studies: Sequence[str] | None = None,
) -> tuple[tuple[Split, ...], Subjects]:
    """Make or read the splits; also return the subjects, because a file may define groups.

    Folds "auto" means `FOLDS`, or one for each group if there are fewer; repeats "auto" means
    `REPEATS` for a small study. `codes` are classes or ranks, None for a number. Each of several
    `studies` is a fold. No subject is both held out and in training.
    """
    number = 0
    classes = codes if options.stratify else None
    if options.splits is not None:
        splits, subjects = _splits_of_file(options, sample_ids, subjects, studies, codes)
    elif studies is not None:
        splits = study_splits(
            studies, test_size=options.test_size, seed=seed, fitted=trainable_rows(studies, codes),
            groups=subjects.groups, classes=classes,
        )  # fmt: skip
    else:
        number, repeats = _numbers(folds, repeats, subjects, len(sample_ids))
        splits = make_splits(
            len(sample_ids), test_size=options.test_size, folds=number, seed=seed,
            groups=subjects.groups, classes=classes, repeats=repeats,
        )  # fmt: skip
        if classes is not None and subjects.groups is None and number == 1:
            held_out = len(splits[0].validation)
            if not can_stratify(classes, held_out):
                warn(
                    f"The split is not stratified: {held_out} of {len(classes)} samples are held "
                    f"out, for {len(np.unique(classes))} classes. Give another --test-size, or "
                    "merge classes."
                )
    splits = without_held_out_subjects(splits, subjects.units_N)
    if codes is not None:
        _check_held_out_classes(splits, codes, refuse=number == 1)
    return splits, subjects


def without_held_out_subjects(splits: Sequence[Split], units_N: Rows) -> tuple[Split, ...]:
    """Remove samples of held-out subjects from the training set of each split; report how many.

    Such subjects have samples in several studies, or copies of a sample that a splits file divides.
    """
    reduced, left_out = list[Split](), set[int]()
    for split in splits:
        trained = split
        for source, names in (("test", ("train", "validation")), ("validation", ("train",))):
            held_out = np.unique(units_N[getattr(split, source)])
            for name in names:
                rows = getattr(trained, name)
                is_held_out = np.isin(units_N[rows], held_out)
                left_out.update(rows[is_held_out].tolist())
                trained = replace(trained, **{name: rows[~is_held_out]})
        if len(split.train) and not len(trained.train):
            raise DataError(
                "A fold has no training sample left: all belong to subjects that it holds out",
                f"fold {len(reduced) + 1}, {len(split.train)} samples",
                "use other splits, or add --group-values distinct if equal group names in several "
                "studies are different subjects",
            )
        reduced.append(trained)
    if left_out:
        info(
            f"Removed from training, because their subject is held out: {len(left_out)} samples, "
            f"in {sum(a is not b for a, b in zip(reduced, splits, strict=True))} of "
            f"{len(splits)} folds."
        )
    return tuple(reduced)


def _splits_of_file(
    options: SplitOptions,
    sample_ids: Sequence[str],
    subjects: Subjects,
    studies: Sequence[str] | None,
    codes: npt.NDArray[np.int64] | None,
) -> tuple[tuple[Split, ...], Subjects]:
    """Read the file of --splits, and check that it divides no group and no study."""
    assert options.splits is not None
    splits, file_groups = read_splits(options.splits, sample_ids)
    if options.group_column is None and file_groups is not None and file_groups != subjects.groups:
        subjects = replace(subjects, groups=file_groups, column=FILE_GROUPS)
    if subjects.column is not None and subjects.groups is not None:
        remedy = "choose another file, or "
        remedy += "leave out --group-column" if options.group_column else "correct its groups"
        for split in splits:
            rows = [split.train, split.validation, split.test]
            _check_undivided(subjects.groups, rows, remedy)
    if studies is None:
        return splits, subjects
    for split in splits:
        not_test = np.concatenate([split.train, split.validation])
        remedy = "choose another file, or leave out --study-column"
        _check_undivided(studies, [not_test, split.test], remedy)
    fitted = trainable_rows(studies, codes)
    return tuple(
        replace(
            split,
            train=np.intersect1d(split.train, fitted),
            validation=np.intersect1d(split.validation, fitted),
        )
        for split in splits
    ), subjects


def _numbers(
    folds: int | Literal["auto"], repeats: int | Literal["auto"], subjects: Subjects, samples: int
) -> tuple[int, int]:
    units = samples if subjects.groups is None else len(set(subjects.groups))
    number = min(FOLDS, max(2, units)) if folds == "auto" else folds
    if folds == "auto" and subjects.column is not None and number < FOLDS:
        info(f"Folds: {number}, one for each group of '{subjects.column}'.")
    if repeats == "auto":
        small = samples < SMALL_SAMPLES or units < SMALL_GROUPS
        repeats = REPEATS if small and number > 1 else 1
    return number, repeats


def _check_held_out_classes(
    splits: Sequence[Split], codes: npt.NDArray[np.int64], refuse: bool
) -> None:
    """Refuse, or warn of, held-out samples of one class: any model scores 1.000."""
    held_out = [split.held_out for split in splits]
    alike = [k for k, (_, rows) in enumerate(held_out) if len(set(codes[rows].tolist())) == 1]
    if not alike:
        return
    name, rows = held_out[alike[0]]
    cause = f"All {name} samples are of one class"
    if refuse:
        remedy = "choose another --seed or --test-size, or merge classes"
        if np.unique(codes, return_counts=True)[1].min() == 1:
            remedy = "merge the class of one sample, or leave it out (--where)"
        raise DataError(cause, f"{len(rows)} of {len(codes)} samples", remedy)
    folds = first_few(k + 1 for k in alike)
    warn(f"{cause}, so they cannot measure a model: of {len(splits)} folds in {folds}.")


def _check_undivided(names: Sequence[str], subsets: Sequence[Rows], remedy: str) -> None:
    of_subsets = ({names[row] for row in rows} for rows in subsets)
    if divided := sorted(repeated(chain.from_iterable(of_subsets))):
        cause = "The splits file divides groups between training, validation and test samples"
        raise DataError(cause, first_few(divided), remedy)


def check_covariates(covariates: Covariates, splits: Sequence[Split]) -> None:
    """Warn about columns if no held-out category occurs in the training samples."""
    for name, values in covariates.categories.items():
        unknown = [
            fold
            for fold, split in enumerate(splits, start=1)
            if not set(values[split.held_out[1]]) & set(values[split.train]) - {""}
        ]
        if unknown:
            folds = f"fold {', '.join(map(str, unknown))}" if len(splits) > 1 else "the split"
            warn(
                f"No held-out sample of {folds} has a category of '{name}' that occurs in the "
                "training samples, so the column counts as unknown there."
            )
