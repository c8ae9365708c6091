"""Runs that several test files of training read, each made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import pretrain, train


@pytest.fixture(scope="session")
def tree(study_dir: Path) -> tuple[str, Path]:
    return "--tree", study_dir / "tree.nwk"


@pytest.fixture(scope="session")
def encoder(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    assert pretrain(study_dir, folder, *tree, "--epochs", 2) == 0
    return folder


@pytest.fixture(scope="session")
def numbers(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    args = ("--epochs", 2, "--lr", 0.01, "--group-column", "subject")
    assert train(study_dir, folder, *tree, *args) == 0
    return folder


@pytest.fixture(scope="session")
def classes(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    args = ("--classifier", "--class-weights", "balanced")
    assert train(study_dir, folder, *args, column="site") == 0
    return folder
