"""The cluster of the tests of jobs, and two runs without Slurm to compare theirs with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_cluster import (
    EPOCHS,
    LONG,
    Cluster,
    exclusive,
    start,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/var/tmp") / f"aam-slurm-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        with exclusive():
            yield start(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Path:
    """A run without Slurm, in the same image."""
    words = cluster.pretraining("alone", EPOCHS)
    done = cluster.launch("--runtime", "apptainer", "--image", "cpu", *words)
    assert done.returncode == 0, done.stderr
    return cluster.folder / "alone"


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> Path:
    """A longer run that nothing interrupts."""
    done = cluster.launch(
        "--runtime", "apptainer", "--image", "cpu", *cluster.pretraining("whole", LONG)
    )
    assert done.returncode == 0, done.stderr
    return cluster.folder / "whole"
