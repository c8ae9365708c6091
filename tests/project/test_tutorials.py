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
BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "reports"),
    [
        ("tutorial_infant_age.md", ["runs/ph"]),
        ("tutorial_several_studies.md", ["runs/disease", "runs/d"]),
    ],
)
def test_the_commands_of_a_tutorial_print_what_it_shows(
    page: str,
    reports: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # The transformer of step 5 and the real study after it take minutes.
    text = (ROOT / "docs" / page).read_text().partition("\n## 5. ")[0]
    printed = ""
    for language, block in BLOCK.findall(text):
        if language == "bash":
            printed = ""
            for line in block.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert program == "aam"
                assert aam(*arguments) == 0
                streams = capsys.readouterr()
                printed += " ".join(f"{streams.out} {streams.err} ".split())
            continue
        shown = " ".join(block.split()) if "warning" in block else block
        for line in filter(None, shown.splitlines()):
            for part in filter(None, (part.strip() for part in line.split("..."))):
                assert without_figures(part) in without_figures(printed)
    for report in reports:
        assert (tmp_path / report / "report.html").is_file()
    scores = json.loads((tmp_path / reports[0] / "scores.json").read_text())
    assert scores["verdict"]["outcome"] == "better"


def without_figures(text: str) -> str:
    """Leave out numbers, which differ between processors and with partitions, signs and blanks."""
    return re.sub(r"[-\d.,\s]+", " ", text).strip()


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
