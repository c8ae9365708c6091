"""A study to spoil, the check of a refusal, and runs that several test files of commands read."""

from __future__ import annotations

from pathlib import Path

import biom
import pytest

from tests.support.bench import METADATA, TABLE, TREE, Bench, Refused, check_refusal
from tests.support.commands import pretrain, train


@pytest.fixture
def bench(study_dir: Path, tmp_path: Path) -> Bench:
    counts = biom.load_table(str(study_dir / "table.biom")).to_dataframe(dense=True).astype(int)
    lines = (study_dir / "metadata.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    newick = (study_dir / "tree.nwk").read_text()
    return Bench(study_dir, tmp_path, counts, rows, newick)


@pytest.fixture(scope="session")
def trained(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert train(study_dir, folder, "--epochs", 2) == 0
    return folder


@pytest.fixture(scope="session")
def pretrained(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    assert pretrain(study_dir, folder, "--tree", study_dir / "tree.nwk") == 0
    return folder


@pytest.fixture
def refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Check a refusal, and that there is no run folder."""

    def check(status: int, expected: int, *phrases: str) -> str:
        sentence = check_refusal(capsys, status, expected, *phrases)
        assert not bench.out.exists()
        return sentence

    return check


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small study."""
    (tmp_path / "table.tsv").write_text(TABLE)
    (tmp_path / "tree.nwk").write_text(TREE)
    (tmp_path / "metadata.tsv").write_text(METADATA)
    return tmp_path
