"""Results and report are written before anything of them is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.test_repeated_samples import write_study


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
