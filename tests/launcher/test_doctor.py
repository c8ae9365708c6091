"""`aam-launch doctor`: this host, captures, and the problems of each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.hosts import MI210, MI300A, Tree
from tests.support.launches import RUN, launch, program

# --- doctor and images


def test_doctor_here(folder: Path) -> None:
    done = launch(folder, "doctor")
    assert done.returncode == 0, done.stderr
    assert "No engine can start a container: none is on PATH" in done.stdout
    assert "launch        natively, " in done.stdout


def test_doctor_asks_engines_for_their_versions(folder: Path) -> None:
    for name, answer in (("apptainer", "echo apptainer version 1.4.5-2"), ("podman", "exit 1")):
        program(folder / name, answer)
    printed = json.loads(launch(folder, "doctor", "--json").stdout)
    versions = {engine["name"]: engine["version"] for engine in printed["host"]["engines"]}
    assert versions == {"apptainer": "1.4.5-2", "podman": None}


def test_doctor_names_the_group_and_the_line(folder: Path) -> None:
    tree = Tree(folder / "h").cpu().amd(MI300A, 2)
    node = {"gid": 109, "group": "render", "mode": 0o660, "access": False}
    masks = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    tree.recorded(nodes={"/dev/kfd": node}, environment=masks)
    done = launch(folder, "doctor", "--host", str(tree.root), "--json")
    assert done.returncode == 77
    findings = json.loads(done.stdout)["findings"]
    (refusal,) = (f for f in findings if "usermod -aG render" in f["remedy"])  # once
    assert refusal["severity"] == "error"
    shown = launch(folder, "doctor", "--host", str(tree.root)).stdout
    masked = "ROCR_VISIBLE_DEVICES=0, HIP_VISIBLE_DEVICES=0 → 1 selected"
    assert f"selected      1 listed, 1 readable, {masked}" in shown


@pytest.mark.parametrize("present", [True, False])
def test_an_absent_module_for_memory_is_noticed(folder: Path, present: bool) -> None:
    """Without /dev/nvidia-uvm CUDA starts in no container."""
    tree = Tree(folder / "h").nvidia(0x20B2, 1, 0, "A100").nvidia_driver("580.65.06")
    node = {"gid": 0, "group": "root", "mode": 0o666, "access": True}
    nodes = ["/dev/nvidia0", "/dev/nvidiactl", *["/dev/nvidia-uvm"] * present]
    tree.recorded(nodes=dict.fromkeys(nodes, node))
    line = ["pretrain", "--table", "{d}/t.biom", "--output-dir", "{d}/out"]
    for command in (["doctor"], ["explain", *line]):
        done = launch(folder, *command, "--host", str(tree.root), "--json")
        findings = [f["evidence"] for f in json.loads(done.stdout)["findings"]
                    if f["cause"] == "CUDA may not start"]  # fmt: skip
        assert len(findings) == (not present)
        assert all("/dev/nvidia-uvm is absent" in evidence for evidence in findings)


NODE = {"gid": 44, "group": "video", "mode": 0o660, "access": True}
PODMAN = {"name": "podman", "path": "/usr/bin/podman"}
REFUSED = {
    "two vendors": (
        lambda tree: tree.amd(MI210, 1).nvidia(0x20B2, 2, 0, "A100").nvidia_driver("535.1"),
        (), 64, "Two vendors, equally supported"),
    "podman without CDI": (
        lambda tree: tree.nvidia(0x20B2, 2, 0, "A100").nvidia_driver("535.1").recorded(
            engines=[PODMAN], nodes={"/dev/nvidia0": NODE}),
        (), 69, "podman needs a CDI description of NVIDIA GPUs"),
    "an engine with an obstacle": (
        lambda tree: tree.amd(MI300A, 1).recorded(engines=[{**PODMAN, "obstacle": "no subuid"}]),
        (), 69, "podman: no subuid"),
    "a missing device node": (
        lambda tree: tree.amd(MI300A, 1).recorded(nodes={"/dev/dri/renderD128": NODE}),
        (), 69, "A device node is absent: /dev/kfd"),
    "a GPU that no image serves": (
        lambda tree: tree.nvidia(0x102D, 1, 0, "Tesla K80").nvidia_driver("470.82"),
        (), 69, "No image serves these GPUs"),
    "a mask of a GPU that is not there": (
        lambda tree: tree.amd(MI300A, 1).recorded(environment={"ROCR_VISIBLE_DEVICES": "4"}),
        (), 78, "'4' of ROCR_VISIBLE_DEVICES=4"),
    "a native PyTorch without support of the GPUs": (
        lambda tree: tree.amd(MI300A, 1), ("--runtime", "native"), 69, "The GPUs would stay idle"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_doctor_fails_where_a_launch_would_be_refused(folder: Path, case: str) -> None:
    make, options, status, reason = REFUSED[case]
    host = ("--host", str(make(Tree(folder / "h")).root), *options)
    explained = launch(folder, "explain", *RUN, *host)
    assert explained.returncode == status
    assert reason in explained.stderr
    done = launch(folder, "doctor", *host)
    assert done.returncode == status
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert line.partition("refused: ")[2] == explained.stderr.partition(": ")[2].rstrip()


def test_doctor_names_what_a_launch_would_run(folder: Path) -> None:
    tree = Tree(folder / "h").amd(MI210, 1).recorded(
        engines=[{"name": "apptainer", "path": "/usr/bin/apptainer"}],
        nodes={"/dev/kfd": NODE, "/dev/dri/renderD128": NODE},
    )  # fmt: skip
    done = launch(folder, "doctor", "--host", str(tree.root))
    assert "launch        rocm72 by apptainer, 1 x MI210 (gfx90a)\n" in done.stdout
    assert "aam check     not yet measured" in done.stdout
    done = launch(folder, "doctor", "--host", str(Tree(folder / "none").root))
    assert "launch        cpu by apptainer, the CPU\n" in done.stdout
    assert "aam check" not in done.stdout


def test_a_capture_comes_back(folder: Path) -> None:
    done = launch(folder, "doctor", "--capture", "{d}/me.tar", SLURM_JOB_ID="5", SECRET="s3cret",
                  SLURM_JWT="s3cret")  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(launch(folder, "doctor", "--host", "{d}/me.tar", "--json").stdout)
    assert printed["host"]["slurm"]["job"] == "5"
    assert printed["host"]["kernel"] == os.uname().release
    assert b"s3cret" not in (folder / "me.tar").read_bytes()
