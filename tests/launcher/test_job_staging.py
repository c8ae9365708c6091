"""Staging of inputs: verified copies, and every reason to leave the inputs where they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aam.contract.errors import MissingInput
from launcher.slurm.staging import IN_MEMORY, checksums, file_system, stage


@pytest.fixture
def inputs(tmp_path: Path) -> dict[Path, Path]:
    """Two files with names that need quoting, and their copies."""
    if file_system(tmp_path) in IN_MEMORY:
        pytest.skip("temporary files are in memory here, and nothing is staged to memory")
    (tmp_path / "staged").mkdir()
    paths = [tmp_path / "a b", tmp_path / "c,d"]
    for path in paths:
        path.write_text(path.name)
    return {path: tmp_path / "staged" / str(number) for number, path in enumerate(paths)}


def test_files_are_copied_and_folders_are_not(inputs: dict[Path, Path], tmp_path: Path) -> None:
    digests = checksums([*inputs, tmp_path / "staged"], 1)
    assert set(digests) == set(inputs)
    assert stage(digests, inputs)
    assert {copy.read_text() for copy in inputs.values()} == {"a b", "c,d"}


def test_a_correct_copy_is_kept_and_a_damaged_one_replaced(inputs: dict[Path, Path]) -> None:
    digests = checksums([*inputs], 1)
    stage(digests, inputs)
    first, second = inputs.values()
    inode = first.stat().st_ino
    second.write_text("damaged")
    stage(digests, inputs)
    assert first.stat().st_ino == inode
    assert second.read_text() == "c,d"


def test_a_source_that_changed_is_refused(inputs: dict[Path, Path]) -> None:
    digests = checksums([*inputs], 1)
    source, copy = list(inputs.items())[1]
    source.write_text("c,d and more")
    with pytest.raises(MissingInput, match="changed while it was staged") as caught:
        stage(digests, inputs)
    assert str(source) in str(caught.value)
    assert not copy.exists()
    assert source.read_text() == "c,d and more"


def test_inputs_above_the_limit_stay(
    inputs: dict[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert checksums([*inputs], 1e-9) == {}
    assert "Inputs of 6 bytes stay where they are" in capsys.readouterr().err


def test_inputs_that_the_disk_cannot_hold_stay(
    inputs: dict[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    large = next(iter(inputs))
    with large.open("wb") as stream:
        stream.truncate(shutil.disk_usage(large.parent).free + (1 << 34))  # sparse
    assert not stage({large: "0" * 64}, inputs)
    assert "bytes free and the inputs take" in capsys.readouterr().err
    assert not inputs[large].exists()
