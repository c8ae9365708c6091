"""Device descriptions of the Container Device Interface, as the vendors' toolkits write them."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.detect import detect
from launcher.engines import command
from launcher.engines.docker import ENGINE as DOCKER
from launcher.host import cdi
from launcher.host.facts import CDI_ENABLED, Host
from launcher.host.tree import FolderTree
from tests.launcher.test_container_gpus import GPUS, gpus
from tests.launcher.test_plan import PRETRAIN, host_of, planned
from tests.support.engines import PYTHON, Engines
from tests.support.hosts import MI210, Tree, write
from tests.support.launched_containers import engines, place, study

__all__ = ["engines", "gpus", "place"]
KINDS = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}


def amd_json(*minors: int, mounts: bool = False, version: str = "0.6.0") -> str:
    """The output of `amd-ctk cdi generate`: nodes of each GPU, /dev/kfd last, and "all"."""

    def node(path: str, major: int, minor: int) -> dict[str, Any]:
        return {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 432,
                "permissions": "rwm", "uid": 0, "gid": 44}  # fmt: skip

    kfd = node("/dev/kfd", 235, 0)
    own = [
        [node(f"/dev/dri/card{n}", 226, n), node(f"/dev/dri/renderD{minor}", 226, minor)]
        for n, minor in enumerate(minors)
    ]
    devices = [{"name": str(n), "containerEdits": {"deviceNodes": [*nodes, kfd]}}
               for n, nodes in enumerate(own)]  # fmt: skip
    every = [node for nodes in own for node in nodes]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": [*every, kfd]}})
    libraries = {"mounts": [{"hostPath": "/opt/rocm/lib", "containerPath": "/opt/rocm/lib"}]}
    edits = libraries if mounts else {}
    return json.dumps({"cdiVersion": version, "kind": "amd.com/gpu", "devices": devices,
                       "containerEdits": edits})  # fmt: skip


NVIDIA = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    - --folder
    - /usr/lib/x86_64-linux-gnu
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.133.20
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.133.20
    options:
    - ro
    - nosuid
    - nodev
    - bind
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/dri/card1
    - path: /dev/dri/renderD128
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: "1"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: GPU-00000002-0000-0000-0000-000000000000
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
    - path: /dev/dri/card1
    - path: /dev/dri/renderD128
  name: all
kind: nvidia.com/gpu
"""
"""Of `nvidia-ctk cdi generate`, shortened: two GPUs by index, one of them by UUID too, and all."""


def described(root: Path, text: str, name: str, folder: str = "etc/cdi") -> None:
    write(root / folder / name, text)


def amd(root: Path, *minors: int) -> Tree:
    tree = Tree(root).cpu()
    for number, minor in enumerate(minors):
        tree.amd(MI210, number + 1, minor=minor)
    return tree


def devices_of(host: Host, engine: str, *args: str) -> list[str]:
    argv = command(planned(host, *PRETRAIN, "--runtime", engine, *args))
    return [argv[n + 1] for n, word in enumerate(argv) if word == "--device"]


def variable(host: Host, engine: str, name: str) -> str:
    return dict(planned(host, *PRETRAIN, "--runtime", engine).variables)[name]


def enabled(host: Host) -> Host:
    """The host with CDI enabled in docker's daemon.json."""
    facts = (replace(e, conf=((CDI_ENABLED, ""),)) if e.name == "docker" else e
             for e in host.engines)  # fmt: skip
    return replace(host, engines=tuple(facts))


def versions(host: Host, **known: str) -> Host:
    """The host with engines of these versions."""
    facts = (replace(e, version=known.get(e.name)) for e in host.engines)
    return replace(host, engines=tuple(facts))


def test_the_devices_of_amds_toolkit(tmp_path: Path) -> None:
    described(tmp_path, amd_json(128, 136), "amd.json", "var/run/cdi")
    found = cdi.devices(FolderTree(tmp_path))
    assert [str(device) for device in found] == [
        "amd.com/gpu=0",
        "amd.com/gpu=1",
        "amd.com/gpu=all",
    ]
    assert found[1].nodes == ("/dev/dri/card1", "/dev/dri/renderD136", "/dev/kfd")
    assert not found[1].mounts
    assert found[0].source == "/var/run/cdi/amd.json"


def test_the_chosen_gpus_of_amd_go_in_by_name(tmp_path: Path) -> None:
    """The mask inside counts the devices that went in, by name or by node alike."""
    host = host_of(amd(tmp_path, 128, 136, 144), ROCR_VISIBLE_DEVICES="2,1")
    nodes = ["/dev/kfd", "/dev/dri/renderD136", "/dev/dri/renderD144"]
    assert devices_of(host, "podman") == nodes
    described(tmp_path, amd_json(128, 136, 144), "amd.json")
    host = replace(host, cdi=cdi.devices(FolderTree(tmp_path)))
    for version in ({}, {"podman": "4.3.1"}):  # which does not read CDI 0.6
        assert devices_of(versions(host, **version), "podman") == nodes
    host = versions(host, podman="5.4.0", docker="28.1.1")
    assert devices_of(host, "podman") == ["amd.com/gpu=1", "amd.com/gpu=2"]
    assert devices_of(host, "docker") == nodes  # daemon.json does not enable CDI
    assert devices_of(enabled(host), "docker") == ["amd.com/gpu=1", "amd.com/gpu=2"]
    assert "--device" not in command(planned(host, *PRETRAIN, "--runtime", "apptainer"))
    for engine in ("podman", "docker", "apptainer"):
        assert variable(host, engine, "ROCR_VISIBLE_DEVICES") == "1,0"
    argv = command(planned(host, *PRETRAIN, "--runtime", "podman"))
    assert "--security-opt=seccomp=unconfined" in argv
    plan = planned(host, *PRETRAIN, "--runtime", "podman")
    (why,) = {d.why for d in plan.decisions if d.subject == "device"}
    assert why == "a GPU that is used, as /etc/cdi/amd.json describes it"


