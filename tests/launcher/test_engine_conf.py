"""What keeps engines from starting a container, and variables that would change what they do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import Unavailable
from launcher.detect import detect
from launcher.engines import ENGINES, command
from launcher.engines.docker import ENGINE as DOCKER
from launcher.engines.docker import SOCKET
from launcher.gpus import device_nodes
from launcher.host.facts import DeviceNode, EngineFact, User
from launcher.host.tree import FolderTree
from launcher.plan.assembly import assemble_plan
from launcher.plan.decision import decide
from launcher.plan.environment import unset
from tests.support.decisions import inputs_of
from tests.support.hosts import MI300A, Tree, write
from tests.support.launches import parse

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


def facts(tmp_path: Path, uid: int) -> dict[str, str | None]:
    """Return the obstacles of the engines of a host below `tmp_path`."""
    for name in ("apptainer", "podman"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch()
        program.chmod(0o755)
    engines = ((ENGINES[name], str(tmp_path / "bin" / name)) for name in ("apptainer", "podman"))
    path = {"PATH": str(tmp_path / "bin")}
    found = [e.detect(place, FolderTree(tmp_path), path, uid) for e, place in engines]
    return {fact.name: fact.obstacle for fact in found}


def configure(tmp_path: Path, text: str) -> None:
    """Write the configuration of the apptainer of `facts`, below the prefix of its program."""
    write(tmp_path / f"{tmp_path}/etc/apptainer/apptainer.conf".lstrip("/"), text)


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "user bind control = no",
        "allow container sif = no",
        "enable overlay = no\nenable underlay = no",
    ],
)
def test_a_setting_that_keeps_every_container_from_starting(tmp_path: Path, lines: str) -> None:
    configure(tmp_path, f"{SHIPPED}{lines}\n")
    obstacle = facts(tmp_path, os.getuid())["apptainer"]
    assert bool(obstacle) == bool(lines)
    assert not lines or f"{tmp_path}/etc/apptainer/apptainer.conf" in str(obstacle)


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


# --- rootless Docker, and singularity that is Apptainer


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "d.sock"))
        yield tmp_path / "d.sock"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_rootless_daemon_maps_the_user_to_root(tmp_path: Path, daemon: Path) -> None:
    """Its socket belongs to the user; that of a daemon of root does not."""
    variables = {"DOCKER_HOST": f"unix://{daemon}"}

    def of(user: int) -> EngineFact:
        return DOCKER.detect("/usr/bin/docker", FolderTree(tmp_path), variables, user)

    assert not of(77777).maps_root
    os.chown(daemon, 77777, 77777)
    found = of(77777)
    assert found.maps_root
    assert found.obstacle is None
    own = tmp_path / "run/docker.sock"
    own.parent.mkdir()
    own.symlink_to(daemon)
    if not os.path.exists(SOCKET):
        variables = {"XDG_RUNTIME_DIR": str(own.parent)}
        assert of(77777).maps_root
        own.unlink()
        assert f"no daemon listens at {SOCKET}" in str(of(77777).obstacle)
    variables = {"DOCKER_HOST": f"unix://{daemon}"}
    assert not of(77778).maps_root


def test_a_launch_with_a_rootless_daemon(tmp_path: Path) -> None:
    """Files that the container writes belong to the user, who is root inside."""
    host = detect(Tree(tmp_path).amd(MI300A, 1).root)
    rootless = EngineFact("docker", "/usr/bin/docker", traits=DOCKER.traits, maps_root=True)
    open_to_all = tuple(
        DeviceNode(path, 44, "video", 0o666, True) for path in device_nodes(host.gpus)
    )
    host = replace(host, root="/", engines=(rootless,), user=User(7, 7, (7, 44)), nodes=open_to_all)
    inputs = inputs_of(host, parse(["check", "--runtime", "docker"]))
    plan = assemble_plan(inputs, decide(inputs))
    assert "--user=0:0" in command(plan)
    assert not [word for word in command(plan) if word.startswith("--group-add")]
    of_group = tuple(replace(node, mode=0o660) for node in open_to_all)
    with pytest.raises(Unavailable, match=r"Rootless docker cannot use the GPUs.*group video"):
        decide(replace(inputs, host=replace(host, nodes=of_group)))


@pytest.mark.parametrize("folder", ["libexec/{}/bin", "lib/aarch64-linux-gnu/{}/bin"])
@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_a_set_uid_starter_serves_where_user_namespaces_are_forbidden(
    tmp_path: Path, folder: str, name: str
) -> None:
    """Singularity may be a link to Apptainer, whose starter and configuration count then."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/apptainer").touch(mode=0o755)
    (tmp_path / "bin/singularity").symlink_to("apptainer")
    write(tmp_path / "proc/sys/user/max_user_namespaces", "0\n")
    starter = tmp_path / folder.format("apptainer") / "starter-suid"

    def obstacle() -> str:
        path = str(tmp_path / "bin" / name)
        return str(ENGINES[name].detect(path, FolderTree(tmp_path), {}, 77777).obstacle)

    write(starter, "", 0o755)
    assert "max_user_namespaces is 0" in obstacle()
    starter.chmod(0o4755)
    assert obstacle() == "None"
    configure(tmp_path, "allow setuid = no\n")  # the site turns it off
    assert "max_user_namespaces is 0" in obstacle()


# --- variables of a shell

HOSTILE = ("FAKEROOT", "SECURITY", "CWD", "BIND", "NV", "ROCM", "ALLOW_SETUID", "NEW_OPTION")


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_only_a_safe_list_of_variables_reaches_a_sif_engine(name: str) -> None:
    safe = ("CACHEDIR", "TMPDIR", "MESSAGELEVEL")
    present = [f"{prefix}_{word}" for prefix in ("APPTAINER", "SINGULARITY")
               for word in (*HOSTILE, *safe)]  # fmt: skip
    present += ["APPTAINERENV_LD_PRELOAD", "SINGULARITYENV_PATH", "http_proxy", "PATH", "HOME"]
    kept = set(present) - set(unset(present, ENGINES[name].traits))
    allowed = {f"{prefix}_{word}" for prefix in ("APPTAINER", "SINGULARITY") for word in safe}
    assert kept == {*allowed, "PATH", "HOME"}


def test_podmans_defaults_of_a_shell_do_not_reach_it() -> None:
    present = ["PODMAN_USERNS", "CONTAINER_HOST", "CONTAINERS_CONF", "XDG_RUNTIME_DIR"]
    assert unset(present, ENGINES["podman"].traits) == ("PODMAN_USERNS", "CONTAINER_HOST")
