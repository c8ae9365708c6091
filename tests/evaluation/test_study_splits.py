"""Leaving one study out: splits, weights of categories, and what is chosen inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.contract.errors import DataError
from aam.contract.options.groups import GroupValues, SplitOptions
from aam.data.metadata import Metadata
from aam.evaluation.labels import Labels
from aam.evaluation.splits import read_studies, split_samples
from aam.evaluation.subjects import Subjects, find_subjects
from tests.support.commands import TINY, aam, read

STUDIES = [f"study {row % 4}" for row in range(40)]
IDS = [f"S{row}" for row in range(40)]
CODES = np.arange(40) // 4 % 2
EACH = Subjects(np.arange(40))


def with_studies(study_dir: Path, path: Path) -> pd.DataFrame:
    """Write the metadata with columns of studies: three, one, and with a missing value."""
    table = pd.read_csv(study_dir / "metadata.tsv", sep="\t", dtype=str)
    table = table[~table.iloc[:, 0].str.startswith("#")].reset_index(drop=True)
    rows = range(len(table))
    table = table.assign(
        batch=[f"b{row % 3}" for row in rows],
        one="a",
        holes=["ab"[row % 2] if row else "" for row in rows],
    )
    table.to_csv(path, sep="\t", index=False)
    return table


def test_each_study_is_a_fold_and_validation_is_a_whole_study() -> None:
    splits, _ = split_samples(SplitOptions(), "auto", 0, IDS, EACH, CODES, studies=STUDIES)
    assert len(splits) == 4
    for split in splits:
        parts = [{STUDIES[row] for row in part} for part in (split.train, split.validation)]
        assert [len(part) for part in parts] == [2, 1]
        assert len({STUDIES[row] for row in split.test}) == 1
        assert len(split.rows) == 40


@pytest.mark.parametrize(("values", "subjects"), [("same", 5), ("distinct", 20)])
def test_equal_names_of_subjects_in_two_studies(values: GroupValues, subjects: int) -> None:
    """Five names in each of four studies: the groups are within a study, the subjects are not."""
    metadata = Metadata(IDS, {"subject": [str(row // 8) for row in range(40)]})
    found = find_subjects("subject", values, metadata, IDS, studies=STUDIES)
    assert found.groups is not None
    assert len(set(found.groups)) == 20
    assert len(np.unique(found.units_N)) == subjects
    options = SplitOptions(group_column="subject")
    if subjects == 5:  # each subject is in each study
        with pytest.raises(DataError, match="--group-values distinct"):
            split_samples(options, "auto", 0, IDS, found, CODES, studies=STUDIES)
    else:
        splits, _ = split_samples(options, "auto", 0, IDS, found, CODES, studies=STUDIES)
        assert all(len(split.rows) == 40 for split in splits)


def test_a_study_of_one_category_is_predicted_and_teaches_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes = np.where(np.array(STUDIES) == "study 3", 1, CODES)
    splits, _ = split_samples(SplitOptions(), "auto", 0, IDS, EACH, codes, studies=STUDIES)
    known = [set(np.concatenate([split.train, split.validation])) for split in splits]
    single = set(splits[3].test)
    assert len(single) == 10
    assert not any(single & rows for rows in known)
    assert "studies of one category" in capsys.readouterr().err
    with pytest.raises(DataError, match="several categories"):
        split_samples(SplitOptions(), "auto", 0, IDS, EACH, np.arange(40) % 4, studies=STUDIES)


def test_weights_give_the_categories_the_same_proportions_in_every_study() -> None:
    rng = np.random.default_rng(0)
    studies_N = rng.integers(0, 3, 300)
    codes_N = (rng.random(300) < np.array([0.1, 0.5, 0.9])[studies_N]).astype(float)
    labels = Labels.of(codes_N, ("a", "b"), None, studies=[str(study) for study in studies_N])
    weights_N = labels.weights_N
    cases = [
        np.average(codes_N[studies_N == k], weights=weights_N[studies_N == k]) for k in (0, 1, 2)
    ]
    assert cases == pytest.approx([codes_N.mean()] * 3)
    sizes = np.bincount(studies_N, weights_N)
    assert sizes == pytest.approx(np.bincount(studies_N))


def test_groups_of_choices_are_studies_where_three_are_left() -> None:
    labels = Labels.of(CODES.astype(float), ("a", "b"), None, studies=STUDIES)
    assert len(np.unique(labels.training(np.arange(40)).groups)) == 4
    two = np.flatnonzero(np.isin(STUDIES, ["study 0", "study 1"]))
    assert len(np.unique(labels.training(two).groups)) == len(two)


@pytest.mark.parametrize(
    ("column", "members"),
    [
        ("ph", ("kernel",)),
        ("site", ("kernel", "forest")),
        pytest.param("site", ("transformer", *TINY), marks=pytest.mark.network),
    ],
)
def test_train_leaves_each_study_out(
    tmp_path: Path, study_dir: Path, column: str, members: tuple[str, ...]
) -> None:
    metadata, run = tmp_path / "metadata.tsv", tmp_path / "run"
    table = with_studies(study_dir, metadata)
    arguments = (
        *("train", "--table", study_dir / "table.biom", "--metadata", metadata),
        *("--metadata-column", column, "--output-dir", run, "--study-column", "batch"),
        *(("--classifier",) if column == "site" else ()),
    )
    assert aam(*arguments, "--members", *members) == 0
    splits = read(run / "splits.tsv").merge(table, left_on="sample-id", right_on=table.columns[0])
    for _, fold in splits.groupby("fold"):
        held_out = set(fold["batch"][fold["split"] == "test"])
        assert len(held_out) == 1
        assert not held_out & set(fold["batch"][fold["split"] != "test"])


@pytest.fixture
def joined(tmp_path: Path, study_dir: Path) -> tuple[object, ...]:
    """Return the options of a table and metadata with the column that `aam prepare` writes."""
    metadata = tmp_path / "metadata.tsv"
    table = with_studies(study_dir, metadata).rename(columns={"batch": "study"})
    table.to_csv(metadata, sep="\t", index=False)
    return ("--table", study_dir / "table.biom", "--metadata", metadata)


def test_joined_studies_that_the_folds_divide_are_named(
    joined: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("inspect", *joined, "--metadata-column", "ph")
    for more, warned in (((), True), (("--group-column", "study"), False)):
        assert aam(*given, *more) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert ("--study-column study to predict each study" in printed) == warned


def test_scores_of_known_studies_are_none_of_a_new_one(
    joined: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (*joined, "--metadata-column", "ph", "--members", "kernel", "--group-column", "subject")
    divided, apart = tmp_path / "divided", tmp_path / "apart"
    assert aam("train", *given, "--output-dir", divided) == 0
    printed = capsys.readouterr().out
    assert "in new samples of the same studies. R²" in printed
    assert "the same with: --study-column study" in printed
    # The studies are parts of one, with the same subjects.
    studies = ("--study-column", "study", "--group-values", "distinct")
    assert aam("train", *given, *studies, "--output-dir", apart) == 0
    assert "the same studies" not in capsys.readouterr().out
    assert aam("compare", apart, divided) == 0
    compared = " ".join(capsys.readouterr().out.split())
    assert "not comparable" in compared and "Train it again with --study-column study" in compared


@pytest.mark.parametrize(
    ("column", "more", "sentence"),
    [
        ("one", (), "A single study"),
        ("holes", (), "Samples without a study"),
        ("subject", (), "--group-column subject keeps the samples of each together"),
        ("ph", (), "The groups are the target"),
        ("batch", ("--group-column", "batch"), "The groups are the studies"),
        ("batch", ("--folds", "3"), "--study-column"),
    ],
)
def test_wrong_studies_are_refused(
    tmp_path: Path,
    study_dir: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    more: tuple[str, ...],
    sentence: str,
) -> None:
    metadata, run = tmp_path / "metadata.tsv", tmp_path / "run"
    with_studies(study_dir, metadata)
    status = aam(
        *("train", "--table", study_dir / "table.biom", "--metadata", metadata),
        *("--metadata-column", "ph", "--members", "kernel", "--output-dir", run),
        *("--study-column", column, *more),
    )
    assert status not in (0, 70)
    assert sentence in capsys.readouterr().err
    assert not run.exists()


def test_small_studies_are_taken_where_the_option_was_recommended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = [f"s{row}" for row in range(12)]
    names = ["A", "a", "b", "c"] * 3
    metadata = Metadata(ids, {"study": names, "subject": names})
    assert read_studies("study", metadata, ids) == names
    assert "differ in case or spaces alone: 1 (a)" in capsys.readouterr().err
    with pytest.raises(DataError, match="--group-column subject"):
        read_studies("subject", metadata, ids)
