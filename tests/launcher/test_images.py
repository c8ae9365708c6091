"""Images in the image folder: a SIF against its record, copies, pulls, damaged records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aam.contract.version import __version__
from launcher import cli, config
from launcher.commands.images import agree
from launcher.engines.sif import record_of, sif_id
from launcher.images import index
from launcher.plan.inputs import BuiltImage
from tests.support.launches import RUN, engine, launch, sif

ROOT = Path(__file__).parents[2]

APPTAINER = """#!/bin/sh
case $1 in
--version) echo apptainer version 1.4.5 ;;
exec) for word; do case $word in *.sif|/*cpu.sif*) sif=$word ;; esac; done; tail -n 1 "$sif" ;;
build) exit 3 ;;
pull) cp "{source}" "$3"; echo "$4" >> "{folder}/pulled" ;;
esac
"""
"""A program that prints the last line of a SIF as its labels, and pulls a copy of a file."""


def found(folder: Path) -> BuiltImage:
    flags = {"--image-dir": str(folder)}
    settings = config.read(flags, {"HOME": "/nonexistent"})
    (only,) = index.built(settings, config.catalog(settings))
    return only


def labelled(path: Path, labels: dict[str, str]) -> Path:
    """Write a SIF that the stand-in for Apptainer finds labels in."""
    sif(path)
    with path.open("a") as stream:
        stream.write("\n" + json.dumps(labels) + "\n")
    return path


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with the stand-in, which pulls the file `published.sif` of this folder."""
    place = tmp_path / "bin/apptainer"
    place.parent.mkdir()
    place.write_text(APPTAINER.format(source=tmp_path / "published.sif", folder=tmp_path))
    place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.parent}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = labelled(tmp_path / "cpu.sif", {"org.aam.name": "cpu"})
    index.write(tmp_path, "cpu", "sif", record_of(path))
    return path


def test_a_sif_that_changed_at_the_same_size_is_not_used_under_its_old_digest(
    place: Path, apptainer: Path
) -> None:
    """The record of a run, which takes this digest, states none that is out of date."""
    before = place.stat()
    content = place.read_bytes()
    place.write_bytes(content.replace(b"x", b"y", 1))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert place.stat().st_size == before.st_size
    image = found(place.parent)
    assert image.mismatch is not None
    assert "written after it was recorded" in image.mismatch[0]
    assert f"aam-launch images build cpu --from {place}" in image.mismatch[1]
    assert not str(image.digest).startswith("sha256:")
    build = [f"--image-dir={place.parent}", "images", "build", "cpu", "--no-test"]
    assert cli.main([*build, "--from", str(place)]) == 0  # recorded again where it lies
    assert found(place.parent).mismatch is None
    assert place.read_bytes() == content.replace(b"x", b"y", 1)


def vast(folder: Path) -> Path:
    """Return a site whose images take more room to build than any disk has."""
    images = {name: {"room": [9e9, 9e9]} for name in ("cpu", "rocm63")}
    (folder / "vast.yaml").write_text(json.dumps({"images": images}))
    return folder / "vast.yaml"


def test_a_sif_from_elsewhere_is_taken_by_its_label_and_its_hash(
    apptainer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = labelled(apptainer / "copied.sif", {"org.aam.name": "cpu", "org.aam.torch": "2.13.0"})
    digest, images = str(record_of(file).sha256), apptainer / "images"
    plain, archive = sif(apptainer / "plain.sif"), apptainer / "archive.tar"
    archive.touch()
    site = vast(apptainer)

    def build(*args: str) -> tuple[int, str]:
        status = cli.main(
            [f"--image-dir={images}", f"--site={site}", "images", "build", *args, "--no-test"]
        )
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    for args, status, message in (
        (("cpu", "--from", str(file), "--sha256", "12"), 64, "Not a SHA-256"),
        (("cpu", "--sha256", digest), 64, "--sha256 without --from"),
        (("cpu", "--from", str(apptainer / "none.sif")), 66, "No such file"),
        (("cpu", "--from", str(file), "--sha256", "0" * 64), 66, f"is sha256:{digest}, expected"),
        (("rocm63", "--from", str(file)), 73, "it is labelled cpu, not rocm63"),
        (("cpu", "--from", str(plain)), 73, "Not an image of this project"),
        (("cpu", "--from", str(archive)), 73, "The image was not built: `"),
    ):
        assert build(*args)[0] == status, args
        assert message in build(*args)[1]
    assert not list(images.glob("*.sif"))
    assert not (images / "images.json").exists()
    assert build("cpu", "--from", str(file), "--sha256", digest)[0] == 0
    assert found(images).digest == f"sha256:{digest}"
    assert found(images).labels["org.aam.torch"] == "2.13.0"
    assert index.read(images)["cpu"]["sif"].from_ == str(file)
    assert file.exists()


def test_a_published_image_is_pulled_by_its_tag_or_its_digest(
    apptainer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled(apptainer / "published.sif", {"org.aam.name": "cpu"})
    images = apptainer / "images"
    pull = [f"--image-dir={images}", f"--site={vast(apptainer)}", "images", "pull", "--registry"]
    pull += ["127.0.0.1:5000/aam"]
    digest = f"sha256:{'3f' * 32}"
    assert cli.main([*pull, "cpu", "--digest", "3f5d"]) == 64
    assert cli.main([*pull, "cpu", "rocm63", "--digest", digest]) == 64
    assert cli.main([*pull, "rocm63"]) == 73  # the registry gives another image
    assert not list(images.glob("*.sif"))
    assert cli.main([*pull, "cpu"]) == 0
    assert cli.main([*pull, "cpu", "--digest", digest]) == 0
    assert (apptainer / "pulled").read_text().splitlines()[1:] == [
        f"docker://127.0.0.1:5000/aam:cpu-v{__version__}", f"docker://127.0.0.1:5000/aam@{digest}",
    ]  # fmt: skip
    entry = index.read(images)["cpu"]["sif"]
    assert (entry.digest, entry.from_) == (digest, f"127.0.0.1:5000/aam@{digest}")
    assert found(images).mismatch is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--registry", "http://ghcr.io/owner/aam"), "Not an image in a registry: 'http://"),
        (("--registry", "docker://ghcr.io/owner/aam"), "Not an image in a registry"),
        (("--registry", "ghcr.io/owner/aam:cpu-v1"), "Not an image in a registry"),
        (("--registry", "ghcr.io/owner/aam@sha256:12"), "Not an image in a registry"),
        (("--registry", "--privileged"), "Not an image in a registry"),
        (
            ("--registry", "ghcr.io/owner/aam", "--digest", "sha256:3"),
            "'ghcr.io/owner/aam@sha256:3'",
        ),
    ],
)
def test_what_is_no_repository_or_digest_is_refused(
    apptainer: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    given = [f"{flag}={value}" for flag, value in zip(words[::2], words[1::2], strict=True)]
    assert cli.main([f"--image-dir={apptainer}", "images", "pull", "cpu", *given]) == 64
    assert sentence in capsys.readouterr().err
    assert not (apptainer / "pulled").exists()


def test_an_image_is_verified_by_its_own_test_and_by_a_launch_of_aam_check(
    place: Path, apptainer: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stand-in prints the labels in place of both; of another status the image is refused."""
    verify = [f"--image-dir={place.parent}", "images", "verify", "cpu", "--engine", "apptainer"]
    assert cli.main(verify) == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed.count('{"org.aam.name": "cpu"}') == 2
    assert "ok      cpu (sif) is what was recorded" in printed
    assert index.read(place.parent)["cpu"]["sif"].verified is not None
    program = apptainer / "bin/apptainer"
    for number, named in (("*smoke.py*", "its own test"), ("*check*", "`aam check`")):
        text = APPTAINER.replace("exec) ", f'exec) case "$*" in {number}) exit 9 ;; esac; ')
        program.write_text(text.format(source="", folder=apptainer))
        assert cli.main(verify) == 69
        assert f"{named} ended with status 9; see its output above" in capfd.readouterr().err


def test_the_provenance_of_a_published_image_is_verified_with_gh(
    place: Path, apptainer: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = {"registry": "ghcr.io/owner/aam", "source": "https://github.com/owner/q2-aam",
               "images": {"cpu": {"oci": f"sha256:{'3f' * 32}",
                                  "sif": f"sha256:{record_of(place).sha256}"}}}  # fmt: skip
    (apptainer / "published.json").write_text(json.dumps(release))
    monkeypatch.setattr(index, "PUBLISHED", apptainer / "published.json")
    verify = [f"--image-dir={place.parent}", "images", "verify", "cpu", "--no-test"]
    monkeypatch.setenv("PATH", str(apptainer / "bin"))
    assert cli.main(verify) == 0
    assert "the provenance is not checked, gh is not on PATH" in capfd.readouterr().out
    gh = apptainer / "bin/gh"
    gh.write_text('#!/bin/sh\ntest "$*" = "attestation verify '
                  f'{place} --repo owner/q2-aam"\n')  # fmt: skip
    gh.chmod(0o755)
    assert cli.main(verify) == 0
    assert "owner/q2-aam attests that its workflow built it" in capfd.readouterr().out
    gh.write_text("#!/bin/sh\necho no attestation >&2; exit 1\n")
    assert cli.main(verify) == 69
    assert "No provenance of the image" in capfd.readouterr().err
    release["images"] = {}  # an image of one's own has none
    (apptainer / "published.json").write_text(json.dumps(release))
    assert cli.main(verify) == 0


def test_an_engine_is_started_once_for_its_version(folder: Path) -> None:
    engine(folder, "apptainer", "apptainer version 1.4.5")
    index.write(folder, "cpu", "sif", record_of(sif(folder / "cpu.sif")))

    def known() -> str | None:
        printed = json.loads(
            launch(folder, "explain", "--json", *RUN, AAM_IMAGE_DIR=str(folder)).stdout
        )
        return str(printed["host"]["engines"][0]["version"])

    assert known() == "None"
    assert not (folder / "started").exists()  # explain starts nothing
    assert launch(folder, *RUN, AAM_IMAGE_DIR=str(folder)).returncode == 0
    assert launch(folder, *RUN, AAM_IMAGE_DIR=str(folder)).returncode == 0
    assert (folder / "started").read_text().split() == ["--version", "exec", "exec"]
    assert known() == "1.4.5"


def test_an_image_named_by_its_path_is_known_by_its_id(folder: Path) -> None:
    """The record has its id, so that a repeated run notices another build in the same place."""
    (folder / "apptainer").touch(mode=0o755)
    explained = []
    for name in (b"u" * 16, b"v" * 16):
        image = sif(folder / "own.sif", name=name)
        done = launch(folder, "explain", "--json", "--image", str(image), *RUN)
        explained.append(json.loads(done.stdout)["plan"]["digest"])
    assert explained == [f"sif:{'75' * 16}", f"sif:{'76' * 16}"]


def test_a_file_that_is_no_sif_is_refused(folder: Path) -> None:
    (folder / "apptainer").touch(mode=0o755)
    (folder / "short.sif").write_bytes(b"#!")
    assert sif_id(folder / "short.sif") is sif_id(folder / "absent.sif") is None
    done = launch(folder, "explain", "--image", str(folder / "short.sif"), *RUN)
    assert (done.returncode, "Not a complete SIF" in done.stderr) == (66, True), done.stderr


@pytest.mark.parametrize(
    ("measured", "pin", "same"),
    [
        ("6.3.42131-fa1d09cbd", "6.3.42131", True),
        ("6.3.0", "6.3", True),
        ("6.4.1", "6.3", False),
        ("0.9.2", "0.9.2b", True),
    ],
)
def test_pins_are_compared_as_far_as_they_are_known(measured: str, pin: str, same: bool) -> None:
    assert agree(measured, pin) == same


@pytest.mark.medium
def test_without_a_network_everything_but_a_build_works(tmp_path: Path) -> None:
    """In a network namespace of its own, a host has no network."""
    isolated = [shutil.which("unshare") or "", "--net", "--map-root-user"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces")
    index.write(tmp_path, "cpu", "sif", record_of(sif(tmp_path / "cpu.sif")))
    variables = {"PATH": "/usr/sbin:/sbin", "HOME": str(tmp_path), "AAM_IMAGE_DIR": str(tmp_path)}
    for args in (
        ["images"],
        ["images", "verify", "cpu", "--no-test"],
        ["explain", "example", "--output-dir", "out"],
    ):
        argv = [*isolated, sys.executable, "-m", "launcher.cli", *args]
        done = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, (args, done.stderr)
