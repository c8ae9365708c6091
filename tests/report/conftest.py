"""Run folders with the files of a training, and the report of one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.report_pages import report
from tests.support.run_folders import make_run, make_study


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    study = make_study(folder / "study")
    for kind, folds in (("pretrain", 1), ("numbers", 1), ("classes", 3)):
        make_run(folder / kind, folder / "study", study, kind, folds)
    return folder


@pytest.fixture(scope="session")
def page(study_folder: Path) -> Callable[[str], str]:
    """Return the report of a run of `study_folder`, made once."""
    return cache(lambda kind: report(study_folder / kind))


@pytest.fixture
def run_folder(study_folder: Path, tmp_path: Path) -> Path:
    """Return a numeric run that a test may change; its inputs stay where they are."""
    return Path(shutil.copytree(study_folder / "numbers", tmp_path / "numbers"))
