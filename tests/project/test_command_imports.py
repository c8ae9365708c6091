"""Libraries and packages that a command may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import aam

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
    """Run a program, and return the modules that it has imported."""
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status == 0, done.stderr
    return set(modules)


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "estimators"
    data = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    assert aam("train", *data, "--metadata-column", "ph", "--folds", 2, "--output-dir", folder) == 0
    return folder


@pytest.mark.medium
def test_a_kernel_and_a_forest_predict_without_pytorch(
    run: Path, study_dir: Path, tmp_path: Path
) -> None:
    table = ("--table", study_dir / "table.biom", "--model", run)
    for name, output in (("predict", "p.tsv"), ("importance", "i.tsv")):
        modules = imported(name, *table, "--output", tmp_path / output)
        assert "torch" not in modules
    assert "torch" not in imported("report", "--run-dir", run)
    arguments = run, study_dir / "table.biom"
    assert "torch" not in imported(*arguments, program=LOAD)


@pytest.mark.medium
def test_a_study_is_inspected_without_pytorch_and_scikit_bio(study_dir: Path) -> None:
    metadata, tree = study_dir / "metadata.tsv", study_dir / "tree.nwk"
    modules = imported("inspect", study_dir / "table.biom", "--metadata", metadata, "--tree", tree)
    assert not {"skbio", "torch"} & modules


@pytest.mark.medium
def test_a_kernel_and_a_forest_train_without_pytorch(study_dir: Path, tmp_path: Path) -> None:
    data = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    given = (*data, "--metadata-column", "ph", "--folds", 2, "--members", "kernel", "forest")
    assert "torch" not in imported("train", *given, "--output-dir", tmp_path / "run")
