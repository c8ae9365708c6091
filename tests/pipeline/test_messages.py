"""Messages of a training: on a terminal of 80 columns, once, and after all is written."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from aam import console
from tests.pipeline.test_repeated_samples import write_study
from tests.support.commands import aam


def test_lines_of_a_terminal_have_whole_words_and_a_whole_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    terminal = type(console.console)(
        file=written, force_terminal=True, width=80, color_system=None, highlight=False
    )
    monkeypatch.setattr(console, "console", terminal)
    path = "/a/long/path/" + "x" * 90
    text = " ".join(f"word{k}-with-hyphens" for k in range(20))
    console.warn(f"{text} {path}")
    lines = written.getvalue().splitlines()
    assert path in lines
    assert all(len(line) < 80 for line in lines if line != path)
    assert " ".join(" ".join(lines).split()) == f"warning: {text} {path}"
    list(console.track(range(6), "Kernel, metadata alone", 6, "models"))
    bars = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", written.getvalue().replace("\r", "\n"))
    shown = [line for line in bars.splitlines() if "metadata alone" in line]
    assert shown and "6/6" in shown[-1] and shown[-1].rstrip().endswith("0:00:00")
    assert all(len(line) <= 80 for line in shown)


def test_a_report_has_the_warnings_that_are_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.warnings_for_report() as texts:
        for number in range(7):
            console.warn(f"Warning {number}.")
        console.warn("A leak.", is_leak=True)
    printed = capsys.readouterr().err
    assert len(texts) == 8 and "Warning 4." in printed and "A leak." in printed
    assert "Warning 5." not in printed and "2 more warnings in the report" in printed


@pytest.mark.medium
@pytest.mark.parametrize("design", [(), ("--study-column", "centre")])
def test_a_training_prints_at_most_20_lines(tmp_path: Path, design: tuple[str, ...]) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    assert aam("example", "--output-dir", data, "--samples", 120) == 0
    table = [line.split("\t") for line in (data / "metadata.tsv").read_text().splitlines()]
    column = table[0].index("subject")
    centres = [f"centre {int(row[column][-3:]) % 6}" for row in table[2:]]
    centres = ["centre", "categorical", *centres]
    rows = ["\t".join([*row, centre]) for row, centre in zip(table, centres, strict=True)]
    (data / "metadata.tsv").write_text("\n".join(rows) + "\n")
    design = ("--group-column", "subject", *design)
    words = [data / "table.biom", data / "metadata.tsv", "ph", *design, "--output-dir", run]
    ended = subprocess.run(
        [sys.executable, "-m", "aam", "train", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    lines = [
        part
        for line in ended.stdout.splitlines()
        if not line.startswith("warning: ") and not re.search(r"models/s", line)
        for part in textwrap.wrap(line.replace(str(tmp_path), ""), 100) or [""]
    ]
    assert len(lines) <= 20, ended.stdout
    assert lines[0].startswith("Data: 120 samples") and "Next, " in lines[-1] + lines[-2]


@pytest.mark.medium
def test_few_samples_and_a_device_without_effect_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = write_study(tmp_path)
    lines = (tmp_path / "m.tsv").read_text().splitlines()
    (tmp_path / "m.tsv").write_text("\n".join(lines[:1] + lines[1::18]) + "\n")
    given = ("--metadata-column", "weight", "--members", "kernel", "--device", "cuda", "--folds", 3)
    assert aam("train", *args, *given, "--output-dir", tmp_path / "run") == 0
    printed = capsys.readouterr().err
    assert printed.count("Only 7 samples have 'weight'") == 1
    assert printed.count("--device cuda has no effect") == 1
    warnings = [line for line in printed.splitlines() if line.startswith("warning: ")]
    assert len(set(warnings)) == len(warnings)


def test_a_class_of_one_subject_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `odd` one subject has all samples, of `rare` two of them."""
    subject = [k // 3 for k in range(120)]
    kinds: list[object] = ["odd" if k == 0 else "rare" if k < 3 else f"c{k % 2}" for k in subject]
    args = [*write_study(tmp_path, kind=kinds, subject=list(subject))][1::2]
    given = ("--metadata-column", "kind", "--classifier", "--group-column", "subject")
    assert aam("inspect", args[0], "--metadata", args[1], *given) == 0
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    assert "Classes of 'kind' in a single group: 1 (odd), 3 samples" in text
    assert "with fewer groups than folds: 1 (rare)" in text


@pytest.mark.parametrize("stray", [("unknown", "-", "?", "."), ("x", "y", "z", "w")])
def test_stray_labels_hide_no_leak(
    stray: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four of 120 labels; the column `leak` has the class of all others."""
    kinds: list[object] = [
        stray[k // 25] if k % 25 == 7 and k < 100 else f"c{k // 3 % 2}" for k in range(120)
    ]
    args = write_study(tmp_path, kind=kinds, leak=[f"L{k // 3 % 2}" for k in range(120)])
    assert aam("inspect", args[1], *args[2:], "--metadata-column", "kind", "--classifier") == 0
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    assert re.search(r"'leak'[^:]* determines? 'kind' almost exactly \(AUC 1.000", text)
    assert ("116 samples with 'kind'" in text) == ("-" in stray)


@pytest.mark.medium
def test_columns_that_predict_are_one_line_and_the_depth_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The class decides the depth alone, and twelve columns have it nearly always."""
    rng = np.random.default_rng(0)
    kinds: list[object] = [f"c{k % 2}" for k in range(120)]
    columns: dict[str, list[object]] = {
        f"column{n}": [f"v{k % 2 if rng.random() < 0.98 else 1 - k % 2}" for k in range(120)]
        for n in range(12)
    }
    args = write_study(tmp_path, kind=kinds, **columns)
    header, *rows = (tmp_path / "table.tsv").read_text().splitlines()
    rows = [
        "\t".join(
            [
                name,
                *(
                    str(rng.binomial(int(count), (0.02, 1)[k % 2]) + (number == 0))
                    for k, count in enumerate(counts)
                ),
            ]
        )
        for number, (name, *counts) in enumerate(row.split("\t") for row in rows)
    ]
    (tmp_path / "table.tsv").write_text("\n".join([header, *rows]) + "\n")
    given = ("--metadata-column", "kind", "--classifier", "--members", "kernel")
    assert aam("train", *args, *given, "--output-dir", tmp_path / "run") == 0
    printed = capsys.readouterr().err
    warnings = [
        line
        for line in printed.splitlines()
        if "warning" in line and re.search(r"predicts? the target", line)
    ]
    scores = json.loads((tmp_path / "run/scores.json").read_text())
    assert len(warnings) == 2
    assert warnings[0].startswith("warning: The sequencing depth alone predicts the target")
    number = sum(not one["other_form"] for one in scores["confounders"]) - 1
    assert number > 5
    assert f"{number} metadata columns each predict the target" in warnings[1]
    assert f"and {number - 5} more" in warnings[1]
    # Communities of the classes are alike: of tables of equal depth nothing is learnt.
    assert "On tables of equal depth (" in warnings[0] and "better than the baseline" in warnings[0]
    assert scores["confounders"][0]["column"] == "sequencing depth"
    equal = scores["equal_depth"]
    assert equal["value"] < 0.75 < 0.9 < equal["plain"] and equal["samples"] >= 114
    assert "On tables of equal depth" in (tmp_path / "run/report.html").read_text()
    assert aam("inspect", args[1], *args[2:], *given[:3]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert "on the same splits (AUC): 'sequencing depth'" in listed


@pytest.mark.medium
def test_a_score_at_equal_depth_is_given_beside_the_plain_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*write_study(tmp_path), "--metadata-column", "weight", "--members", "forest"]
    assert aam("train", *args, "--equal-depth", "--output-dir", tmp_path / "run") == 0
    scores = json.loads((tmp_path / "run/scores.json").read_text())
    equal = scores["equal_depth"]
    assert equal["depth"] <= 5000 and not equal["confounder"]
    assert equal["plain"] == pytest.approx(
        scores["models"]["ensemble"]["metrics"]["r2"]["value"], abs=0.1
    )
    assert f"{equal['sentence']}." in capsys.readouterr().err
    assert f"on all reads of these samples {equal['plain']:.3f}" in equal["sentence"]


@pytest.mark.medium
def test_a_training_whose_scores_nobody_reads_has_its_report(tmp_path: Path) -> None:
    args = [*map(str, write_study(tmp_path)), "--metadata-column", "weight", "--members", "kernel"]
    program = [sys.executable, "-m", "aam", "train", *args, "--output-dir", str(tmp_path / "run")]
    # A pipe without reader, as of `| true`.
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        subprocess.run(program, stdout=reader.stdin, stderr=subprocess.DEVNULL, check=False)
    for name in ("report.html", "scores.json", "predictions.tsv", "importance.tsv", "run.json"):
        assert (tmp_path / "run" / name).is_file()
    assert "finished" in (tmp_path / "run/run.json").read_text()


def test_the_verdict_is_the_last_thing_that_is_printed(study_dir: Path, tmp_path: Path) -> None:
    """In a few words, with its figures and the next command, in a log of results as well."""
    data = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    line = [sys.executable, "-m", "aam.cli", "train", *data, "--members", "kernel"]
    line += ["--repeats", "1", "--group-column", "subject"]
    for column, next_command in (("ph", "aam evaluate --model"), ("depth", "aam inspect")):
        run = tmp_path / column
        words = [*line, "--metadata-column", column, "--output-dir", run]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True)
        verdict = json.loads((run / "scores.json").read_text())["verdict"]
        assert len(verdict["headline"].split()) <= 10
        for text in (done.stdout, done.stderr.replace("warning: ", "")):
            printed, following = text.splitlines()[-2:]
            assert printed == f"{verdict['headline']}. {verdict['sentence']}"
            assert next_command in following
    # Where both streams are one file, it stands there once.
    with (tmp_path / "log").open("w") as log:
        words = [*line, "--metadata-column", "ph", "--output-dir", tmp_path / "again"]
        subprocess.run([*map(str, words)], stdout=log, stderr=log, check=True)
    verdict = json.loads((tmp_path / "again/scores.json").read_text())["verdict"]
    assert (tmp_path / "log").read_text().count(verdict["sentence"]) == 1
