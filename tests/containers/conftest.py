"""Image folders of tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.engines import USER, Engines, open_folder
from tests.support.images import workshop


@pytest.fixture
def alone() -> Iterator[Engines]:
    """Engines with an empty image folder of their own, which the test user may write."""
    engines = workshop()
    with open_folder("images") as folder:
        shutil.chown(folder, USER, USER)
        yield Engines(engines.folder, engines.state, folder)
