"""A simulated study with planted ASVs."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate, write_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose column `response` is a sum of the features of 20 planted ASVs, with noise."""
    folder = tmp_path_factory.mktemp("study")
    sizes = {"samples": 120, "asvs": 300, "length": 60, "richness": 60, "depth": 3000}
    options = Example(output_dir=folder, **sizes, planted=20, seed=1)
    write_study(simulate(options), options)
    return folder
