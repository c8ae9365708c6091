"""Site configuration of Apptainer and Singularity: obstacles, and settings that flags override."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher import engines
from launcher.engines import sif
from launcher.engines.sif import conf_obstacle, conf_path, conf_remarks
from launcher.host.tree import FolderTree

SHIPPED = """
# MOUNT HOME: [BOOL]
mount home = yes
bind path = /etc/localtime
bind path = /etc/hosts
user bind control = yes
enable overlay = yes
enable underlay = yes
allow container sif = yes
always use nv = no
always use rocm = no
mount hostfs = no
# limit container owners = root
"""


def read(tmp_path: Path, text: str) -> sif.Conf:
    place = tmp_path / "etc/apptainer/apptainer.conf"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return sif.read_conf(FolderTree(tmp_path), "/etc/apptainer/apptainer.conf")


def test_what_is_shipped_needs_no_answer(tmp_path: Path) -> None:
    conf = read(tmp_path, SHIPPED)
    assert conf_obstacle(conf, "/c") is None
    assert list(conf_remarks(conf)) == []
    assert sif.read_conf(FolderTree(tmp_path), "/etc/none") == {}


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("always use rocm = yes", "--no-rocm"),
        ("always use nv = yes", "--no-nv"),
        ("mount hostfs = yes", "--no-mount hostfs"),
        ("bind path = /scratch", "--contain"),
        ("limit container owners = root, aam", "will not start"),
    ],
)
def test_a_setting_that_would_break_a_promise(tmp_path: Path, line: str, answer: str) -> None:
    ((setting, output),) = conf_remarks(read(tmp_path, f"{SHIPPED}{line}\n"))
    assert setting == line
    assert answer in output


@pytest.mark.parametrize(
    "lines",
    [
        "user bind control = no",
        "allow container sif = no",
        "enable overlay = no\nenable underlay = no",
    ],
)
def test_a_setting_that_keeps_every_container_from_starting(tmp_path: Path, lines: str) -> None:
    output = conf_obstacle(read(tmp_path, f"{SHIPPED}{lines}\n"), "/etc/apptainer/apptainer.conf")
    assert output is not None
    assert "/etc/apptainer/apptainer.conf" in output


def test_where_configurations_lie() -> None:
    assert conf_path("apptainer", "/usr/bin/apptainer") == "/etc/apptainer/apptainer.conf"
    pro = "/opt/singularitypro41/bin/singularity"
    assert conf_path("singularity", pro) == "/opt/singularitypro41/etc/singularity/singularity.conf"


def facts(tmp_path: Path, uid: int) -> dict[str, str | None]:
    """Return the obstacles of the engines of a host below `tmp_path`."""
    for name in ("apptainer", "podman"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch()
        program.chmod(0o755)
    path = {"PATH": str(tmp_path / "bin")}
    found = engines.found(FolderTree(tmp_path), path, uid, live=True)
    return {fact.name: fact.obstacle for fact in found}


def test_rootless_podman_needs_subordinate_ids(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "subuid").write_text("somebody:100000:65536\n")
    (etc / "subgid").write_text("77777:100000:65536\n")
    found = facts(tmp_path, 77777)
    assert found["apptainer"] is None
    assert "/etc/subuid has no line for 77777" in str(found["podman"])
    assert facts(tmp_path, 0)["podman"] is None
    (etc / "nsswitch.conf").write_text("passwd: files\nsubid: sss\n")
    assert facts(tmp_path, 77777)["podman"] is None
    (etc / "nsswitch.conf").write_text("subid: files\n")
    (etc / "subuid").write_text("77777:100000:65536\n")
    assert facts(tmp_path, 77777)["podman"] is None


def test_an_engine_that_may_not_mount_is_no_engine(tmp_path: Path) -> None:
    place = tmp_path / "etc/apptainer/apptainer.conf"
    # The program lies below the same prefix as its configuration.
    prefix = str(tmp_path)
    assert conf_path("apptainer", f"{prefix}/bin/apptainer") == str(place)
    conf = tmp_path / str(place).lstrip("/")
    conf.parent.mkdir(parents=True)
    conf.write_text("user bind control = no\n")
    (tmp_path / "etc").mkdir(exist_ok=True)
    assert "user bind control" in str(facts(tmp_path, os.getuid())["apptainer"])
