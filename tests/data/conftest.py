"""Stores that several test files read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores import make


@pytest.fixture(scope="session")
def store(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated study, prepared."""
    folder = tmp_path_factory.mktemp("stores") / "study.aam"
    given = ("--tree", study_dir / "tree.nwk", "--metadata", study_dir / "metadata.tsv")
    assert make(study_dir, folder, *given) == 0
    return folder
