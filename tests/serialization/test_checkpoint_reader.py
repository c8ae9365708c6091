"""Damaged and hostile checkpoints are refused in one sentence; none of them is used."""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aam.contract.errors import DataError
from aam.network.training import checkpoints
from aam.network.training.checkpoints import read_tensors, write_tensors
from tests.support.commands import train
from tests.support.hostile_checkpoints import Content, contents, files, states, write

DATA, NO_INPUT = 65, 66


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, with a small profile so that its checkpoints are small."""
    folder = tmp_path_factory.mktemp("run")
    assert train(study_dir, folder, "--profile-features", 16, "--patience", 3) == 0
    return folder


@pytest.fixture(scope="module")
def last(run: Path) -> Path:
    return run / "checkpoints/last.ckpt"


@pytest.fixture
def content(last: Path) -> Content:
    found: Content = read_tensors(last)
    return found


def same(found: object, expected: object) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert isinstance(found, list)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert type(found) is type(expected)
        assert found == expected


def test_values_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    base = torch.arange(24.0).view(4, 6)
    made = {
        "types": [base.to(t) for t in (torch.float64, torch.bfloat16, torch.int64, torch.bool)],
        "views": [base, base.T, base[1:3, ::2], base[2], base],
        "empty": [torch.zeros(0, 3), torch.zeros(0), torch.tensor(2.5)],
        "one": [torch.ones(1).as_strided((1,), (0,)), torch.ones(1, 1).expand(1, 1)],
        "plain": {"a": (1, -5, 2**40, 1 / 3, "ä", None, True, [], {}, ()), "b/c": [{}, -math.inf]},
    }
    write_tensors(tmp_path / "made", made)
    same(read_tensors(tmp_path / "made"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_flipped_byte_is_never_used(last: Path, content: Content, tmp_path: Path) -> None:
    found = load_file(last)  # any reader of safetensors reads the weights
    for name, value in content["state_dict"].items():
        assert torch.equal(found[f"state_dict/{name}"], value)
    good = last.read_bytes()
    rng = random.Random(3)
    path = tmp_path / "flipped.ckpt"
    header = int.from_bytes(good[:8], "little")
    places = [*range(8), *(8 + rng.randrange(header) for _ in range(60))]
    places += [8 + header + rng.randrange(len(good) - 8 - header) for _ in range(60)]
    for place in places:
        changed = bytearray(good)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(DataError, match="The checkpoint cannot be read"):
            checkpoints.read(path)


def refusals(
    files: dict[str, Path], use: Callable[[Path], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that each file gives status 65 and one sentence in bounded processor time."""
    for name, path in files.items():
        capsys.readouterr()
        begun = time.process_time()
        status = use(path)
        shown = capsys.readouterr().err
        assert status == DATA, (name, status, shown)
        [sentence] = [line for line in shown.splitlines() if line.startswith("aam: ")]
        assert sentence == shown.splitlines()[-1], name
        assert str(path) in sentence, (name, sentence)
        assert "Traceback" not in shown, (name, shown)
        assert time.process_time() - begun < 20, name


def resume(study_dir: Path, output: Path, path: Path) -> int:
    args = ("--profile-features", 16, "--patience", 3, "--epochs", 2)
    return train(study_dir, output, *args, "--resume-from", path)


def test_damaged_and_hostile_checkpoints_are_refused(
    study_dir: Path,
    last: Path,
    content: Content,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = write(tmp_path / "bad", itertools.chain(files(last.read_bytes()), contents(content)))
    assert len(bad) >= 50
    refusals(bad, lambda path: resume(study_dir, tmp_path / "out", path), capsys)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "called").exists()


def test_paths_that_are_not_regular_files_are_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "fifo", tmp_path / "folder", tmp_path / "none", Path("/dev/zero")):
        assert resume(study_dir, tmp_path / "out", path) == NO_INPUT
        assert f"'{path}" in capsys.readouterr().err


def test_a_file_larger_than_memory_is_refused(last: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.ckpt"
    with path.open("wb") as stream:  # a hole of 8 TiB
        stream.write(last.read_bytes())
        stream.truncate(1 << 43)
    with pytest.raises(DataError, match="it has 8.0 TiB, but .* of memory are free"):
        checkpoints.read(path)


@pytest.mark.medium
def test_a_state_that_cannot_be_resumed(
    study_dir: Path,
    run: Path,
    content: Content,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = write(tmp_path / "bad", states(content))

    refusals(bad, lambda path: resume(study_dir, tmp_path / "resumed", path), capsys)
    assert resume(study_dir, tmp_path / "resumed", run / "checkpoints/last.ckpt") == 0