@pytest.mark.parametrize(
    "text",
    [
        amd_json(128),  # of before another GPU was added
        amd_json(128, 136, mounts=True),  # with libraries that would replace the image's
        amd_json(200, 201),
        "{", "[]", "{}", '{"kind": "amd.com/gpu"}', '{"kind": "amd.com/gpu", "devices": [3]}',
        "[" * 5000, "- " * 5000, "kind: [", "\0",
    ],
)  # fmt: skip
def test_another_description_changes_nothing(tmp_path: Path, text: str) -> None:
    for name in ("amd.json", "amd.yaml"):
        described(tmp_path, text, name)
    host = versions(host_of(amd(tmp_path, 128, 136)), podman="5.4.0")
    assert devices_of(host, "podman") == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136"]


def test_nvidias_gpus_go_in_one_by_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 1, 0, "A100").nvidia(0x20B2, 2, 1, "A100")
    described(tmp_path, NVIDIA, "nvidia.yaml")
    tree.nvidia_driver("570.133.20")
    both = host_of(tree)
    assert devices_of(both, "podman") == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    one = host_of(tree, CUDA_VISIBLE_DEVICES="1")
    assert devices_of(one, "podman") == ["nvidia.com/gpu=1"]
    assert variable(one, "podman", "CUDA_VISIBLE_DEVICES").startswith("GPU-00000002-")
    assert devices_of(enabled(one), "docker") == ["nvidia.com/gpu=1"]
    assert "--gpus" not in command(planned(enabled(one), *PRETRAIN, "--runtime", "docker"))
    assert "--gpus" in command(planned(one, *PRETRAIN, "--runtime", "docker"))


def test_a_mig_instance_goes_in_alone(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 1, 0, "A100", mig=("gi1/ci0", "gi2/ci0"))
    caps = "/dev/nvidia-caps/nvidia-cap"
    entries = "".join(
        f"- name: '0:{n}'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
        f"    - path: {caps}{10 * (n + 1)}\n    - path: {caps}{10 * (n + 1) + 1}\n"
        for n in range(2)
    )
    described(tmp_path, f"kind: nvidia.com/gpu\ndevices:\n{entries}", "nvidia.yaml", "var/run/cdi")
    host = host_of(tree.nvidia_driver("570.1"))
    assert devices_of(host, "podman") == ["nvidia.com/gpu=0:0"]


@pytest.mark.parametrize(
    ("text", "takes"),
    [('{"features": {"cdi": true}}', True), ('{"features": {"cdi": false}}', False), ("{}", False),
     ('{"features": 3}', False), ("[1", False), ("[" * 99999, False)],
)  # fmt: skip
def test_docker_takes_names_where_its_daemon_is_told_to(
    tmp_path: Path, text: str, takes: bool
) -> None:
    write(tmp_path / "etc/docker/daemon.json", text)
    variables = {"DOCKER_HOST": "tcp://127.0.0.1:9"}
    settings = DOCKER.detect("/usr/bin/docker", FolderTree(tmp_path), variables, 0).conf
    assert [setting for setting, _ in settings] == ([CDI_ENABLED] if takes else [])


def test_a_capture_has_the_descriptions(tmp_path: Path) -> None:
    described(tmp_path, amd_json(128), "amd.json")
    assert detect(amd(tmp_path, 128).root).cdi[0].kind == KINDS["amd"]


# --- podman with a described device


@pytest.fixture
def description() -> Iterator[Path]:
    """A description in /etc/cdi; rootless podman has a mount namespace of its own."""
    folder, made = Path("/etc/cdi"), not Path("/etc/cdi").exists()
    folder.mkdir(exist_ok=True)
    file = folder / "aam-test.json"
    with open("/var/tmp/aam-test-cdi.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file.write_text(amd_json(128, 136, 144, 152, version="0.5.0"))
        try:
            yield file
        finally:
            file.unlink()
            if made:
                shutil.rmtree(folder)


@pytest.mark.container
@pytest.mark.parametrize("user", ["root", "aamtest"])
def test_podman_brings_in_described_devices(
    engines: Engines, place: Path, gpus: Tree, description: Path, user: str
) -> None:
    """Nodes stand in for GPUs; podman reads the description, of a version that 4.3 reads, too."""
    content = json.loads(description.read_text())
    for device in content["devices"]:
        nodes = device["containerEdits"]["deviceNodes"]
        kept = [{"path": n["path"]} for n in nodes if Path(n["path"]).exists()]
        device["containerEdits"]["deviceNodes"] = kept
    description.write_text(json.dumps(content))
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    line = ["env", "ROCR_VISIBLE_DEVICES=3,1", PYTHON, "-m", "launcher.cli", "pretrain", "--table",
            str(study(place)), "--runtime", "podman", "--image", "rocm63", "--output-dir",
            str(place / "out")]  # fmt: skip
    shown = engines.run([*line, "--dry-run"], user=user, before=before, cwd=engines.folder)
    assert "--device amd.com/gpu=1 --device amd.com/gpu=3" in shown.stdout, shown.stderr
    done = engines.run(line, user=user, before=before, cwd=engines.folder)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    seen = {path for path in printed["devices"] if path.startswith(("/dev/dri", "/dev/kfd"))}
    assert seen == {"/dev/kfd", "/dev/dri/renderD136", "/dev/dri/renderD152"}
    assert all(printed["devices"][path] for path in seen)
    assert printed["environment"]["ROCR_VISIBLE_DEVICES"] == "1,0"
