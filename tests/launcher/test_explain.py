"""`aam-launch explain` and `doctor`: decisions and problems of this host and of captures."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.hosts import MI210, MI300A, Tree, captured
from tests.support.launches import RUN, engine, launch, program


def test_explain_runs_nothing_and_tells_all(folder: Path) -> None:
    done = launch(folder, "explain", *RUN, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert "native" in done.stdout
    assert "--lr 0.1" in done.stdout
    assert not (folder / "out").exists()


def test_explain_as_json_is_the_same_every_time(folder: Path) -> None:
    first = launch(folder, "explain", "--json", *RUN)
    assert first.stdout == launch(folder, "explain", *RUN, "--json").stdout
    printed = json.loads(first.stdout)
    assert {"host", "decisions", "findings", "plan", "command_line"} == set(printed)
    assert "environment" not in printed["host"]
    assert all(set(d) == {"subject", "value", "why", "source"} for d in printed["decisions"])


def test_names_that_are_no_text_are_shown_as_they_are(folder: Path) -> None:
    name = os.fsencode(folder) + b"/latin\xe9.biom"
    Path(os.fsdecode(name)).touch()
    args = ["pretrain", "--table", os.fsdecode(name), "--output-dir", "{d}/out"]
    variables = {"LC_ALL": "en_US.UTF-8", "PYTHONUTF8": "1"}
    explained = launch(folder, "explain", *args, **variables)
    assert explained.returncode == 0, explained.stderr
    assert os.fsdecode(name) in explained.stdout
    assert os.fsdecode(name) in launch(folder, "--dry-run", *args, **variables).stdout
    json.loads(launch(folder, "explain", "--json", *args, **variables).stdout)


def test_explain_for_another_host(folder: Path) -> None:
    host = captured("mi300a-4apu-spx")
    done = launch(folder, "explain", "pretrain", "--host", str(host), "--json")
    printed = json.loads(done.stdout)
    assert printed["plan"]["image"] == "rocm64"
    assert [path[-3:] for path in printed["plan"]["devices"][1:]] == ["128", "136", "144", "152"]
    assert dict(printed["plan"]["variables"])["ROCR_VISIBLE_DEVICES"] == "0,1,2,3"
    # --dry-run prints the same plan, and `images` what fits that host
    dry = launch(folder, "--dry-run", *RUN, "--host", str(host))
    assert dry.returncode == 0, dry.stderr
    assert "/dev/dri/renderD152" in dry.stdout
    listed = launch(folder, "images", "--json", "--host", str(host))
    rows = json.loads(listed.stdout)
    assert {"rocm63", "cpu"} <= {row["name"] for row in rows if row["fits"]}
    assert rows[0]["name"] == printed["plan"]["image"]  # in the order of preference
    # whatever image is requested, each that does not fit has the reason
    listed = launch(folder, "images", "--json", "--host", str(host), AAM_LAUNCH_IMAGE="cpu")
    reasons = {row["name"]: row["reason"] for row in json.loads(listed.stdout) if not row["fits"]}
    assert "it is for GPUs of NVIDIA, not of AMD" in reasons["cuda130"]
    # and `explain` shows those of images for the vendor of this host, and which could run as well
    others = {d["value"]: d["why"] for d in printed["decisions"] if d["subject"] == "not used"}
    assert not [name for name in others if name.startswith("cuda")]
    assert others["rocm63"] == "rocm64 comes before it: it is newer"


def test_a_command_that_uses_no_gpu_says_so(folder: Path) -> None:
    host = ("--host", str(captured("mi300a-4apu-spx")))
    train = ("explain", "train", "t.biom", "m.tsv", "age", *host)
    done = launch(folder, *train)
    assert done.returncode == 0, done.stderr
    says = (
        "GPUs not used 4 x MI300A (gfx942)\n               kernel and forest run on the CPU; `pre"
    )
    assert says in done.stdout
    assert "it can run" not in done.stdout
    assert "it is for GPUs; the command uses none" in done.stdout
    assert "GPUs not used" not in launch(folder, *train, "--members", "transformer").stdout
    named = launch(folder, "explain", "check", "--image", "cpu", *host).stdout
    assert "GPUs not used 4 x MI300A (gfx942)\n               cpu runs on the CPU" in named


def test_a_refusal_is_explained(folder: Path) -> None:
    host = captured("mi300a-4apu-spx")
    args = ("explain", "predict", "--image", "cuda130", "--host", str(host))
    done = launch(folder, *args)
    assert done.returncode == 69
    assert "cuda130 does not fit this host" in done.stderr and done.stderr.count("\n") == 1
    assert re.search(r"^amd GPUs +4 listed", done.stdout, re.MULTILINE)
    assert re.search(r"^not used +rocm", done.stdout, re.MULTILINE)
    printed = json.loads(launch(folder, *args, "--json").stdout)
    assert len(printed["host"]["gpus"]) == 4
    reasons = {d["value"]: d["why"] for d in printed["decisions"] if d["subject"] == "not used"}
    assert reasons["rocm64"] == "another is requested"


def test_a_decision_for_the_native_environment_is_captured(folder: Path) -> None:
    """Where the capture is made no image can run, and on the host that reads it every one could."""
    captured = launch(folder, "doctor", "--capture", "here.tar")
    assert captured.returncode == 0, captured.stderr
    here = launch(folder, "explain", "check", "--json")
    engine(folder, "apptainer")
    there = launch(folder, "explain", "check", "--json", "--host", "here.tar")
    plans = [json.loads(done.stdout)["plan"] for done in (here, there)]
    assert [plan["engine"] for plan in plans] == ["native", "native"]
    assert plans[0]["program"] == plans[1]["program"]


def test_images_lists_the_native_environment_where_no_engine_is(folder: Path) -> None:
    listed = launch(folder, "images").stdout
    assert re.search(r"^native +(yes|no) ", listed, re.MULTILINE)
    assert "No engine can start a container: none of apptainer" in " ".join(listed.split())
    (folder / "podman").touch(mode=0o755)
    host = Tree(folder / "h").cpu()
    podman = {"name": "podman", "path": "/usr/bin/podman", "obstacle": "no subuid"}
    host.recorded(engines=[podman])
    done = launch(folder, "explain", "check", "--host", str(host.root))
    assert (done.returncode, "not used      cpu" in done.stdout) == (69, True)
    assert "podman: no subuid; let an administrator remove what stops podman." in done.stderr


def test_of_several_mig_instances_the_first_that_is_named_is_used(folder: Path) -> None:
    tree = Tree(folder / "h").cpu().nvidia(0x20B2, 2, 0, "NVIDIA A100", mig=("gi1/ci0", "gi2/ci0"))
    tree.nvidia_driver("570.1").recorded(environment={"CUDA_VISIBLE_DEVICES": "MIG-bb,MIG-aa"})
    done = launch(folder, "explain", "check", "--host", str(tree.root), "--json")
    findings = json.loads(done.stdout)["findings"]
    (finding,) = [f for f in findings if f["cause"] == "Only one MIG instance is used"]
    assert finding["evidence"].startswith("the first of MIG-bb,MIG-aa; ")


# --- doctor


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
