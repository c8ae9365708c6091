"""The commands of a tutorial, and of the demo, run as they are and print what is promised."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import aam

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial_several_studies.md"
BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_tutorial_of_several_studies_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for language, block in BLOCK.findall(PAGE.read_text()):
        if language == "bash":
            program, *arguments = shlex.split(block.replace("\\\n", " "))
            assert program == "aam"
            assert aam(*arguments) == 0
            streams = capsys.readouterr()
            printed = " ".join(f"{streams.out} {streams.err}".split())
            continue
        for line in filter(None, block.splitlines()):
            for part in filter(None, (part.strip() for part in line.split("..."))):
                assert without_figures(part) in without_figures(printed)
    scores = json.loads((tmp_path / "runs" / "disease" / "scores.json").read_text())
    assert scores["verdict"]["outcome"] == "better"
    assert (tmp_path / "runs" / "d" / "report.html").is_file()


def without_figures(text: str) -> str:
    """Leave out numbers, whose last digits differ between processors, and blanks."""
    return re.sub(r"[\d.,\s]+", " ", text).strip()


@pytest.mark.nightly  # `.ci/run` runs `make demo` at each change
def test_the_demo_names_its_report_early_and_lists_the_planted_asvs(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "demo.sh", tmp_path / "demo"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    report = f"{tmp_path / 'demo' / 'response' / 'report.html'}\n"
    assert Path(report.strip()).is_file()
    assert done.stdout.index(report) < done.stdout.index("== Predict")
    assert "3 of 3 are among the" in done.stdout
    assert (tmp_path / "demo" / "pretrain" / "model").is_dir()
