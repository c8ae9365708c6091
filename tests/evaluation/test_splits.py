"""Splits of samples by groups and classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.contract.errors import DataError
from aam.contract.options.groups import SplitOptions
from aam.data.metadata import read_metadata
from aam.evaluation.splits import Split, make_splits, split_samples, write_splits
from aam.evaluation.subjects import Subjects, find_subjects


def stratified(groups: int, folds: int) -> tuple[Split, ...]:
    """Split samples of two classes, twelve of each group."""
    rows = np.arange(12 * groups)
    names = [f"subject {row % groups}" for row in rows]
    classes = (rows // groups) % 2
    return make_splits(len(rows), test_size=0.2, folds=folds, seed=1, groups=names, classes=classes)


def _cages(folder: Path, groups: int) -> Subjects:
    lines = [f"S{row}\tcage {row % groups}" for row in range(24)]
    (folder / "m.tsv").write_text("sample-id\tcage\n" + "\n".join(lines) + "\n")
    ids = [f"S{row}" for row in range(24)]
    return find_subjects("cage", "auto", read_metadata(folder / "m.tsv"), ids)


@pytest.mark.parametrize(("groups", "folds"), [(9, 5), (4, 4), (2, 2)])
def test_few_groups_have_a_fold_each(
    tmp_path: Path, groups: int, folds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, options = [f"S{row}" for row in range(24)], SplitOptions(group_column="cage")
    splits, subjects = split_samples(options, "auto", 0, ids, _cages(tmp_path, groups))
    labels = subjects.groups
    assert labels is not None
    cages = [{labels[row] for row in split.test} for split in splits]
    assert len(cages) == folds
    assert set.union(*cages) == set(labels)
    shown = f"Folds: {folds}, one for each group of 'cage'." in capsys.readouterr().err
    assert shown == (folds < 5)


def test_one_group_cannot_be_divided(tmp_path: Path) -> None:
    ids, options = [f"S{row}" for row in range(24)], SplitOptions(group_column="cage")
    with pytest.raises(DataError, match="1 for 2 parts; give another --group-column"):
        split_samples(options, "auto", 0, ids, _cages(tmp_path, 1))


def test_few_groups_are_stratified() -> None:
    """Outside the test samples there are fewer groups than the parts of the test size."""
    for split in stratified(groups=6, folds=3):
        parts = [set(rows % 6) for rows in (split.train, split.validation, split.test)]
        assert [len(part) for part in parts] == [3, 1, 2]
        assert len(set.union(*parts)) == 6


def test_classes_are_stratified_as_far_as_they_are_large_enough() -> None:
    """Class 2 has fewer samples than folds; with one group outside the test, none validates."""
    ids, codes = [f"S{row}" for row in range(20)], np.array([0] * 12 + [1] * 6 + [2] * 2)
    splits, _ = split_samples(SplitOptions(), 3, 0, ids, Subjects(np.arange(20)), codes)
    for split in splits:
        counts = np.bincount(codes[split.test], minlength=3)
        assert (counts[:2] == (4, 2)).all() and counts[2] <= 1
    assert [len(split.validation) for split in stratified(groups=2, folds=2)] == [0, 0]
    unique, _ = split_samples(SplitOptions(), 2, 0, ids, Subjects(np.arange(20)), np.arange(20))
    assert [len(split.test) for split in unique] == [10, 10]


@pytest.mark.parametrize("seed", range(40))
def test_as_many_groups_as_folds_have_a_fold_each(seed: int) -> None:
    """Groups of one class each, whose even division would leave a fold empty."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, 5)
    subject = np.repeat(np.arange(5), sizes)
    classes = rng.integers(2, size=5)[subject]
    splits = make_splits(
        len(subject), test_size=0, folds=5, seed=seed, groups=[str(k) for k in subject],
        classes=classes,
    )  # fmt: skip
    assert sorted(len(split.test) for split in splits) == sorted(sizes)


