"""Builds that fail on the way, and images that are not what was built."""

from __future__ import annotations

import hashlib
import os
import shutil

import pytest

from tests.support.engines import LAUNCH, Engines
from tests.support.images import IMAGES, SMALL, base, build_argv, left, wheels

pytestmark = pytest.mark.container


def test_no_network_names_the_step_and_the_way_without(alone: Engines) -> None:
    """In a network namespace of its own, a host has no network."""
    argv = ["unshare", "--net", "--map-root-user", *build_argv(alone, "cpu", "apptainer")]
    done = alone.run(argv, cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert "needs a network for its base, Debian's packages and the wheels" in done.stderr
    assert "--from FILE" in done.stderr
    assert left(alone.images) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_build_leaves_nothing(alone: Engines) -> None:
    """The image folder has room until the build starts, then 20 MiB; the base takes more."""
    archive = alone.images.with_suffix(".tar")
    save = ["podman", "save", "--format", "docker-archive", "--output", str(archive), base(alone)]
    pulled = alone.run(["podman", "pull", "--quiet", base(alone)], user="root")
    assert pulled.returncode == 0, pulled.stderr
    try:
        assert alone.run(save, user="root", timeout=300).returncode == 0
        archive.chmod(0o644)
        log = f"{alone.images}/logs/cpu-apptainer.log"
        wait = f"for i in $(seq 6000); do [ ! -e {log} ] || break; sleep 0.01; done"
        small = f"mount -t tmpfs -o size=2g,mode=777 tmpfs {alone.images}\n"
        small += f"({wait}; mount -o remount,size=20m {alone.images}) > /dev/null 2>&1 &"
        build = [*IMAGES, "build", "cpu", "--engine", "apptainer", "--from", str(archive)]
        # The listing is made in the mount namespace of the build, in which the file system is.
        script = '"$@"; status=$?; ls -A "$AAM_IMAGE_DIR" >&2; exit $status'
        line = ["sh", "-c", script, "sh", *build, "--no-test"]
        done = alone.run(line, before=small, cwd=alone.folder, timeout=300)
    finally:
        archive.unlink(missing_ok=True)
    assert done.returncode == 73, done.stderr
    assert "the disk is full" in done.stderr
    listed = done.stderr.splitlines()[-3:]
    assert "logs" in listed
    assert not any(name.endswith(".sif") or name == "images.json" for name in listed)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_wheel_with_another_hash_than_the_lock_ends_the_build(alone: Engines) -> None:
    """One byte of a wheel is another; the build leaves its log alone."""
    altered = alone.images / "wheels"
    altered.mkdir()
    for file in wheels().glob("*.whl"):
        if file.name.partition("-")[0] in (*SMALL, "torch") and "+" not in file.name:
            shutil.copy(file, altered)
    (first,) = altered.glob("numpy-*-cp311-*.whl")
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    argv = build_argv(alone, "cuda128", "apptainer")
    argv[argv.index("--wheels") + 1] = str(altered)
    done = alone.run(argv, cwd=alone.folder, timeout=600)
    assert done.returncode == 73, done.stderr
    log = alone.images / "logs/cuda128-apptainer.log"
    assert str(log) in done.stderr
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in log.read_text()
    assert "numpy" in log.read_text()
    assert left(alone.images) == ["wheels"]


def test_an_archive_that_is_none(alone: Engines) -> None:
    argv = [*IMAGES, "build", "cpu", "--engine", "apptainer", "--from"]
    done = alone.run([*argv, "/nonexistent.tar"], cwd=alone.folder)
    assert done.returncode == 66, done.stderr
    done = alone.run([*argv, "/etc/passwd"], cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert left(alone.images) == []


def test_a_copied_sif_is_recorded_before_a_job_uses_it(alone: Engines) -> None:
    place, copied = alone.images / "cpu.sif", alone.images / "copied.sif"
    recipe = alone.images / "small.def"
    write = 'mkdir -p /opt/aam; echo "{\\"org.aam.name\\": \\"cpu\\"}" > /opt/aam/labels.json'
    recipe.write_text(f"Bootstrap: docker\nFrom: {base(alone)}\n%post\n    {write}\n")
    fast = ["--mksquashfs-args", "-comp zstd -Xcompression-level 1"]
    made = alone.run(["apptainer", "build", *fast, str(copied), str(recipe)], cwd=alone.images)
    assert made.returncode == 0, made.stderr
    job = [*LAUNCH, "--dry-run", "--image", "cpu", "--runtime", "apptainer",
           "example", "--output-dir", str(alone.images / "out")]  # fmt: skip
    shutil.copy(copied, place)
    done = alone.run(job, cwd=alone.folder)
    assert done.returncode == 66, done.stderr
    assert f"aam-launch images build cpu --from {place}" in done.stderr
    place.unlink()
    before = hashlib.sha256(copied.read_bytes()).hexdigest()
    add = [*IMAGES, "build", "cpu", "--from", str(copied), "--sha256", before, "--no-test"]
    added = alone.run(add, cwd=alone.folder)
    assert added.returncode == 0, added.stderr
    assert added.stdout.split() == ["cpu", str(place), f"sha256:{before}"]
    assert alone.run(job, cwd=alone.folder).returncode == 0
    verify = [*IMAGES, "verify", "cpu", "--no-test"]
    assert alone.run(verify, cwd=alone.folder).returncode == 0
    with place.open("r+b") as stream:
        stream.seek(-5000, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    after = hashlib.sha256(place.read_bytes()).hexdigest()
    done = alone.run(verify, cwd=alone.folder)
    assert done.returncode == 66
    assert f"sha256:{after}" in done.stderr
    assert f"sha256:{before}" in done.stderr
    with place.open("ab") as stream:
        stream.write(b"\0")
    done = alone.run(job, cwd=alone.folder)
    assert done.returncode == 66
    assert "The image is not the recorded one" in done.stderr
