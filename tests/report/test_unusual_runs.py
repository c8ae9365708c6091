"""Reports of unusual runs: other versions, one class, many classes, many columns, long names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aam.cli import main
from aam.contract.errors import DataError
from aam.report.comparison import comparison
from aam.report.run import read_run
from tests.support.report_pages import Outline, downloads, hidden_width, report, scroll_width

LONG = "sample-" + "x" * 293
HEBREW, ARABIC, CHINESE = "גיל חולה", "مرض السكري", "糖尿病"
ODD = ("$x$ <b>", "a\\frac{b", "_hidden", HEBREW, ARABIC, CHINESE)


def rewrite(folder: Path, **changes: object) -> None:
    """Change entries of run.json."""
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | changes))


def write_classes(
    folder: Path, actual: Sequence[str], classes: Sequence[str], ids: Sequence[str] | None = None
) -> None:
    """Write predictions of classes with probabilities: half of them right."""
    rng = np.random.default_rng(0)
    names = ids or [f"S{k}" for k in range(len(actual))]
    guessed = rng.choice(classes, len(actual))
    predicted = np.where(rng.random(len(actual)) < 0.5, actual, guessed)
    lines = ["\t".join(["sample-id", "split", "actual", "predicted", *(f"p_{c}" for c in classes)])]
    for name, true, found in zip(names, actual, predicted, strict=True):
        chances = ["0.9" if c == found else "0.0" for c in classes]
        lines.append("\t".join([name, "test", true, found, *chances]))
    (folder / "predictions.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = json.loads((folder / "run.json").read_text())
    record["options"]["target"]["classifier"] = True
    record["options"]["target"]["metadata_column"] = HEBREW
    record["inputs"] = {}
    (folder / "run.json").write_text(json.dumps(record))
    for name in ("embeddings.tsv", "metrics.csv", "splits.tsv"):
        (folder / name).unlink(missing_ok=True)


def test_a_run_of_another_version_is_reported(run_folder: Path) -> None:
    """Facts and options that this version does not have are shown or left out."""
    record = json.loads((run_folder / "run.json").read_text())
    record |= {"aam": "9.9.9", "members": ["oracle", "kernel"], "shards": 7}
    record["options"] |= {"oracle_depth": 3}
    (run_folder / "run.json").write_text(json.dumps(record))
    text = report(run_folder)
    assert "with aam 9.9.9." in text
    assert "--oracle-depth" in text
    rewrite(run_folder, command="divine")
    assert main(["report", "--run-dir", str(run_folder)]) == DataError.status


def test_few_predictions_are_reported_or_refused(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, first, *_ = (run_folder / "predictions.tsv").read_text().splitlines()
    (run_folder / "predictions.tsv").write_text(f"{header}\n{first}\n")
    assert "1 validation samples" in report(run_folder)
    (run_folder / "predictions.tsv").write_text(f"{header}\n")
    assert main(["report", "--run-dir", str(run_folder)]) == DataError.status
    assert "no test or validation samples" in capsys.readouterr().err


def test_runs_without_probabilities_are_compared_by_what_they_have(run_folder: Path) -> None:
    write_classes(run_folder, ["a", "b"] * 10, ["a", "b"])
    one = read_run(run_folder)
    assert one.scored is not None
    without = replace(
        one, folder=Path("without"), partitions=replace(one.scored, probabilities=None)
    )
    found, _ = comparison([one, without, replace(one, folder=Path("third"))])
    (differences,) = [table for table in found if table.title.startswith("Difference")]
    assert [row[0] for row in differences.rows] == ["third"]


def test_one_class_and_runs_of_a_classifier_and_of_ranks(run_folder: Path) -> None:
    write_classes(run_folder, ["only"] * 12, ["only"])
    text = report(run_folder)
    Outline(text)
    assert "100.0% of 12 test samples are classified correctly." in text
    assert "roc.svg" not in downloads(text)
    one = read_run(run_folder)
    assert one.partitions is not None
    other = replace(one, partitions=replace(one.partitions, ordered=True))
    with pytest.raises(DataError, match=r"in different ways: .* by ordinal, .* by classification"):
        comparison([one, other])


@pytest.mark.medium
def test_a_thousand_classes(run_folder: Path) -> None:
    classes = [f"class {k}" for k in range(1000)]
    write_classes(run_folder, [classes[k % 1000] for k in range(1500)], classes)
    text = report(run_folder)
    assert len(text) < 2**22
    assert "The first 30 of 1000 rows." in text
    assert downloads(text)["by-class.tsv"].count("\n") == 1001


@pytest.mark.medium
def test_long_and_foreign_names(
    run_folder: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    ids = [f"{LONG[:-2]}{k:02d}" for k in range(36)]
    write_classes(run_folder, [ODD[k % len(ODD)] for k in range(36)], ODD, ids)
    text = report(run_folder)
    Outline(text)
    assert not [one for one in recwarn.list if "Glyph" in str(one.message)]
    assert f"<bdi>Prediction of {HEBREW}</bdi>" in text
    for name in (HEBREW, ARABIC, CHINESE, "$x$ &lt;b&gt;", "a\\frac{b"):
        assert f'<th scope="row"><bdi>{name}</bdi>' in text
    assert f'title="{LONG[:-2]}' in text
    assert scroll_width(text, tmp_path) <= 500
    classes = [f"{name} {'x' * 280}" for name in (HEBREW, CHINESE)]
    write_classes(run_folder, [classes[k % 2] for k in range(36)], classes, ids)
    assert hidden_width(report(run_folder), tmp_path) <= 0


def test_a_comparison_is_the_same_with_its_runs_swapped(run_folder: Path) -> None:
    """One run has groups, the other none: both directions resample the groups."""
    run = read_run(run_folder)
    assert run.scored is not None
    one = replace(run, groups={name: f"g{k // 2}" for k, name in enumerate(run.sample_ids)})
    moved = run.scored.predicted + np.random.default_rng(0).normal(size=len(run.sample_ids))
    scored = replace(run.scored, predicted=moved)
    other = replace(run, folder=Path("other"), partitions=scored, groups={})
    found = []
    for pair in ((one, other), (other, one)):
        tables, _ = comparison(pair)
        (difference,) = [table for table in tables if table.title.startswith("Difference")]
        found.append(difference.rows[0])
    (_, first, verdict), (_, swapped, opposite) = found
    numbers = [[float(n) for n in re.findall(r"-?\d+\.\d+", text)] for text in (first, swapped)]
    value, lower, upper = numbers[0]
    assert numbers[1] == [-value, -upper, -lower]
    assert {verdict, opposite} in ({"ahead", "behind"}, {"not significant"})
