"""Small simulated studies, made once a session and shared by the tests that train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aam.options.commands import Simulate
from aam.options.groups import PhylogenyOptions, TableOptions
from aam.study.simulate import simulate
from aam.study.simulated_files import write_study
from aam.study.study import Study, load_study

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def study_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with table.biom, tree.nwk and metadata.tsv of 36 samples and 90 ASVs of 60 nt."""
    folder = tmp_path_factory.mktemp("study")
    options = Simulate(
        output_dir=folder,
        samples=36,
        asvs=90,
        length=60,
        richness=25,
        depth=900,
        sites=3,
        subjects=12,
        seed=7,
    )
    write_study(simulate(options), options)
    return folder


@pytest.fixture(scope="session")
def study(study_dir: Path) -> Study:
    """The simulated study with its tree."""
    return load_study(
        TableOptions(table=study_dir / "table.biom"),
        PhylogenyOptions(tree=study_dir / "tree.nwk"),
    )
