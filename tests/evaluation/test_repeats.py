"""Repeated cross-validation: several partitions of the samples into folds, with mean scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from aam import load
from aam.contract.options.groups import SplitOptions
from aam.data.metadata import Metadata, read_metadata
from aam.evaluation.intervals import Units, resample_metrics
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.splits import make_splits, read_splits, split_samples, write_splits
from aam.evaluation.subjects import Subjects, find_subjects
from tests.support.commands import aam, read
from tests.support.run_folders import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, samples=60)
    return folder


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "ph"
    given = ("--table", study / "table.biom", "--metadata", study / "metadata.tsv")
    words = ("--members", "kernel", "--folds", 3, "--repeats", 4, "--group-column", "subject")
    assert aam("train", *given, "--metadata-column", "ph", "--output-dir", folder, *words) == 0
    return folder


def test_partitions_differ_and_keep_groups_together() -> None:
    groups = [f"s{row // 2}" for row in range(40)]
    splits = make_splits(40, test_size=0.2, folds=4, seed=3, groups=groups, repeats=3)
    assert [split.repeat for split in splits] == [1] * 4 + [2] * 4 + [3] * 4
    tests = [np.concatenate([s.test for s in splits if s.repeat == k]) for k in (1, 2, 3)]
    assert all(sorted(rows) == list(range(40)) for rows in tests)
    assert len({tuple(sorted(s.test.tolist())) for s in splits}) == 12
    for split in splits:
        parts = [
            {groups[row] for row in rows} for rows in (split.train, split.validation, split.test)
        ]
        assert not parts[0] & parts[1] and not parts[2] & (parts[0] | parts[1])
    alone = make_splits(40, test_size=0.2, folds=4, seed=3, groups=groups)
    for one, other in zip(alone, splits, strict=False):
        np.testing.assert_array_equal(one.test, other.test)


@pytest.mark.parametrize("classes", ["none", "of subjects", "of samples"])
def test_few_subjects_of_unequal_size_have_different_partitions(classes: str) -> None:
    sizes = np.array([3, 17, 5, 22, 9, 14, 30, 2, 8, 11, 19, 6])
    subject = np.repeat(np.arange(12), sizes)
    codes = {
        "none": None,
        "of subjects": subject % 2,
        "of samples": np.random.default_rng(0).integers(2, size=len(subject)),
    }[classes]
    partitions = set()
    for seed in (1, 2, 3, 42):
        splits = make_splits(
            len(subject), test_size=0, folds=5, seed=seed, groups=[str(k) for k in subject],
            classes=codes, repeats=5,
        )  # fmt: skip
        found = {
            frozenset(frozenset(subject[s.test].tolist()) for s in splits if s.repeat == k)
            for k in range(1, 6)
        }
        assert len(found) == 5
        # Without classes no fold is far larger than another: 30 of 146 are of one subject.
        if codes is None:
            assert all(20 <= len(split.test) <= 40 for split in splits)
        partitions |= found
    assert len(partitions) > 12


@pytest.mark.parametrize(
    ("groups", "folds", "number"), [([0, 0, 1, 2, 3], 4, 1), ([0, 1, 2], 2, 3), (None, 5, 1)]
)
def test_no_partition_is_computed_twice(
    groups: list[int] | None, folds: int, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, names = (5, None) if groups is None else (len(groups), [str(k) for k in groups])
    splits = make_splits(samples, test_size=0, folds=folds, seed=0, groups=names, repeats=8)
    assert splits[-1].repeat == number
    assert f"Repeats: {number} instead of 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("samples", "groups", "expected"), [(299, None, 5), (300, None, 1), (400, 99, 5), (400, 4, 1)]
)
def test_small_studies_are_repeated(samples: int, groups: int | None, expected: int) -> None:
    ids = [f"s{row}" for row in range(samples)]
    options = SplitOptions()
    each = Subjects(np.arange(samples))
    splits, _ = split_samples(options, "auto", 0, ids, each, repeats="auto")
    if groups is None:
        assert splits[-1].repeat == expected
        return
    metadata = Metadata(tuple(ids), {"g": tuple(f"g{row % groups}" for row in range(samples))})
    options = SplitOptions(group_column="g")
    subjects = find_subjects("g", "auto", metadata, ids)
    splits, _ = split_samples(options, "auto", 0, ids, subjects, repeats="auto")
    assert splits[-1].repeat == expected


def test_a_score_is_the_mean_of_the_partitions(run: Path) -> None:
    frame = read(run / "predictions-repeats.tsv")
    assert sorted(frame["repeat"].unique()) == [1, 2, 3, 4]
    assert (frame.groupby("sample-id").size() == 4).all()
    expected = np.mean(
        [r2_score(part["actual"], part["predicted"]) for _, part in frame.groupby("repeat")]
    )
    scores = json.loads((run / "scores.json").read_text())
    r2 = scores["models"]["ensemble"]["metrics"]["r2"]
    assert r2["value"] == pytest.approx(expected)
    assert r2["lower"] < r2["value"] < r2["upper"]
    assert (scores["samples"], scores["repeats"]) == (60, 4)
    averaged = frame.groupby("sample-id")[["actual", "predicted"]].mean()
    assert r2["value"] != pytest.approx(r2_score(averaged["actual"], averaged["predicted"]))


def test_predictions_have_a_row_for_each_sample(run: Path, study: Path) -> None:
    """They are metadata of samples, as QIIME 2 reads them, with the means of the repeats."""
    described = read_metadata(run / "predictions.tsv")
    assert sorted(described.ids) == sorted(read_metadata(study / "metadata.tsv").ids)
    found = read(run / "predictions.tsv").set_index("sample-id")
    assert not {"repeat", "fold"} & {*found} and (found["repeats"] == 4).all()
    repeats = read(run / "predictions-repeats.tsv").groupby("sample-id")
    for name in ("actual", "predicted", "kernel_predicted", "lower", "upper"):
        np.testing.assert_allclose(found[name], repeats[name].mean()[found.index])


@pytest.mark.medium
@pytest.mark.parametrize("words", [("--classifier",), ("--ordinal", "a,b,c")])
def test_a_class_is_that_of_the_mean_probabilities(
    words: tuple[str, ...], study: Path, tmp_path: Path
) -> None:
    table = read(study / "metadata.tsv").iloc[1:]  # without the types of QIIME 2
    third = pd.qcut(
        table["ph"].astype(float) + np.tile([0, 1.5, -1.5], 20), 3, labels=["a", "b", "c"]
    )
    table.assign(third=third).to_csv(tmp_path / "m.tsv", sep="\t", index=False)
    given = ("--table", study / "table.biom", "--metadata", tmp_path / "m.tsv", *words)
    cv = ("--members", "kernel", "--folds", 3, "--repeats", 3, "--output-dir", tmp_path / "r")
    assert aam("train", *given, "--metadata-column", "third", *cv) == 0
    found = read(tmp_path / "r/predictions.tsv").set_index("sample-id")
    repeats = read(tmp_path / "r/predictions-repeats.tsv").groupby("sample-id")
    chances = repeats[["p_a", "p_b", "p_c"]].mean().loc[found.index].to_numpy()
    np.testing.assert_allclose(found[["p_a", "p_b", "p_c"]], chances)
    codes = chances.argmax(axis=1)
    if words[0] == "--ordinal":
        codes = (chances.cumsum(axis=1) < 0.5).sum(axis=1)
    assert found["predicted"].tolist() == ["abc"[code] for code in codes]
    assert (repeats["predicted"].nunique() > 1).any()


@pytest.mark.medium
def test_predictions_of_each_repeat_are_read_where_there_are_any(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of runs before there were two files, whose predictions.tsv had the repeats."""
    before = Path(shutil.copytree(run, tmp_path / "before"))
    (before / "predictions-repeats.tsv").replace(before / "predictions.tsv")
    means = Path(shutil.copy(run / "predictions.tsv", tmp_path))
    expected = json.loads((run / "scores.json").read_text())["models"]["ensemble"]["metrics"]["r2"]
    given = ("--metadata", study / "metadata.tsv", "--metadata-column", "ph")
    found = []
    for number, folder in enumerate((run, before, means.parent)):
        output = tmp_path / f"{number}.json"
        words = ("--predictions", folder / "predictions.tsv", *given, "--output", output)
        assert aam("evaluate", *words) == 0
        found.append(json.loads(output.read_text())["overall"]["r2"])
    assert found[:2] == pytest.approx([expected["value"]] * 2)
    assert found[2] != pytest.approx(expected["value"])
    assert "are means over repeats" in capsys.readouterr().err
    for folder in (run, before):
        assert aam("report", "--run-dir", folder, "--output", tmp_path / "p.html") == 0
        assert "means over 4 repeats" in (tmp_path / "p.html").read_text()
    new, old = (load(folder).results().oof_predictions for folder in (run, before))
    pd.testing.assert_frame_equal(new, old)
    assert aam("compare", run, before) == 0
    assert "the same predictions" in capsys.readouterr().out


