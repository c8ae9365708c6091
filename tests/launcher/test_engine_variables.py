"""Variables and configuration files that would change what an engine does with a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.engines import ENGINES, podman
from launcher.host.tree import FolderTree
from launcher.plan.environment import unset

HOSTILE = (
    "FAKEROOT", "SECURITY", "SCRATCH", "FUSESPEC", "CWD", "PWD", "HOSTNAME", "DNS", "NETWORK",
    "NETWORK_ARGS", "OVERLAYIMAGE", "BIND", "MOUNT", "NV", "ROCM", "WRITABLE", "ALLOW_SETUID",
    "ADD_CAPS", "KEEP_PRIVS", "APPLY_CGROUPS", "UNSHARE_NET", "SHELL", "BLKIO_WEIGHT", "NEW_OPTION",
)  # fmt: skip


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


SITE = """
[containers]
netns = "host"
env = [
  "LD_PRELOAD=/evil.so", # a comment, with a comma
  "B=[x]",
]
volumes = ["/secret:/secret"]
devices = []
#mounts = ["type=bind"]
[engine]
runtime = "runc" # which one
"""


def additions(root: Path, **variables: str) -> dict[str, str]:
    return dict(podman.additions(FolderTree(root), {"HOME": "/home/ada", **variables}, 7))


def put(root: Path, path: str, text: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_what_a_site_adds_to_every_container(tmp_path: Path) -> None:
    put(tmp_path, "/usr/share/containers/containers.conf", "[containers]\ndevices = ['/dev/x']\n")
    put(tmp_path, "/etc/containers/containers.conf", SITE)
    assert additions(tmp_path) == {
        "env = [LD_PRELOAD=/evil.so, B=[x]]":
            "/etc/containers/containers.conf adds it to every container",
        "volumes = [/secret:/secret]":
            "/etc/containers/containers.conf adds it to every container",
    }  # fmt: skip


def test_later_files_replace_values_of_earlier_ones(tmp_path: Path) -> None:
    put(tmp_path, "/etc/containers/containers.conf", SITE)
    put(tmp_path, "/etc/containers/containers.conf.d/9.conf", "[containers]\nenv = ['C=1']\n")
    put(tmp_path, "/home/ada/.config/containers/containers.conf", "[containers]\nvolumes = []\n")
    assert list(additions(tmp_path)) == ["env = [C=1]"]
    put(tmp_path, "/mine.conf", "[engine]\nenv = ['D=1']\n")
    assert list(additions(tmp_path, CONTAINERS_CONF="/mine.conf")) == ["env = [D=1]"]
    more = additions(tmp_path, CONTAINERS_CONF_OVERRIDE="/mine.conf")
    assert list(more) == ["env = [C=1]", "env = [D=1]"]


@pytest.mark.parametrize("text", ["[containers]\nenv = [", "\0", "= 1", "[", "env = ['x']",
                                  "[containers]\nenv = [1, [2]]"])  # fmt: skip
def test_a_damaged_configuration_is_no_traceback(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/etc/containers/containers.conf", text)
    additions(tmp_path)
