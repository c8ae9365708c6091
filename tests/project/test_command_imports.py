"""Libraries and packages that a command may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from aam.cli import main
status = main(sys.argv[1:])
print(json.dumps([status, sorted(sys.modules)]))
"""

LOAD = """
import json, sys
import aam
assert aam.load(sys.argv[1]).predict(sys.argv[2])["predicted"].notna().all()
print(json.dumps([0, sorted(sys.modules)]))
"""


def imported(*arguments: object, program: str = PROGRAM) -> set[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status == 0, done.stderr
    return set(modules)


@pytest.mark.medium
def test_a_kernel_and_a_forest_train_and_predict_without_pytorch(
    study_dir: Path, tmp_path: Path
) -> None:
    run, table = tmp_path / "run", ("--table", study_dir / "table.biom")
    target = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph", "--folds", 2)
    for line in (
        ("train", *table, *target, "--members", "kernel", "forest", "--output-dir", run),
        ("predict", *table, "--model", run, "--output", tmp_path / "p.tsv"),
        ("importance", *table, "--model", run, "--output", tmp_path / "i.tsv"),
        ("report", "--run-dir", run),
    ):
        assert "torch" not in imported(*line), line
    assert "torch" not in imported(run, table[1], program=LOAD)


@pytest.mark.medium
def test_a_study_is_inspected_without_pytorch_and_scikit_bio(study_dir: Path) -> None:
    metadata, tree = study_dir / "metadata.tsv", study_dir / "tree.nwk"
    modules = imported("inspect", study_dir / "table.biom", "--metadata", metadata, "--tree", tree)
    assert not {"skbio", "torch"} & modules
