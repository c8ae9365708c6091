"""Engines, folders and a study for tests that start containers with the launcher."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import USER, Engines, open_folder, start

ENGINES = [("apptainer", USER), ("podman", USER), ("docker", USER)]
AT_NIGHT = [("singularity", USER), ("podman", "root")]
"""The same programs under another name, and with other rights."""
each = pytest.mark.parametrize(
    ("engine", "user"),
    [
        *(pytest.param(*pair, id="-".join(pair)) for pair in ENGINES),
        *(pytest.param(*pair, id="-".join(pair), marks=pytest.mark.nightly) for pair in AT_NIGHT),
    ],
)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with open_folder("test") as folder:
        yield start(folder)


@pytest.fixture(autouse=True)
def docker_where_there_is_one(request: pytest.FixtureRequest, engines: Engines) -> None:
    call = getattr(request.node, "callspec", None)
    if call and call.params.get("engine") == "docker" and not engines.has_docker():
        pytest.skip("no Docker daemon answers")


@pytest.fixture
def place(engines: Engines) -> Iterator[Path]:
    """A folder of the test user's own, outside of /tmp and of any home."""
    folder = engines.folder / "work"
    folder.mkdir()
    shutil.chown(folder, USER)
    yield folder
    shutil.rmtree(folder)


def study(place: Path, name: str = "table.biom") -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a table")
    for each_path in (path.parent, path):
        shutil.chown(each_path, USER)
    return path
