"""SIF files: completeness, the id of their build, and the versions of engines."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from aam.contract.errors import MissingInput
from launcher.engines.sif import record_of
from launcher.engines.sif_file import (
    DESCRIPTOR,
    DESCRIPTOR_SIZE,
    HEADER,
    METADATA,
    NAME,
    check_sif,
    id_of,
)
from launcher.images import index
from tests.support.launches import RUN, engine, launch


def test_an_engine_is_asked_once_for_its_version(folder: Path) -> None:
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


# --- SIF files


def sif(path: Path, *, length: int = 100, total: int = 1, name: bytes = b"u" * 16) -> Path:
    start = HEADER.size
    offset = start + total * DESCRIPTOR_SIZE
    sizes = (0, 0, 0, total, start, total * DESCRIPTOR_SIZE, offset, length)
    texts = (b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC", b"01", b"02", name)
    header = HEADER.pack(*texts, *sizes)
    table = b"".join(
        DESCRIPTOR.pack(0x4004, 1, 1, 0, 0, offset, length, length).ljust(DESCRIPTOR_SIZE, b"\0")
        for _ in range(total)
    )
    path.write_bytes(header + table + b"x" * 100)
    return path


def labelled(path: Path, labels: dict[str, str]) -> Path:
    """Write a SIF whose only part is the metadata of its build, with labels."""
    text = json.dumps({"data": {"attributes": {"labels": labels}}}).encode()
    sif(path, length=len(text))
    content = path.read_bytes()
    start = HEADER.size
    entry = bytearray(content[start : start + DESCRIPTOR_SIZE])
    entry[NAME] = METADATA.encode().ljust(NAME.stop - NAME.start, b"\0")
    path.write_bytes(content[:start] + bytes(entry) + text)
    return path


def test_a_whole_sif(tmp_path: Path) -> None:
    check_sif(str(sif(tmp_path / "a.sif")))


def test_a_sif_has_the_id_of_its_build(tmp_path: Path) -> None:
    assert id_of(sif(tmp_path / "a.sif")) == f"sif:{'75' * 16}"
    assert id_of(sif(tmp_path / "none.sif", name=b"\0" * 16)) is None
    (tmp_path / "short.sif").write_bytes(b"#!")
    assert id_of(tmp_path / "short.sif") is id_of(tmp_path / "absent.sif") is None


def test_an_image_named_by_its_path_is_known_by_its_id(folder: Path) -> None:
    """The record has its id, so that a repeated run notices another build in the same place."""
    (folder / "apptainer").touch(mode=0o755)
    explained = []
    for name in (b"u" * 16, b"v" * 16):
        image = sif(folder / "own.sif", name=name)
        done = launch(folder, "explain", "--json", "--image", str(image), *RUN)
        explained.append(json.loads(done.stdout)["plan"]["digest"])
    assert explained == [f"sif:{'75' * 16}", f"sif:{'76' * 16}"]


@pytest.mark.parametrize(
    ("length", "total"), [(101, 1), (1 << 62, 1), (100, 0), (100, 5000), (100, -1)]
)
def test_a_sif_that_lies(tmp_path: Path, length: int, total: int) -> None:
    path = sif(tmp_path / "a.sif", length=length, total=max(total, 0))
    if total < 0:
        content = bytearray(path.read_bytes())
        struct.pack_into("<q", content, HEADER.size - 40, total)
        path.write_bytes(content)
    with pytest.raises(MissingInput, match="Not a complete SIF"):
        check_sif(str(path))
