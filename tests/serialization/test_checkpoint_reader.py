"""Damaged and hostile checkpoints are refused in one sentence; none of them is used."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aam.contract.errors import DataError
from aam.serialization import archive
from aam.training.run_files import checkpoints
from tests.support.commands import aam, train
from tests.support.hostile_checkpoints import Content, archives, contents, saved, states, write

DATA, NO_INPUT, SOFTWARE = 65, 66, 70


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
    found: Content = archive.read(last)
    return found


def same(found: object, expected: object) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict) and isinstance(found, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


def test_an_archive_is_read_as_torch_reads_it(last: Path, tmp_path: Path) -> None:
    same(archive.read(last), torch.load(last, weights_only=True))
    base = torch.arange(24.0).view(4, 6)
    made = {
        "types": [base.to(t) for t in (torch.float64, torch.bfloat16, torch.int64, torch.bool)],
        "views": [base, base.T, base[1:3, ::2]],
        "empty": [torch.zeros(0, 3), torch.tensor(2.5)],
        "plain": {"a": (1, -5, 2**40, 1.5, "ä", None, True, [], {}, ()), "b": [{}, float("inf")]},
    }
    torch.save(made, tmp_path / "made.pt")
    same(archive.read(tmp_path / "made.pt"), torch.load(tmp_path / "made.pt", weights_only=True))


def test_a_flipped_byte_is_never_used(last: Path, tmp_path: Path) -> None:
    """Bytes of members differ from their CRC; others are refused, or were no content."""
    good, expected = last.read_bytes(), archive.read(last)
    with zipfile.ZipFile(last) as opened:
        used = [m for m in opened.infolist() if "/data" in m.filename and m.file_size]
    rng = random.Random(3)
    path = tmp_path / "flipped.ckpt"

    def flip(place: int) -> None:
        changed = bytearray(good)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)

    for member in rng.sample(used, 25):
        # The local header has 30 bytes, the name and a padding.
        name = member.filename.encode()
        begin = good.index(name, member.header_offset) + len(name)
        begin += int.from_bytes(good[member.header_offset + 28 :][:2], "little")
        flip(begin + rng.randrange(member.file_size))
        with pytest.raises(DataError, match="Bad CRC-32|pickle"):
            checkpoints.read(path)
    refused = 0
    for place in (*rng.sample(range(len(good)), 40), *range(len(good) - 80, len(good))):
        flip(place)
        try:
            found = archive.read(path)
        except DataError:
            refused += 1
        else:
            same(found, expected)
    assert refused > 50


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


def test_damaged_and_hostile_checkpoints_are_refused(
    study_dir: Path,
    last: Path,
    content: Content,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    made = ((name, saved(changed)) for name, changed in contents(content))
    files = write(tmp_path / "bad", itertools.chain(archives(last.read_bytes()), made))
    assert len(files) >= 60
    args = ("--table", study_dir / "table.biom", "--output", tmp_path / "p.tsv", "--device", "cpu")

    def predict(path: Path) -> int:
        return aam("predict", *args, "--model", path)

    refusals(files, predict, capsys)
    assert not (tmp_path / "p.tsv").exists()
    assert not (tmp_path / "called").exists()
    assert predict(last) == 0


def test_paths_that_are_not_regular_files_are_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    args = ("--table", study_dir / "table.biom", "--output-dir", tmp_path / "out")
    for path in (tmp_path / "fifo", tmp_path / "folder", tmp_path / "none", Path("/dev/zero")):
        assert aam("embed", *args, "--model", path) == NO_INPUT
        assert f"'{path}" in capsys.readouterr().err


def test_a_file_larger_than_memory_is_refused(last: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.ckpt"
    with path.open("wb") as stream:  # a hole of 8 TiB in front, which a zip file may have
        stream.seek(1 << 43)
        stream.write(last.read_bytes())
    with pytest.raises(DataError, match="it has 8.0 TiB, and .* of memory are free"):
        checkpoints.read(path)


def test_predictions_that_are_not_finite(
    study_dir: Path, content: Content, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finite weights that overflow: no table of empty cells, whatever is written."""
    table = ("--table", study_dir / "table.biom", "--device", "cpu", "--model", tmp_path / "m.ckpt")
    content["state_dict"]["network.encoder.samples.out.weight"].fill_(3e38)
    torch.save(content, tmp_path / "m.ckpt")
    assert aam("predict", *table, "--output", tmp_path / "p.tsv") == SOFTWARE
    assert "embeddings are not finite numbers: samples 36 (" in capsys.readouterr().err
    assert aam("embed", *table, "--output-dir", tmp_path / "e") == SOFTWARE
    assert not (tmp_path / "p.tsv").exists()
    assert not (tmp_path / "e").exists()


def test_a_state_that_cannot_be_resumed(
    study_dir: Path,
    run: Path,
    content: Content,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = ((name, saved(changed)) for name, changed in states(content))
    files = write(tmp_path / "bad", made)

    def resume(path: Path) -> int:
        args = ("--profile-features", 16, "--patience", 3, "--epochs", 2)
        return train(study_dir, tmp_path / "resumed", *args, "--resume-from", path)

    refusals(files, resume, capsys)
    assert resume(run / "checkpoints/last.ckpt") == 0


def test_folds_of_different_runs_are_refused(
    study_dir: Path,
    last: Path,
    content: Content,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for fold in ("fold-1", "fold-2"):
        (tmp_path / "run" / fold / "checkpoints").mkdir(parents=True)
        shutil.copy(last, tmp_path / "run" / fold / "checkpoints/best.ckpt")
    args = ("--table", study_dir / "table.biom", "--output", tmp_path / "p.tsv", "--device", "cpu")
    assert aam("predict", *args, "--model", tmp_path / "run") == 0
    content["aam"]["target"]["column"] = "depth"
    torch.save(content, tmp_path / "run/fold-2/checkpoints/best.ckpt")
    assert aam("predict", *args, "--overwrite", "--model", tmp_path / "run") == DATA
    assert "The folds are of different runs: '" in capsys.readouterr().err
