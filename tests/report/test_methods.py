"""Methods paragraph: each number is one of the run, and each reference can be found."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aam.report.methods import bibtex, paragraph
from aam.report.run import Run, read_run
from tests.support.commands import aam

KINDS = {
    "number": ("ph", "--group-column", "subject", "--repeats", 2, "--where", "depth>0"),
    "classes": ("site", "--repeats", 1, "--folds", 4, "--seed", 3),
    "studies": ("ph", "--study-column", "site"),
    "two classes": ("site", "--where", "site!=site-3", "--repeats", 1,
                    "--adjust-for", "ph"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    study, runs = study_folder / "study", {}
    for kind, (column, *words) in KINDS.items():
        runs[kind] = tmp_path_factory.mktemp("methods") / kind
        files = (study / "table.biom", study / "metadata.tsv", column)
        assert aam("train", *files, *words, "--output-dir", runs[kind]) == 0
    return runs


def leaves(content: Any) -> Iterator[Any]:
    if isinstance(content, (dict, list)):
        for value in content.values() if isinstance(content, dict) else content:
            yield from leaves(value)
    else:
        yield content


def forms(run: Path) -> set[str]:
    """Return each number of run.json and scores.json as a paragraph may print it."""
    record, scores = (json.loads((run / name).read_text()) for name in ("run.json", "scores.json"))
    del record["files"], record["argv"], record["inputs"], record["host"]
    printed = {"1"}
    for leaf in leaves([record, scores]):
        if isinstance(leaf, str):
            printed |= set(numbers(leaf))
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            printed |= {f"{leaf:,}", f"{leaf:.2f}", f"{leaf:.2g}", f"{100 * leaf:.0f}", f"{leaf:g}"}
    return printed


def adjusted(run: Run) -> int:
    """Return the number of ASVs that are associated after adjustment."""
    return sum(float(row.get("q_adjusted") or 1) < 0.1 for row in run.importance)


def numbers(text: str) -> list[str]:
    """Return the numbers of a paragraph, without the years of its references and hashes."""
    text = re.sub(r"(?<=[a-z.]) \d{4}(?=[);])", "", text)
    return [number.rstrip(".,") for number in re.findall(r"\d[\d.,]*(?:e-\d+)?", text)]


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_one_of_the_run(kind: str, runs: dict[str, Path]) -> None:
    run = read_run(runs[kind])
    text, known = paragraph(run), forms(runs[kind])
    assert run.scores is not None
    assert run.scored is not None
    assert 150 <= len(text.split()) <= 250, text
    folds, samples = len(set(run.scored.folds)), sum(run.facts["samples"].values())
    known |= {str(folds), f"{samples:,}", str(len(run.scored.actual))}
    classes = [run.scored.actual.tolist().count(code) for code in range(len(run.scored.classes))]
    known |= {*map(str, classes), str(len(set(run.scored.studies))), str(adjusted(run))}
    assert [number for number in numbers(text) if number not in known] == []


@pytest.mark.medium
def test_a_single_split_has_one_word(
    study_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Console, methods and page call the held-out samples as splits.tsv does."""
    files = (study_folder / "study/table.biom", study_folder / "study/metadata.tsv")
    words = ("ph", "--folds", 1, "--group-column", "subject", "--members", "kernel")
    assert aam("train", *files, *words, "--output-dir", tmp_path / "run") == 0
    assert {row.split("\t")[2] for row in splits_of(tmp_path / "run")} == {"train", "validation"}
    printed, page = capsys.readouterr().err, (tmp_path / "run/report.html").read_text()
    design = next(line for line in printed.splitlines() if line.startswith("Design: "))
    text = paragraph(read_run(tmp_path / "run"))
    sentences = re.findall(r"The scores are from [^<]*", page)
    assert sentences
    assert "validation samples" in design and "validation samples" in text
    for part in (design, text, *sentences):
        assert not re.search(r"\btest\b", part), part


def splits_of(run: Path) -> list[str]:
    """Return the rows of splits.tsv."""
    return (run / "splits.tsv").read_text().splitlines()[1:]


