"""Splits of samples into training, validation (chooses the epoch) and test (measures the result).

A single split has training and validation samples. Cross-validation has one split per fold: the
fold is the test part, and validation samples are drawn from the rest, so that no test sample
decides when training stops. A group (a subject, a study) is always in one part.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
from aam.contract.files import atomic_write
from aam.contract.options.groups import SplitOptions
from aam.data.covariates import Covariates
from aam.data.formats.text import quoting, read_text
from aam.data.joined_metadata import STUDY
from aam.data.metadata import ID_HEADER, Metadata
from aam.data.targets import spelling
from aam.evaluation.subjects import Subjects

PARTS = ("train", "validation", "test")
HEADER = [ID_HEADER, "fold", "split", "group", "repeat"]
FILE_GROUPS = "the splits file"
"""Name of the groups that a splits file has, where no column of the metadata is named."""

MIN_UNITS = 6
"""Groups, or samples, from which a score has an interval, an AUC in each of two classes. No method
that takes them as they are holds its level with fewer (Cameron, Gelbach and Miller 2008)."""

FOLDS = 5
"""Folds of a cross-validation where none are given; one for each group if there are fewer."""

REPEATS = 5
SMALL_SAMPLES, SMALL_GROUPS = 300, 100
"""With fewer of them the score of one partition depends on its seed (benchmarks/repeats.py):
`REPEATS` partitions are scored."""

_REPEAT_SEEDS, _ATTEMPTS = 1000, 10
"""Distance of the seeds of two partitions, beyond those of the folds; seeds tried for each."""

_DRAWS, _DRAWN_CELLS, _EVEN = 500, 20_000_000, 25
"""Partitions of groups that are drawn at most; the same times groups, classes and folds, about a
CPU-second; and the number of them, the most even, of which some are taken."""

MIN_STUDIES = 3
"""Studies of which each can be left out in turn: of two, one alone would remain to choose from."""


@dataclass(frozen=True)
class Split:
    """Rows of the study's samples in each part; `test` is empty without cross-validation.

    The folds of one `repeat`, counted from 1, are a partition of the samples; other repeats divide
    the same samples otherwise.
    """

    train: Rows
    validation: Rows
    test: Rows
    repeat: int = 1

    @property
    def held_out(self) -> tuple[str, Rows]:
        """Name and rows of the part that measures the result: test samples, else validation."""
        return ("test", self.test) if len(self.test) else ("validation", self.validation)

    @property
    def rows(self) -> Rows:
        """Rows of all parts."""
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
    """Split samples into parts; the same arguments give the same splits.

    `test_size` is the fraction of the (remaining) samples for validation, 0 only with folds; of one
    fold there is a single split. Rows of one group are in one part. Classes are stratified as far
    as they and the groups are large enough: one with fewer samples than parts is absent from some
    of them. The partitions into folds differ; they are fewer than `repeats` where no more exist.

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
    labels = None if groups is None else np.asarray(groups, dtype=str)
    parts = max(folds, 2)
    if labels is not None and (number := len(set(labels))) < parts:
        remedy = "give another --group-column"
        if number > 1:
            remedy = f"give --folds 2 to {number}, or another --group-column"
        raise DataError("Too few groups to divide", f"{number} for {parts} parts", remedy)
    if samples < parts:
        remedy = "add samples" if samples < 2 else f"give --folds 2 to {samples}"
        raise DataError("Too few samples to divide", f"{samples} for {parts} parts", remedy)
    if folds == 1:
        return (_hold_out(rows, test_size, seed, labels, classes, test=rows[:0]),)
    partitions = _partitions(rows, folds, seed, labels, classes, repeats)
    if len(partitions) < repeats:
        info(
            f"Partitions: {len(partitions)} instead of {repeats} (--repeats), since no more "
            f"different ones were found that divide the samples into {folds} folds."
        )
    return tuple(
        replace(
            _hold_out(
                rows[assigned != k], test_size, seed + _REPEAT_SEEDS * repeat + k, labels, classes,
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
    """Return a split for each study, in the order of their names, whose test part it is.

    Validation samples are whole studies where at least `MIN_STUDIES` are left, else whole groups.
    `fitted` are the samples to which models may be fitted (`trainable_rows`).
    """
    study_N = np.asarray(studies, dtype=str)
    group_N = None if groups is None else np.asarray(groups, dtype=str)
    splits = []
    for k, study in enumerate(np.unique(study_N)):
        rest = fitted[study_N[fitted] != study]
        if not len(rest):
            cause = "No study with several categories is left to fit a model to"
            remedy = "add studies that have all categories; subjects are groups: --group-column"
            raise DataError(cause, f"when '{study}' is held out", remedy)
        across = len(np.unique(study_N[rest])) >= MIN_STUDIES
        labels = study_N if across else group_N
        test = np.flatnonzero(study_N == study)
        splits.append(_hold_out(rest, test_size, seed + k, labels, classes, test))
    return tuple(splits)


def trainable_rows(studies: Sequence[str], codes: npt.NDArray[np.int64] | None) -> Rows:
    """Return the samples to which models may be fitted: those of studies of several categories.

    A study of one category would teach the difference between studies alone. `codes` are the
    categories of the samples; None of a number, whose studies all serve.
    """
    names, study_N = np.unique(studies, return_inverse=True)
    if codes is None:
        return np.arange(len(study_N))
    number_of = np.bincount(np.unique(np.stack([study_N, codes]), axis=1)[0])
    if single := [str(name) for name in names[number_of < 2]]:
        warn(
            "No model is fitted to studies of one category, which would teach the difference "
            f"between studies alone: {first_few(single)}."
        )
    return np.flatnonzero(number_of[study_N] > 1)


def write_splits(
    path: Path,
    sample_ids: Sequence[str],
    splits: Sequence[Split],
    groups: Sequence[str] | None = None,
) -> None:
    """Write `splits.tsv`, one line per sample and fold: sample-id, fold (from 1), split, group.

    Of several partitions a column `repeat` has the number.
    """
    several = splits[-1].repeat > 1
    rows = (
        (
            sample_ids[row],
            fold,
            part,
            "" if groups is None else groups[row],
            *([split.repeat] if several else []),
        )
        for fold, split in enumerate(splits, start=1)
        for part in PARTS
        for row in getattr(split, part)
    )
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        quoted = quoting(chain(sample_ids, groups or ()))
        writer = csv.writer(stream, dialect="excel-tab", lineterminator="\n", quoting=quoted)
        writer.writerow(HEADER if several else HEADER[:4])
        writer.writerows(rows)


def read_assignments(path: Path) -> Iterator[tuple[int, str, str, str, str, str]]:
    """Read the lines of `splits.tsv`: number of the line, and the cells, "" where one is absent."""
    text = io.StringIO(read_text(path, "splits file"), newline="")
    reader = csv.reader(text, dialect="excel-tab", strict=True)
    try:
        if next(reader, [])[:3] != HEADER[:3]:
            remedy = f"its first line must be '{chr(9).join(HEADER[:4])}'"
            raise DataError("Not a splits file", f"'{path}'", remedy)
        for cells in reader:
            # Editors drop the tab before an empty group.
            sample, fold, part, group, repeat = (cells + [""] * len(HEADER))[: len(HEADER)]
            yield reader.line_num, sample, fold, part, group, repeat
    except csv.Error as error:
        evidence = f"line {reader.line_num} of '{path}', {error}"
        raise DataError("Invalid splits file", evidence, "correct the line") from error


def read_splits(
    path: Path, sample_ids: Sequence[str]
) -> tuple[tuple[Split, ...], list[str] | None]:
    """Read the splits of another run, matched by sample id; print ids that only one side has."""
    row_of = {name: row for row, name in enumerate(sample_ids)}
    folds: dict[str, dict[str, list[int]]] = {}
    repeat_of: dict[str, int] = {}
    placed: set[tuple[str, str]] = set()
    absent: dict[str, None] = {}
    group_of: dict[str, str] = {}
    for number, sample, fold, part, group, repeat in read_assignments(path):
        repeat = repeat or "1"
        wrong = ""
        if part not in PARTS:
            wrong = f"has the split '{part}'"
        elif (fold, sample) in placed:
            wrong = "repeats a sample"
        elif not repeat.isdecimal() or repeat_of.setdefault(fold, int(repeat)) != int(repeat):
            wrong = f"has the repeat '{repeat}'"
        if wrong:
            raise DataError(
                "Invalid splits file", f"line {number} of '{path}' {wrong}", "correct the line"
            )
        # Also of samples that this table lacks: a line that repeats one shows a damaged file.
        placed.add((fold, sample))
        if group:
            group_of[sample] = group
        if sample in row_of:
            parts = folds.setdefault(fold, {name: [] for name in PARTS})
            parts[part].append(row_of[sample])
        else:
            absent[sample] = None
    if not folds or any(not parts["train"] for parts in folds.values()):
        raise DataError("The splits file leaves no training sample", f"'{path}'", "check its ids")
    if any(not (parts["validation"] or parts["test"]) for parts in folds.values()):
        cause = "The splits file leaves no validation or test sample"
        raise DataError(cause, f"'{path}'", "check its ids")
    listed = {sample for _, sample in placed}
    unlisted = [name for name in sample_ids if name not in listed]
    if absent:
        info(f"Ids of '{path.name}' without a labelled sample in the table: {first_few(absent)}.")
    if unlisted:
        info(f"Samples that are not in '{path.name}' are not used: {first_few(unlisted)}.")
    splits = tuple(
        Split(
            **{part: np.array(sorted(folds[name][part]), dtype=np.int64) for part in PARTS},
            repeat=repeat_of[name],
        )
        # By number: `10` comes after `9`, whatever the order of the lines.
        for name in sorted(folds, key=lambda name: (repeat_of[name], len(name), name))
    )
    return splits, [group_of.get(name, name) for name in sample_ids] if group_of else None


def _hold_out(
    rows: Rows,
    test_size: float,
    seed: int,
    labels: npt.NDArray[np.str_] | None,
    classes: npt.NDArray[np.int64] | None,
    test: Rows,
) -> Split:
    from sklearn.model_selection import StratifiedShuffleSplit

    if test_size == 0:
        return Split(rows, rows[:0], test)
    size = min(max(1, round(len(rows) * test_size)), len(rows) - 1)
    number = 0 if labels is None else len(np.unique(labels[rows]))
    if classes is not None and number > 1:
        # GroupShuffleSplit does not stratify: the validation is one or more of stratified folds.
        # Folds of about four groups are even; a small part needs more folds.
        most = min(number, max(5, min(number // 4, 20), round(1 / test_size)))
        share = Fraction(test_size).limit_denominator(most)
        share = min(max(share, Fraction(1, most)), Fraction(most - 1, most))
        (assigned,) = _partitions(rows, share.denominator, seed, labels, classes)
        validation = rows[assigned < share.numerator]
    elif labels is not None:
        # Complete groups, while that brings the number of rows nearer to `size`; at least one.
        drawn = rows[:0]
        # Without the last group, which stays for the training.
        for name in np.random.default_rng(seed).permutation(np.unique(labels[rows]))[:-1]:
            larger = np.concatenate([drawn, rows[labels[rows] == name]])
            if len(drawn) == 0 or abs(len(larger) - size) < abs(len(drawn) - size):
                drawn = larger
        validation = np.sort(drawn)
    elif classes is not None and can_stratify(classes[rows], size):
        # The only sample of a class stays in the training: nothing else predicts its class.
        several = rows[np.bincount(classes[rows])[classes[rows]] > 1]
        splitter = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
        ((_, places),) = splitter.split(several, classes[several])
        validation = np.sort(several[places])
    else:
        validation = np.sort(np.random.default_rng(seed).permutation(rows)[:size])
    return Split(np.setdiff1d(rows, validation), validation, test)


def can_stratify(codes: npt.NDArray[np.int64], size: int) -> bool:
    """Return whether `size` samples can be held out with one of each class of several samples.

    >>> can_stratify(np.array([0, 0, 0, 1, 1, 2]), size=2)
    True
    """
    counts = np.bincount(codes)
    several = counts[counts > 1]
    return 0 < len(several) <= min(size, int(several.sum()) - size)


def _partitions(
    rows: Rows,
    parts: int,
    seed: int,
    labels: npt.NDArray[np.str_] | None,
    classes: npt.NDArray[np.int64] | None,
    repeats: int = 1,
) -> list[Rows]:
    """Return up to `repeats` different partitions, each the fold of every one of `rows`.

    No fold is empty. Classes, and sizes of groups, are balanced over the folds.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    y = np.zeros(len(rows), dtype=np.int64) if classes is None else classes[rows]
    if labels is not None:
        _, group_of = np.unique(labels[rows], return_inverse=True)
        return [fold_I[group_of] for fold_I in _divided_groups(group_of, y, parts, seed, repeats)]
    # scikit-learn stratifies only if a class has a sample for each part.
    kind = StratifiedKFold if classes is not None and np.bincount(y).max() >= parts else KFold
    partitions: dict[bytes, Rows] = {}
    with warnings.catch_warnings():
        # A class with fewer samples than folds is absent from some folds, which is allowed.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        for attempt in range(_ATTEMPTS * repeats):
            assigned = np.empty(len(rows), dtype=np.int64)
            shuffled = kind(parts, shuffle=True, random_state=seed + _REPEAT_SEEDS * attempt)
            for number, (_, places) in enumerate(shuffled.split(y, y)):
                assigned[places] = number
            partitions.setdefault(_in_order(assigned[None]).tobytes(), assigned)
            if len(partitions) == repeats:
                break
    return [*partitions.values()]


def _divided_groups(group_of: Rows, y: Rows, parts: int, seed: int, repeats: int) -> list[Rows]:
    """Return up to `repeats` different partitions of I groups, each the fold of every group.

    Many are drawn: groups in random order, each to the fold with the fewest samples of its classes.
    Of the most even draws the first is taken, then each time that which is least like the others.
    """
    from sklearn.metrics import adjusted_rand_score

    _, code_of = np.unique(y, return_inverse=True)
    # Samples of each class in each group, and of all classes, as parts of their totals.
    share_IC = np.zeros((int(group_of.max()) + 1, int(code_of.max()) + 2))
    np.add.at(share_IC, (group_of, code_of), 1)
    share_IC[:, -1] = share_IC.sum(axis=1)
    share_IC /= share_IC.sum(axis=0)
    every = np.arange(np.clip(_DRAWN_CELLS // (share_IC.size * parts), 20, _DRAWS))
    order_DI = np.tile(np.arange(len(share_IC)), (len(every), 1))
    order_DI = np.random.default_rng(seed).permuted(order_DI, axis=1)
    fold_DI, load_DKC = np.empty_like(order_DI), np.zeros((len(every), parts, share_IC.shape[1]))
    for group_D in order_DI.T:
        # The sum of squared loads grows least; an empty fold comes first.
        share_DC = share_IC[group_D]
        fold_D = np.einsum("dkc,dc->dk", load_DKC, share_DC).argmin(axis=1)
        fold_DI[every, group_D] = fold_D
        load_DKC[every, fold_D] += share_DC
    different = np.sort(np.unique(_in_order(fold_DI), axis=0, return_index=True)[1])
    uneven_D = np.square(load_DKC[different]).sum(axis=(1, 2)).round(12)
    even = np.sort(np.argsort(uneven_D, kind="stable")[: max(_EVEN, repeats)])
    even_DI = fold_DI[different[even]]
    taken, alike_D = [even_DI[0]], np.full(len(even_DI), -1.0)
    while len(taken) < min(repeats, len(even_DI)):
        # Pairs of groups in one fold of both; 1 of equal partitions.
        pairs = [adjusted_rand_score(taken[-1], fold_I) for fold_I in even_DI]
        alike_D = np.maximum(alike_D, pairs)
        taken.append(even_DI[alike_D.argmin()])
    return taken


def _in_order(fold_DI: Rows) -> Rows:
    """Number the folds of each partition by their first member, so that equal ones are equal."""
    first_KD = [(fold_DI == fold).argmax(axis=1) for fold in range(int(fold_DI.max()) + 1)]
    rank_DK = np.argsort(np.argsort(first_KD, axis=0), axis=0).T
    return np.take_along_axis(rank_DK, fold_DI, axis=1)


def check_groups(target: str, group: str | None, study: str | None) -> None:
    """Refuse groups that are the target: training samples have no held-out value of it."""
    named = {"--group-column": group, "--study-column": study}
    for flag, column in named.items():
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
    if max(sizes.values()) < MIN_UNITS and column != STUDY:  # which `aam prepare` wrote
        raise DataError(
            f"The values of '{column}' are no studies: none has the samples for a score",
            f"{len(sizes)} values, of {min(sizes.values())} to {max(sizes.values())} samples; a "
            f"score needs {MIN_UNITS}",
            f"if they are subjects, --group-column {column} keeps the samples of each together",
        )
    return studies


def several_studies(
    metadata: Metadata, sample_ids: Sequence[str], used: Collection[str | None]
) -> int:
    """Return the number of studies that `aam prepare` joined, if it is no column that is used."""
    if STUDY in used or STUDY not in metadata.columns:
        return 0
    number = len(set(metadata.values(STUDY, sample_ids)) - {""})
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
    """Make or read the splits; also return the subjects, whose groups a file may name.

    Folds "auto" are `FOLDS`, or one for each group if there are fewer; repeats "auto" `REPEATS` of
    a small study. `codes` are classes or ranks, None of a number; of several `studies` each is a
    fold. No training sample is of a held-out subject.
    """
    number = 0
    classes = codes if options.stratify else None
    if options.splits is not None:
        splits, subjects = _splits_of_file(options, sample_ids, subjects, studies, codes)
    elif studies is not None:
        splits = study_splits(
            studies,
            test_size=options.test_size,
            seed=seed,
            fitted=trainable_rows(studies, codes),
            groups=subjects.groups,
            classes=classes,
        )
    else:
        number, repeats = _numbers(options, folds, repeats, subjects.groups, len(sample_ids))
        splits = make_splits(
            len(sample_ids),
            test_size=options.test_size,
            folds=number,
            seed=seed,
            groups=subjects.groups,
            classes=classes,
            repeats=repeats,
        )
        if classes is not None and subjects.groups is None and number == 1:
            held_out, several = len(splits[0].validation), len(np.unique(classes))
            if not can_stratify(classes, held_out):
                warn(
                    f"The split is not stratified: {held_out} of {len(classes)} samples are held "
                    f"out, of {several} classes. Give another --test-size, or merge classes."
                )
    splits = without_held_out_subjects(splits, subjects.units_N)
    if codes is not None:
        _check_held_out_classes(splits, codes, refuse=number == 1)
    return splits, subjects


def without_held_out_subjects(splits: Sequence[Split], units_N: Rows) -> tuple[Split, ...]:
    """Leave samples of held-out subjects out of the training of each split, and print how many.

    They are subjects of several studies, and copies of a sample that a file of splits divides.
    """
    apart, left_out = list[Split](), set[int]()
    for split in splits:
        trained = split
        for part, parts in (("test", ("train", "validation")), ("validation", ("train",))):
            held_out = np.unique(units_N[getattr(split, part)])
            for name in parts:
                rows = getattr(trained, name)
                of_held_out = np.isin(units_N[rows], held_out)
                left_out.update(rows[of_held_out].tolist())
                trained = replace(trained, **{name: rows[~of_held_out]})
        if len(split.train) and not len(trained.train):
            raise DataError(
                "All training samples of a fold are of subjects that it holds out",
                f"fold {len(apart) + 1}, {len(split.train)} samples",
                "divide the samples otherwise, or say --group-values distinct if equal values of "
                "the groups are different subjects",
            )
        apart.append(trained)
    if left_out:
        info(
            f"Samples of subjects that a fold holds out leave its training: {len(left_out)} "
            f"samples, in {sum(a is not b for a, b in zip(apart, splits, strict=True))} of "
            f"{len(splits)} folds."
        )
    return tuple(apart)


def _splits_of_file(
    options: SplitOptions,
    sample_ids: Sequence[str],
    subjects: Subjects,
    studies: Sequence[str] | None,
    codes: npt.NDArray[np.int64] | None,
) -> tuple[tuple[Split, ...], Subjects]:
    """Read the file of --splits, which must divide no group and no study."""
    assert options.splits is not None
    splits, of_file = read_splits(options.splits, sample_ids)
    if options.group_column is None and of_file is not None and of_file != subjects.groups:
        subjects = replace(subjects, groups=of_file, column=FILE_GROUPS)
    if subjects.column is not None and subjects.groups is not None:
        remedy = "choose another file, or "
        remedy += "leave out --group-column" if options.group_column else "correct its groups"
        for split in splits:
            _check_undivided(subjects.groups, [getattr(split, part) for part in PARTS], remedy)
    if studies is None:
        return splits, subjects
    for split in splits:
        known = np.concatenate([split.train, split.validation])
        remedy = "choose another file, or leave out --study-column"
        _check_undivided(studies, [known, split.test], remedy)
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
    options: SplitOptions,
    folds: int | Literal["auto"],
    repeats: int | Literal["auto"],
    labels: Sequence[str] | None,
    samples: int,
) -> tuple[int, int]:
    units = samples if labels is None else len(set(labels))
    number = min(FOLDS, max(2, units)) if folds == "auto" else folds
    if folds == "auto" and options.group_column is not None and number < FOLDS:
        info(f"Folds: {number}, one for each group of '{options.group_column}'.")
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
    part, rows = held_out[alike[0]]
    cause = f"All {part} samples are of one class"
    if refuse:
        remedy = "choose another --seed or --test-size, or merge classes"
        if np.unique(codes, return_counts=True)[1].min() == 1:
            remedy = "merge the class of one sample, or leave it out (--where)"
        raise DataError(cause, f"{len(rows)} of {len(codes)} samples", remedy)
    folds = first_few(k + 1 for k in alike)
    warn(f"{cause}, so they cannot measure a model: of {len(splits)} folds in {folds}.")


def _check_undivided(names: Sequence[str], parts: Sequence[Rows], remedy: str) -> None:
    counts = Counter(chain.from_iterable({names[row] for row in part} for part in parts))
    if divided := sorted(name for name, times in counts.items() if times > 1):
        cause = "The splits file divides groups between the parts of a split"
        raise DataError(cause, first_few(divided), remedy)


def check_covariates(covariates: Covariates, splits: Sequence[Split]) -> None:
    """Warn about columns whose held-out categories are all unknown to the training samples."""
    for name, values in covariates.categories.items():
        unknown = [
            fold
            for fold, split in enumerate(splits, start=1)
            if not set(values[split.held_out[1]]) & set(values[split.train]) - {""}
        ]
        if unknown:
            folds = f"fold {', '.join(map(str, unknown))}" if len(splits) > 1 else "the split"
            warn(
                f"No held-out sample of {folds} has a category of '{name}' that the training "
                "samples have: there the column counts as unknown."
            )
