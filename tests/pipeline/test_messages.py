"""Messages of a training: on a terminal of 80 columns, once, and after all is written."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

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
    assert "Classes of 'kind' of a single group: 1 (odd), 3 samples" in text
    assert "with fewer groups than folds: 1 (rare)" in text


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
