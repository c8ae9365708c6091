"""Folders with the input of a command or a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.submissions import SITE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.biom").touch()
    return tmp_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "table.biom").write_text("x")
    (tmp_path / "tree.nwk").write_text("(a,b);")
    (tmp_path / "m.tsv").write_text("sample-id\tage\nS1\t3\n")
    (tmp_path / "site.yaml").write_text(SITE)
    return tmp_path
