"""Options, split and inputs of a resumed run, which are those of before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aam.contract.errors import DataError, UsageError
from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate, write_study
from tests.support.commands import aam
from tests.support.resumed_runs import STOPPED, USR1, arguments_of, part


@pytest.fixture(scope="module")
def other_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    options = Example(
        output_dir=folder, samples=36, asvs=90, length=60, richness=25, depth=900, subjects=12,
        seed=8,
    )  # fmt: skip
    write_study(simulate(options), options)
    return folder


def test_a_resumed_run_has_the_options_and_the_split_of_before(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments_of(study_dir, "regression", tmp_path)
    assert part(line, (3, USR1)) == STOPPED
    different = ("--group-column subject", "--penalty 0.3", "--dropout 0.5", "--count-penalty 1.0")
    for option in map(str.split, different):
        assert aam(*line, *option) == UsageError.status
        assert f"has different options: {' '.join(option)} (was " in capsys.readouterr().err

    # A split that another version of this program might have made: two samples change sides.
    path = tmp_path / "splits.tsv"
    made = path.read_text().splitlines()
    first, second = (next(k for k, row in enumerate(made) if f"\t{side}\t" in row)
                     for side in ("train", "validation"))  # fmt: skip
    swapped = list(made)
    for here, there in ((first, second), (second, first)):
        swapped[here] = "\t".join([made[there].split("\t")[0], *made[here].split("\t")[1:]])
    path.write_text("\n".join(swapped) + "\n")
    free = ("--num-workers", "1", "--checkpoint-every-n-steps", "2", "--max-memory-gb", "4")
    assert part([*line, *free]) == 0
    assert sorted(path.read_text().splitlines()) == sorted(swapped) != sorted(made)


def test_a_resumed_run_has_the_input_of_before(
    study_dir: Path, other_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments_of(study_dir, "pretraining", tmp_path / "run")
    assert part(line, (5, USR1)) == STOPPED
    assert aam(*arguments_of(other_study, "pretraining", tmp_path / "run")) == DataError.status
    printed = capsys.readouterr().err
    assert f"has different input files: --table '{other_study / 'table.biom'}', SHA-256 " in printed
    assert "--pretrained-encoder" in printed
    shutil.copytree(study_dir, tmp_path / "copy")
    assert part(arguments_of(tmp_path / "copy", "pretraining", tmp_path / "run")) == 0