@pytest.mark.medium
def test_the_paragraph_states_what_was_done(runs: dict[str, Path]) -> None:
    run = read_run(runs["number"])
    text, scores, facts = paragraph(run), run.scores, run.facts
    assert scores is not None
    assert scores.interval is not None
    assert scores.weights is not None
    lengths, tested = facts["lengths"], facts["tested"]
    for part in (
        f"the counts of {facts['asvs']:,} ASVs ({lengths[0]} nt) in {scores.samples} samples "
        "where depth>0 ",
        "kernel, 25 penalties from 1e-05 to 10 compared on left-out groups; "
        f"weight {scores.weights.model['kernel']:.2f})",
        "200 trees, 10% of the features at a node, at least 2 samples in a leaf",
        f"in a leaf; weight {scores.weights.model['forest']:.2f})",
        f"{scores.samples} test samples in 5-fold cross-validation, repeated 2 times",
        f"each subject ({scores.groups} groups) is entirely in training or test",
        "R², MAE, RMSE and Spearman have 95% jackknife t intervals over groups",
        f"; {scores.verdict.shufflings} permutations of the held-out labels gave ",
        f"p = {scores.verdict.p:.2g} (",
        f"90% prediction intervals are conformal over groups (Lee et al. 2023) and cover "
        f"{scores.interval.covered:.0%}",
        f"by rank ({tested['q_associated']} tests;",
        f"({tested['q_conditional']} tests, 200 permutations;",
        "Options that differ from the defaults: --repeats 2.",
        f"scikit-learn {facts['versions']['scikit-learn']}",
    ):
        assert part in text, part
    verdict = replace(scores.verdict, shufflings=777)
    edited = paragraph(replace(run, scores=replace(scores, verdict=verdict)))
    assert "; 777 permutations of" in edited
    classes = paragraph(read_run(runs["classes"]))
    assert "Temperature scaling (Guo et al. 2017)" in classes
    assert "Options that differ from the defaults: --seed 3, --folds 4, --repeats 1." in classes
    assert "AUC and accuracy have" in classes
    assert "threshold" not in classes  # three classes have no threshold
    assert "Adjusted" not in classes
    run = read_run(runs["two classes"])
    text, scores = paragraph(run), run.scores
    assert scores is not None
    chosen = scores.thresholds[1]
    sensitivity, specificity = (chosen.metrics[k].value for k in ("sensitivity", "specificity"))
    assert chosen.threshold is not None
    assert sensitivity is not None
    assert specificity is not None
    assert f"threshold of {scores.classes[1]}, {chosen.threshold:.2f} (Youden's J; Youden" in text
    assert f"(held-out sensitivity {sensitivity:.2f}, specificity {specificity:.2f})" in text
    assert f"Adjusted for ph, {adjusted(run)} ASVs were associated." in text
    moved = [scores.thresholds[0], replace(chosen, rule="sensitivity 0.9", threshold=0.125)]
    edited = paragraph(replace(run, scores=replace(scores, thresholds=moved)))
    assert ", 0.12 (sensitivity 0.9), was chosen" in edited
    # The classes of the held-out samples alone are not those of all samples.
    single = read_run(runs["classes"])
    assert single.scored is not None
    assert f" samples ({single.scored.classes[0]}: " in classes
    single = replace(single, facts=single.facts | {"samples": {"train": 900, "validation": 100}})
    assert " in 1,000 samples with aam" in paragraph(single)
    single = replace(single, facts=single.facts | {"samples": {"train": 9}})
    assert single.scored is not None
    assert f" in {len(single.scored.actual)} samples (" in paragraph(single)
    studies = paragraph(read_run(runs["studies"]))
    assert "studies (site), each left out in turn" in studies
    assert "permutations of the held-out labels within studies" in studies


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_every_reference_has_a_year_and_an_address(
    kind: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = read_run(runs[kind])
    capsys.readouterr()
    before = (runs[kind] / "report.html").stat().st_mtime_ns
    assert aam("report", runs[kind], "--methods") == 0
    printed = capsys.readouterr().out.strip()
    text, references = paragraph(run), bibtex(run)
    assert printed == f"{text}\n\n{references}"
    assert (runs[kind] / "report.html").stat().st_mtime_ns == before
    entries = re.split(r"\n(?=@)", references)
    for entry in entries:
        assert re.search(r"year = \{\d{4}\}", entry), entry
        assert re.search(r"doi = \{10\.|url = \{https://", entry), entry
    # Each citation of the paragraph has its reference.
    names = [re.sub(r'\{\\"(\w)\}', "\\1\N{COMBINING DIAERESIS}", entry) for entry in entries]
    names = [unicodedata.normalize("NFC", entry).lower() for entry in names]
    for name, year in re.findall(r"([A-Z]\w+)(?: et al\.| and [A-Z]\w+)? (\d{4})[);]", text):
        assert any(name.lower() in entry and year in entry for entry in names), name