def test_evaluate_and_report_agree_with_the_run(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = json.loads((run / "scores.json").read_text())
    given = ("--metadata", study / "metadata.tsv", "--metadata-column", "ph")
    output = tmp_path / "metrics.json"
    words = ("evaluate", "--predictions", run / "predictions.tsv", *given, "--output", output)
    assert aam(*words) == 0
    found = json.loads(output.read_text())
    value = scores["models"]["ensemble"]["metrics"]["r2"]["value"]
    assert found["overall"]["r2"] == pytest.approx(value)
    assert list(found["repeats"]) == ["1", "2", "3", "4"]
    assert "repeat 4" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert "means over 4 repeats" in page


def test_units_are_left_out_of_all_partitions() -> None:
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], 15)
    chances = [np.clip(codes * 0.3 + rng.random(30) * 0.7, 0, 1) for _ in range(3)]
    probabilities = np.concatenate([np.column_stack([1 - p, p]) for p in chances])
    scored = ScoredPredictions(
        np.tile(codes, 3), probabilities.argmax(axis=1), tuple(str(k // 10) for k in range(90)),
        ("no", "yes"), probabilities, repeats=tuple("123"[k // 30] for k in range(90)),
    )  # fmt: skip
    samples = np.tile(np.arange(30), 3)
    whole = resample_metrics(scored, Units.of(samples))
    # A unit is left out with all its predictions.
    alone = [resample_metrics(part, Units.of(samples[rows])) for rows, part in scored.partitions]
    expected = np.mean([one.replicates["accuracy"] for one in alone], axis=0)
    np.testing.assert_allclose(whole.replicates["accuracy"], expected)
    assert scored.metrics()["samples"] == 30


def test_the_splits_of_a_repeated_run_are_read_again(
    run: Path, study: Path, tmp_path: Path
) -> None:
    given = ("--table", study / "table.biom", "--metadata", study / "metadata.tsv")
    again = ("--members", "kernel", "--splits", run / "splits.tsv", "--output-dir", tmp_path / "r")
    assert aam("train", *given, "--metadata-column", "ph", *again) == 0
    for name in ("splits.tsv", "predictions.tsv", "predictions-repeats.tsv"):
        pd.testing.assert_frame_equal(read(run / name), read(tmp_path / "r" / name))


def test_ids_and_groups_with_quotes_tabs_and_line_ends_are_read_again(tmp_path: Path) -> None:
    ids = ['s"1', "s\t2", "s\n3", 's,4"', "s5", "s6"]
    groups = ['g"', "g\tx", "g\nx", "", "g", "g"]
    splits = make_splits(6, test_size=0.2, folds=3, seed=0, repeats=2)
    write_splits(tmp_path / "splits.tsv", ids, splits, groups)
    found, labels = read_splits(tmp_path / "splits.tsv", ids)
    assert labels == [group or name for group, name in zip(groups, ids, strict=True)]
    for one, other in zip(splits, found, strict=True):
        np.testing.assert_array_equal(one.test, other.test)
        assert one.repeat == other.repeat


def test_a_single_split_is_not_repeated(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--table", study / "table.biom", "--metadata", study / "metadata.tsv")
    words = ("--metadata-column", "ph", "--output-dir", tmp_path / "r", "--folds", 1)
    assert aam("train", *given, *words, "--repeats", 2) == 64
    assert "--folds 2 or more" in capsys.readouterr().err
    assert aam("train", *given, *words[:4], "--repeats", 10_000_000) == 64
    assert "give 1 to 1000 for --repeats" in capsys.readouterr().err
