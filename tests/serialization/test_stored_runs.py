"""Runs and stores of an earlier version (tests/stored): they load, and predict the same numbers."""

from __future__ import annotations

import dataclasses
import html
from pathlib import Path

import pytest

from aam.evaluation.confounding import Confounder
from aam.evaluation.scores import Scores
from tests.support.commands import aam, read

STORED = Path(__file__).parents[1] / "stored"


@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_a_stored_model_predicts_the_same(name: str, tmp_path: Path) -> None:
    output = tmp_path / "p.tsv"
    table = STORED / f"{name}.biom"
    assert aam("predict", "--model", STORED / name, "--table", table, "--output", output) == 0
    before = STORED.joinpath(f"{name}.predicted.tsv").read_text().splitlines()
    # All cells but whether a sample trained the model, which ids alone decided before.
    rows = [line.split("\t") for line in output.read_text().splitlines()]
    split = rows[0].index("split")
    assert [row[:split] + row[split + 1 :] for row in rows] == [
        (cells := line.split("\t"))[:split] + cells[split + 1 :] for line in before
    ]
    assert set(read(output)["split"]) == {"train"}


@pytest.mark.parametrize(("name", "column"), [("numbers", "ph"), ("classes", "disease")])
def test_what_a_stored_model_does_not_hold_is_not_known(
    name: str, column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Subjects were not stored: the samples of other ids are scored, and it says so."""
    study = ("--table", STORED / f"{name}.biom", "--metadata", STORED / f"{name}.metadata.tsv")
    evaluate = ("evaluate", "--model", STORED / name, *study, "--metadata-column", column)
    evaluate = (*evaluate, "--output", tmp_path / "e")
    assert aam(*evaluate, "--group-column", "subject") != 0  # all trained it
    assert "samples whose subjects trained it cannot be left out" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_a_stored_run_is_reported_and_compared(name: str, tmp_path: Path) -> None:
    assert aam("report", STORED / name, "--output", tmp_path / "r.html") == 0
    assert aam("compare", STORED / name, STORED / name) == 0


@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_findings_of_a_stored_run_begin_with_the_verdict(name: str, tmp_path: Path) -> None:
    """Each is from a field of the scores, and on the page; warnings make the verdict doubtful."""
    scores = Scores.read(STORED / name / "scores.json")
    first, *others = scores.findings()
    assert (first.text, first.is_warning) == (scores.verdict.sentence, not scores.is_better)
    assert others and all(getattr(scores, finding.field) for finding in others)
    confounder = Confounder("site", scores.metric, 0.9)
    doubtful = dataclasses.replace(scores, confounders=[confounder]).findings()
    assert doubtful[:-1] == [first, *others]
    assert doubtful[-1].field == "confounders" and doubtful[-1].is_warning
    assert aam("report", STORED / name, "--output", tmp_path / "r.html") == 0
    page = html.unescape(tmp_path.joinpath("r.html").read_text())
    assert all(finding.text in page for finding in (first, *others))


def test_a_stored_store_is_trained(tmp_path: Path) -> None:
    store = STORED / "classes.aam"
    train = ("train", store, store, "disease", "--study-column", "study", "--members", "kernel")
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
