"""Image folders of tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import USER, Engines
from tests.support.images import workshop


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Engines]:
    """Engines with an empty image folder of their own, which the test user may write."""
    engines = workshop()
    folder = Path("/var/tmp") / f"aam-images-{os.getpid()}"
    folder.mkdir()
    shutil.chown(folder, USER, USER)
    try:
        yield Engines(engines.folder, engines.state, folder)
    finally:
        shutil.rmtree(folder)