def test_grouped_folds_are_stratified() -> None:
    """A quarter of the cases in each fold, whatever the version of scikit-learn."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        subject = np.repeat(np.arange(40), rng.integers(1, 5, 40))
        classes = (np.arange(40) % 4 == 0).astype(np.int64)[subject]
        splits = make_splits(
            len(subject), test_size=0, folds=5, seed=seed, groups=[str(k) for k in subject],
            classes=classes,
        )  # fmt: skip
        shares = [classes[split.test].mean() for split in splits]
        assert min(shares) > 0.1 and max(shares) < 0.45
        for split in splits:
            assert not set(subject[split.test]) & set(subject[split.train])


@pytest.mark.parametrize("share", [0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75])
def test_a_stratified_part_has_the_size_that_was_given(share: float) -> None:
    codes = np.arange(200) % 4 // 2
    (split,) = make_splits(200, test_size=share, folds=1, seed=0, classes=codes)
    assert len(split.validation) == pytest.approx(200 * share, abs=2)
    assert np.bincount(codes[split.validation]).tolist() == pytest.approx([100 * share] * 2, abs=1)


@pytest.mark.parametrize(("share", "size"), [(0.45, 45), (0.03, 3), (0.02, 2)])
def test_any_size_is_stratified(share: float, size: int) -> None:
    codes = np.arange(100) % 2
    for seed in range(20):
        (split,) = make_splits(100, test_size=share, folds=1, seed=seed, classes=codes)
        counts = np.bincount(codes[split.validation], minlength=2)
        assert counts.sum() == size and abs(counts[0] - counts[1]) <= 1


def test_groups_are_stratified_in_a_single_split() -> None:
    """The folds of which the validation is made are more even than one for each group."""
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(20), rng.integers(1, 6, 20))
    codes = (rng.random(20) < 0.4).astype(int)[subject]
    for share in (0.2, 0.3, 0.45):
        for seed in range(20):
            (split,) = make_splits(
                len(subject), test_size=share, folds=1, seed=seed, classes=codes,
                groups=[str(k) for k in subject],
            )  # fmt: skip
            assert len(split.validation) / len(subject) == pytest.approx(share, abs=0.07)
            assert codes[split.validation].mean() == pytest.approx(codes.mean(), abs=0.1)
            assert not set(subject[split.validation]) & set(subject[split.train])


@pytest.mark.parametrize("folds", [1, 2])
def test_each_class_keeps_a_group_in_training(folds: int) -> None:
    """One group has the third class, and one of two groups is redundant."""
    subject = np.repeat(np.arange(8), 4)
    codes = np.where(subject == 0, 2, subject % 2)
    for seed in range(20):
        for split in make_splits(
            len(subject), test_size=0.3, folds=folds, seed=seed, classes=codes,
            groups=[str(k) for k in subject],
        ):  # fmt: skip
            assert set(codes[split.validation]) <= set(codes[split.train])
            assert len(split.validation) and not set(subject[split.train]) & {
                *subject[split.validation]
            }
        (pair,) = make_splits(
            4,
            test_size=0.5,
            folds=1,
            seed=seed,
            groups=list("aabb"),
            classes=np.array([0, 1, 0, 0]),
        )
        assert pair.train.tolist() == [0, 1] and pair.validation.tolist() == [2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_each_class_keeps_a_sample_in_training(seed: int) -> None:
    """Most samples of a class of two are drawn, or the classes are too many to stratify."""
    for share, codes in ((0.8, [0] * 10 + [1] * 2), (0.6, [0] * 4 + [1, 1, 2, 2, 3, 3])):
        (split,) = make_splits(
            len(codes), test_size=share, folds=1, seed=seed, classes=np.array(codes)
        )
        assert {codes[row] for row in split.train} == set(codes) and len(split.validation)


def test_a_split_that_cannot_be_stratified_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The only sample of a class stays in the training; each other class needs a sample."""
    ids, codes = [f"S{row}" for row in range(41)], np.array([*(np.arange(40) % 4), 4])
    (split,), _ = split_samples(
        SplitOptions(test_size=0.2), 1, 0, ids, Subjects(np.arange(41)), codes
    )
    assert np.bincount(codes[split.validation]).tolist() == [2, 2, 2, 2]
    assert "not stratified" not in capsys.readouterr().err
    split_samples(SplitOptions(test_size=0.07), 1, 0, ids, Subjects(np.arange(41)), codes)
    assert "not stratified: 3 of 41" in capsys.readouterr().err


def test_a_splits_file_keeps_its_groups(tmp_path: Path) -> None:
    ids, options = [f"S{row}" for row in range(24)], SplitOptions(group_column="cage")
    each = Subjects(np.arange(24))
    splits, subjects = split_samples(options, 3, 0, ids, _cages(tmp_path, 6))
    path = tmp_path / "splits.tsv"
    write_splits(path, ids, splits, subjects.groups)
    read, found = split_samples(SplitOptions(splits=path), 3, 0, ids[::-1], each)
    assert subjects.groups is not None
    assert found.groups == subjects.groups[::-1]
    assert [len(split.test) for split in read] == [len(split.test) for split in splits]
    write_splits(path, ids, splits)
    assert split_samples(SplitOptions(splits=path), 3, 0, ids, each)[1].groups is None
