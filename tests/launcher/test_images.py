"""Images in the image folder: a SIF against its record, damaged records."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aam.contract.errors import ConfigurationError, MissingInput
from launcher import cli, config
from launcher.engines.sif import record_of
from launcher.images import index, inventory, stored, verify
from launcher.plan.inputs import BuiltImage
from tests.launcher.test_sif_files import labelled, sif

ROOT = Path(__file__).parents[2]


def found(folder: Path) -> BuiltImage:
    flags = {"--image-dir": str(folder)}
    settings = config.read(flags, {"HOME": "/nonexistent"})
    (only,) = inventory.built(settings, config.catalog(settings))
    return only


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A SIF with its record."""
    path = labelled(tmp_path / "cpu.sif", {"org.aam.name": "cpu"})
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
    with pytest.raises(MissingInput, match="The SIF is another one"):
        stored.add("cpu", place, None, place.parent)
    place.write_bytes(content)  # the recorded bytes, copied again
    stored.add("cpu", place, None, place.parent)
    assert found(place.parent).mismatch is None


def test_a_record_without_a_time_of_change_is_completed_by_add(place: Path) -> None:
    held = {k: v for k, v in record_of(place).items() if k != "mtime_ns"}
    index.write(place.parent, "cpu", "sif", {**held, "engine": "apptainer 1.4"})
    doubt = found(place.parent).mismatch
    assert doubt is not None
    assert f"aam-launch images add cpu {place}" in doubt[1]
    stored.add("cpu", place, None, place.parent)
    assert found(place.parent).mismatch is None
    assert index.read(place.parent)["cpu"]["sif"]["engine"] == "apptainer 1.4"


def test_a_sif_from_elsewhere_is_added_by_its_label_and_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = labelled(tmp_path / "copied.sif", {"org.aam.name": "cpu", "org.aam.torch": "2.13.0"})
    digest = str(record_of(file)["sha256"])

    def add(*args: str) -> tuple[int, str]:
        status = cli.main([f"--image-dir={tmp_path / 'images'}", "images", "add", *args])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    for args, status, message in (
        (("cpu", str(file), "--sha256", "12"), 64, "Not a SHA-256"),
        (("cpu",), 64, "The name of an image and its file are needed"),
        (("cup", str(file)), 64, "did you mean 'cpu'?"),
        (("cpu", str(tmp_path / "none.sif")), 66, "No such file"),
        (("cpu", str(file), "--sha256", "0" * 64), 66, f"is sha256:{digest}, expected was"),
        (("rocm63", str(file)), 66, "is labelled cpu"),
        (("cpu", str(sif(tmp_path / "plain.sif"))), 66, "has no label org.aam.name"),
        (("cpu", __file__), 66, "Not a complete SIF"),
    ):
        assert add(*args)[0] == status, args
        assert message in add(*args)[1]
    images = tmp_path / "images"
    assert not list(images.glob("*.sif"))
    assert not (images / "images.json").exists()
    assert add("cpu", str(file), "--sha256", digest)[0] == 0
    assert found(images).digest == f"sha256:{digest}"
    assert found(images).labels["org.aam.torch"] == "2.13.0"
    assert index.read(images)["cpu"]["sif"]["from"] == str(file)
    assert file.exists()


@pytest.mark.parametrize(
    ("measured", "pin", "same"),
    [
        ("6.3.42131-fa1d09cbd", "6.3.42131", True),
        ("6.3.42134-a9a80e791", "6.3.42131", False),
        ("6.3.0", "6.3", True),
        ("6.4.1", "6.3", False),
        ("2.7.1+rocm6.3", "2.7.1", True),
        ("0.9.2", "0.9.2b", True),
        ("3.11.2", "3.11", True),
    ],
)
def test_pins_are_compared_as_far_as_they_are_known(measured: str, pin: str, same: bool) -> None:
    assert verify.agree(measured, pin) == same


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


@pytest.mark.medium
def test_without_a_network_everything_but_a_build_works(tmp_path: Path) -> None:
    """In a network namespace of its own, a host has no network."""
    isolated = [shutil.which("unshare") or "", "--net", "--map-root-user"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces")
    file = labelled(tmp_path / "copied.sif", {"org.aam.name": "cpu"})
    variables = {"PATH": "/usr/sbin:/sbin", "HOME": str(tmp_path), "AAM_IMAGE_DIR": str(tmp_path)}
    for args in (
        ["images", "add", "cpu", str(file)],
        ["images"],
        ["images", "verify", "cpu", "--no-test"],
        ["env", "cpu", str(tmp_path / "env"), "--dry-run"],
        ["explain", "simulate", "--output-dir", "out"],
    ):
        argv = [*isolated, sys.executable, "-m", "launcher.cli", *args]
        done = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, (args, done.stderr)
