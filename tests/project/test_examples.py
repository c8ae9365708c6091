"""Examples in docstrings: each gives the output that stands below it."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("aam/**/*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert attempted
    assert not failed
