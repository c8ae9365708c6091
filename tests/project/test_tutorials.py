"""The commands of a tutorial run as they are, from top to bottom, and print what it shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import aam

PAGE = Path(__file__).parents[2] / "docs" / "tutorial_several_studies.md"
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
