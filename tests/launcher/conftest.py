"""Folders with the input of a command or a job, and check reports with and without a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.contract.check_report import CheckReport
from tests.support import faulty_backends as emulated
from tests.support.check_reports import report
from tests.support.faulty_backends import faulty
from tests.support.submissions import SITE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.biom").touch()
    return tmp_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "table.biom").write_text("x")
    (tmp_path / "tree.nwk").write_text("(a,b);")
    (tmp_path / "site.yaml").write_text(SITE)
    return tmp_path


@pytest.fixture(scope="session")
def correct_report() -> CheckReport:
    return report()


@pytest.fixture(scope="session")
def faulty_report() -> CheckReport:
    return report(faulty(emulated.aotriton_08), faulty(emulated.first_mask, "flash"))
