"""Images in the image folder: a SIF against its record, damaged records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aam.contract.errors import ConfigurationError, MissingInput
from launcher import cli, config
from launcher.engines.sif import record_of
from launcher.images import index, inventory, lock
from launcher.plan.inputs import BuiltImage
from tests.launcher.test_sif_files import sif


def found(folder: Path) -> BuiltImage:
    flags = {"--image-dir": str(folder)}
    settings = config.read(flags, {"HOME": "/nonexistent"}, Path("/"))
    (only,) = inventory.built(settings, config.catalog(settings))
    return only


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A SIF with its record."""
    path = sif(tmp_path / "cpu.sif")
    index.write(tmp_path, "cpu", "sif", record_of(path))
    return path


def test_a_recorded_sif_has_its_digest(place: Path) -> None:
    image = found(place.parent)
    assert image.mismatch is None
    assert image.digest == f"sha256:{record_of(place)['sha256']}"


def test_a_sif_that_changed_at_the_same_size_is_not_used_under_its_old_digest(place: Path) -> None:
    """The record of a run, which takes this digest, states none that is out of date."""
    before = place.stat()
    content = place.read_bytes()
    place.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert place.stat().st_size == before.st_size
    image = found(place.parent)
    assert image.mismatch is not None
    assert "written after it was recorded" in image.mismatch[0]
    assert not str(image.digest).startswith("sha256:")
    with pytest.raises(MissingInput, match="another one than was recorded"):
        lock.record_copy("cpu", place.parent)
    place.write_bytes(content)  # the recorded bytes, copied again
    lock.record_copy("cpu", place.parent)
    assert found(place.parent).mismatch is None


def test_a_record_without_a_time_of_change_is_completed_by_lock(place: Path) -> None:
    held = {k: v for k, v in record_of(place).items() if k != "mtime_ns"}
    index.write(place.parent, "cpu", "sif", {**held, "engine": "apptainer 1.4"})
    doubt = found(place.parent).mismatch
    assert doubt is not None
    assert "aam-launch images lock cpu" in doubt[1]
    lock.record_copy("cpu", place.parent)
    assert found(place.parent).mismatch is None
    assert index.read(place.parent)["cpu"]["sif"]["engine"] == "apptainer 1.4"


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"cpu": ' * 50_000, "{", "[]", '{"cpu": 3}', '{"cpu": {"sif": 3}}', "\0",
     '{"cpu": {"sif": {"built": "x"}}}', '{"cpu": {"sif": {"verified": 3}}}',
     '{"cpu": {"sif": {"sha256": 3}}}', '{"cpu": {"podman": {"reference": 1, "labels": 2}}}',
     '{"cpu": {"podman": {"reference": "a\\u0000b"}}}'],
)  # fmt: skip
def test_a_damaged_record_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "images.json").write_text(text)
    sif(tmp_path / "cpu.sif")
    with pytest.raises(ConfigurationError, match=r"images\.json"):
        found(tmp_path)


@pytest.mark.parametrize("args", [("rm",), ("verify", "--no-test")])
def test_an_image_of_a_format_that_no_engine_runs(
    tmp_path: Path, args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    index.write(tmp_path, "cpu", "raft", {"reference": "aam:cpu"})
    action, *more = args
    assert cli.main([f"--image-dir={tmp_path}", "images", action, "cpu", *more]) == 69
    assert "No engine for images of this format: 'raft'" in capsys.readouterr().err
