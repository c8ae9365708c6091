"""The launcher's own commands as processes: explain, doctor, images, replay."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from aam import __version__
from aam.contract.errors import MissingInput
from launcher import replay
from launcher.engines.sif import record_of
from launcher.engines.sif_file import DESCRIPTOR, DESCRIPTOR_SIZE, HEADER, check_sif, id_of
from launcher.images import index
from tests.support.hosts import MI210, MI300A, Tree, captured

ROOT = Path(__file__).parents[2]
RUN = ["pretrain", "--table", "{d}/t.biom", "--output-dir", "{d}/out"]


def launch(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch` in a folder, which is also its home; no engine is on its PATH."""
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": str(folder), **variables}
    return subprocess.run(
        [sys.executable, "-m", "launcher.cli", *(word.format(d=folder) for word in words)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=environment,
        cwd=folder,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.biom").touch()
    return tmp_path


# --- explain


def test_explain_runs_nothing_and_tells_all(folder: Path) -> None:
    done = launch(folder, "explain", *RUN, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert "native" in done.stdout
    assert "--lr 0.1" in done.stdout
    assert not (folder / "out").exists()


@pytest.mark.parametrize("asked", [["--device", "cuda"], ["--gpus", "2"], []])
def test_a_launch_that_asks_for_a_gpu_is_refused_without_one(
    folder: Path, asked: list[str]
) -> None:
    job = {} if asked else {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
    for words in ([*RUN, *asked], ["explain", *RUN, *asked]):
        done = launch(folder, *words, **job)
        assert done.returncode == 69
        assert "A GPU is requested and none can be used: there is no GPU" in done.stderr
        assert "--device cpu" in done.stderr
    cpu = [word for word in asked if word not in ("--device", "cuda")]
    assert launch(folder, "explain", *RUN, *cpu, "--device", "cpu", **job).returncode == 0
    assert not (folder / "out").exists()


def test_explain_refuses_what_a_launch_would_refuse(folder: Path) -> None:
    tree = Tree(folder / "h").nvidia(0x102D, 1, 0, "Tesla K80").nvidia_driver("470.82")
    done = launch(folder, "explain", *RUN, "--host", str(tree.root))
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("aam-launch: No image serves these GPUs: 1 x Tesla K80 (sm_37)")
    done = launch(folder, "explain", *RUN, "--host", str(tree.root), "--device", "cpu")
    assert done.returncode == 0
    assert "the command computes on the processor" in done.stdout


def test_explain_as_json_is_the_same_every_time(folder: Path) -> None:
    first = launch(folder, "explain", "--json", *RUN)
    assert first.stdout == launch(folder, "explain", *RUN, "--json").stdout
    printed = json.loads(first.stdout)
    assert {"host", "decisions", "findings", "plan", "command_line"} == set(printed)
    assert "environment" not in printed["host"]
    assert all(set(d) == {"subject", "value", "why", "source"} for d in printed["decisions"])


def test_an_output_that_is_full_is_said(folder: Path) -> None:
    command = [sys.executable, "-m", "launcher.cli", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 73
    assert done.stderr.startswith("aam-launch: The disk is full: standard output, No space left")


def test_names_that_are_no_text_are_shown_as_they_are(folder: Path) -> None:
    name = os.fsencode(folder) + b"/latin\xe9.biom"
    Path(os.fsdecode(name)).touch()
    words = ["pretrain", "--table", os.fsdecode(name), "--output-dir", "{d}/out"]
    variables = {"LC_ALL": "en_US.UTF-8", "PYTHONUTF8": "1"}
    explained = launch(folder, "explain", *words, **variables)
    assert explained.returncode == 0, explained.stderr
    assert os.fsdecode(name) in explained.stdout
    assert os.fsdecode(name) in launch(folder, "--dry-run", *words, **variables).stdout
    json.loads(launch(folder, "explain", "--json", *words, **variables).stdout)


def test_explain_for_another_host(folder: Path) -> None:
    host = captured("mi300a-4apu-spx")
    done = launch(folder, "explain", "pretrain", "--host", str(host), "--json")
    printed = json.loads(done.stdout)
    assert printed["plan"]["image"] == "rocm72"
    assert [path[-3:] for path in printed["plan"]["devices"][1:]] == ["128", "136", "144", "152"]
    assert dict(printed["plan"]["variables"])["ROCR_VISIBLE_DEVICES"] == "0,1,2,3"


def test_what_was_captured_is_decided_alike(folder: Path) -> None:
    tree = Tree(folder / "h").cpu().amd(MI300A, 2, minor=128).amd(MI300A, 2, domain=1, minor=136)
    tree.amd_driver("6.10.5")
    tree.recorded(
        environment={"ROCR_VISIBLE_DEVICES": "1"},
        nodes={
            path: {"gid": 44, "group": "video", "mode": 0o660, "access": True}
            for path in ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136")
        },
        user={"uid": 5, "gid": 5, "groups": [44]},
        engines=[{"name": "podman", "path": "/usr/bin/podman", "obstacle": None}],
    )
    with tarfile.open(folder / "h.tar", "w") as archive:
        archive.add(folder / "h", arcname=".")
    outputs = []
    for name in ("h", "h.tar"):
        done = launch(folder, "explain", *RUN, "--host", f"{{d}}/{name}", "--json")
        printed = json.loads(done.stdout)
        del printed["host"]["root"]
        outputs.append(printed)
    assert outputs[0] == outputs[1]
    assert outputs[0]["plan"]["engine"] == "podman"
    assert outputs[0]["plan"]["devices"] == ["/dev/kfd", "/dev/dri/renderD136"]


@pytest.mark.parametrize("command", ["explain", "doctor"])
@pytest.mark.parametrize("host", ["/dev/zero", "{d}/fifo"])
def test_a_host_that_never_ends_is_refused(folder: Path, command: str, host: str) -> None:
    os.mkfifo(folder / "fifo")
    words = RUN if command == "explain" else []
    done = launch(folder, command, *words, "--host", host)
    assert done.returncode == 66
    assert "it is not a regular file" in done.stderr
    assert done.stderr.count("\n") == 1


RECORD = {
    "aam": "1", "launch": {"own": {}, "command": "pretrain", "words": [], "folder": "/", "gpus": []}
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({**RECORD, "launch": {}}), "launch.command is not text"),
        (json.dumps({**RECORD, "launch": {**RECORD["launch"], "own": {"--image": 1}}}),  # type: ignore[dict-item]
         "launch.own"),
        (json.dumps({**RECORD, "launch": {**RECORD["launch"], "folder": "/\0"}}), "NUL"),  # type: ignore[dict-item]
        (json.dumps({**RECORD, "inputs": {"--table": {"path": "/t"}}}), "inputs.--table lacks"),
        (json.dumps({**RECORD, "launch": {**RECORD["launch"], "folder": "/no/such"}}),  # type: ignore[dict-item]
         "The folder of the run is gone"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_one_sentence(folder: Path, content: str, named: str) -> None:
    (folder / "run.json").write_text(content)
    done = launch(folder, "replay", "{d}/run.json")
    assert done.returncode == 66, done.stderr
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"cpu": 5}', "cpu is not a mapping"),
        ('{"cpu": {"sif": 5}}', "cpu.sif is not a mapping"),
        ('{"cpu": {"podman": {"reference": "a\\u0000b"}}}', "NUL"),
        (
            '{"cpu": {"podman": {"reference": "a", "labels": [1]}}}',
            "cpu.podman.labels is not a mapping",
        ),
        ('{"cpu": {"podman": {"reference": 5}}}', "not text"),
    ],
)
def test_a_damaged_list_of_images_is_one_sentence(folder: Path, content: str, named: str) -> None:
    (folder / "images.json").write_text(content)
    for words in (["explain", *RUN], ["doctor"], ["images"]):
        done = launch(folder, *words, AAM_IMAGE_DIR=str(folder))
        assert done.returncode == 78, (words, done.stderr)
        assert named in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_unreadable_capture(folder: Path) -> None:
    done = launch(folder, "explain", *RUN, "--host", "{d}/t.biom")
    assert done.returncode == 66
    assert done.stderr.startswith("aam-launch: A capture that cannot be read")


# --- errors that have a status of their own


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ([*RUN, "--image", "rocm663"], 64, "did you mean 'rocm63'"),
        ([*RUN, "--image", "cpu"], 69, "none of apptainer"),
        ([*RUN, "--image", "/no/such.sif"], 66, "does not exist"),
        ([*RUN, "--runtime", "podman"], 69, "no podman on PATH"),
        ([*RUN, "--runtime", "podmn"], 78, "did you mean 'podman'"),
        ([*RUN, "--tree", "{d}/none.nwk"], 66, "No file for --tree"),
        ([*RUN, "--site", "nowhere"], 78, "No such site"),
        (["pretrain", "--table", "{d}/t.biom", "--output-dir", "{d}/t.biom/x"], 73, "is a file"),
        (["replay"], 64, "Nothing to replay"),
        (["replay", "{d}/none.json"], 66, "No record of a run"),
        (["completion", "tcsh"], 64, "give bash or zsh or fish"),
        (["doctor", "x"], 64, "A value without an option: 'x'"),
        (["doctor", "--capture", "/proc/x.tar"], 73, "cannot be written"),
    ],
)
def test_causes_and_statuses(folder: Path, words: list[str], status: int, sentence: str) -> None:
    done = launch(folder, *words)
    assert done.returncode == status, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_damaged_list_of_images(folder: Path) -> None:
    (folder / "images.json").write_text("{")
    done = launch(folder, *RUN, AAM_IMAGE_DIR=str(folder))
    assert done.returncode == 78
    assert "A damaged list of images" in done.stderr


# --- doctor and images


def test_doctor_here(folder: Path) -> None:
    done = launch(folder, "doctor", PYTHONPATH=f"{ROOT}")
    assert done.returncode == 0, done.stderr
    assert "No engine can start a container: none is on PATH" in done.stdout
    assert "Variables that break images are set: PYTHONPATH" in done.stdout


def test_doctor_asks_engines_for_their_versions(folder: Path) -> None:
    for name, answer in (("apptainer", "echo apptainer version 1.4.5-2"), ("podman", "exit 1")):
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)
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
    assert "usermod -aG render" in findings[0]["remedy"]
    assert any(f["cause"] == "Several variables select GPUs" for f in findings)


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
    assert (explained.returncode, explained.stdout) == (status, "")
    assert reason in explained.stderr
    done = launch(folder, "doctor", *host)
    assert done.returncode == status
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert line.partition("refused: ")[2] == explained.stderr.partition(": ")[2].rstrip()


def test_doctor_fails_where_native_lacks_libraries(folder: Path) -> None:
    """Another interpreter with the launcher, PyYAML and no library of the model."""
    python = folder / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    yaml = Path(importlib.util.find_spec("yaml").origin).parents[1]  # type: ignore[union-attr, arg-type]
    (folder / "lib").mkdir()
    for name in ("yaml", "_yaml"):
        if (yaml / name).exists():
            (folder / "lib" / name).symlink_to(yaml / name)
    environment = {"PYTHONPATH": f"{ROOT}:{folder}/lib", "HOME": str(folder), "PATH": str(folder)}
    for words in (["doctor"], ["explain", *RUN]):
        done = subprocess.run(
            [python, "-m", "launcher.cli", *(word.format(d=folder) for word in words)],
            capture_output=True, text=True, env=environment, cwd=folder, check=False,
        )  # fmt: skip
        assert done.returncode == 69
        assert "There is nothing to run aam with" in done.stdout + done.stderr


def test_a_capture_comes_back(folder: Path) -> None:
    done = launch(folder, "doctor", "--capture", "{d}/me.tar", SLURM_JOB_ID="5", SECRET="s3cret")
    assert done.returncode == 0, done.stderr
    printed = json.loads(launch(folder, "doctor", "--host", "{d}/me.tar", "--json").stdout)
    assert printed["host"]["slurm"]["job"] == "5"
    assert printed["host"]["kernel"] == os.uname().release
    assert b"s3cret" not in (folder / "me.tar").read_bytes()


def test_images(folder: Path) -> None:
    (folder / "rocm63.sif").touch()
    done = launch(folder, "images", "--json", AAM_IMAGE_DIR=str(folder))
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["rocm63"]["places"] == [f"{folder}/rocm63.sif"]
    assert rows["cpu"]["fits"]
    assert "rocm62" in launch(folder, "images").stdout


# --- replay


def test_a_run_can_be_replayed(folder: Path, study_dir: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (folder / name).write_bytes((study_dir / name).read_bytes())
    words = ["pretrain", "--table", "table.biom", "--tree", "tree.nwk", "--output-dir", "run",
             "--epochs", "1", "--embedding-dim", "8", "--attention-heads", "2"]  # fmt: skip
    done = launch(folder, *words, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "run/run.json").read_text())
    assert record["launch"]["engine"] == "native"
    assert record["launch"]["words"] == words[1:]

    again = launch(folder, "replay", "{d}/run", "--output-dir", "again", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert "--output-dir again" in again.stdout
    assert "--output-dir run" not in again.stdout

    (folder / "tree.nwk").write_text("(a,b);")
    changed = launch(folder, "replay", "{d}/run/run.json", "--dry-run")
    assert changed.returncode == 69
    assert "The input of --tree has changed" in changed.stderr
    forced = launch(folder, "replay", "{d}/run", "--dry-run", "--force")
    assert forced.returncode == 0, forced.stderr
    assert "has changed" in forced.stderr
    (folder / "tree.nwk").unlink()
    assert "is gone" in launch(folder, "replay", "{d}/run").stderr


def test_commands_without_a_run_folder_are_replayed_too(folder: Path, study_dir: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (folder / name).write_bytes((study_dir / name).read_bytes())
    words = ["unifrac", "--table", "table.biom", "--tree", "tree.nwk", "--output", "u.tsv"]
    assert launch(folder, *words, OMP_NUM_THREADS="1").returncode == 0
    first = (folder / "u.tsv").read_text()
    place = folder / "u.tsv.run.json"
    record = json.loads(place.read_text())
    assert record["launch"]["engine"] == "native"
    assert record["launch"]["engine_version"] == record["versions"]["python"]
    assert set(record["inputs"]) == {"--table", "--tree"}

    again = launch(folder, "replay", str(place), "--output", "v.tsv", OMP_NUM_THREADS="1")
    assert again.returncode == 0, again.stderr
    assert (folder / "v.tsv").read_text() == first

    record["launch"] |= {"kernel": "5.0", "engine_version": "3.0"}
    place.write_text(json.dumps(record))
    other = launch(folder, "replay", str(place), "--dry-run")
    assert other.returncode == 0, other.stderr
    assert "Another kernel: 5.0 then" in other.stderr
    assert "Another engine version: 3.0 then" in other.stderr
    (folder / "v.tsv.run.json").unlink()
    assert launch(folder, "replay", "{d}", "--dry-run").returncode == 0  # the only one there
    place.with_name("x.run.json").touch()
    assert "Several runs left a record" in launch(folder, "replay", "{d}").stderr


def test_a_run_that_was_not_launched(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"aam": __version__, "launch": None}))
    with pytest.raises(MissingInput, match="did not start"):
        replay.read(tmp_path)


# --- engines


def engine(folder: Path, name: str, answer: str = "") -> Path:
    """Put a program on PATH that notes each start and answers as `name --version` does."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho $1 >> '{folder}/started'\necho {answer or name}\n")
    program.chmod(0o755)
    return program


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
    words = (b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC", b"01", b"02", name)
    header = HEADER.pack(*words, *sizes)
    table = b"".join(
        DESCRIPTOR.pack(0x4004, 1, 1, 0, 0, offset, length, length).ljust(DESCRIPTOR_SIZE, b"\0")
        for _ in range(total)
    )
    path.write_bytes(header + table + b"x" * 100)
    return path


def test_a_whole_sif(tmp_path: Path) -> None:
    check_sif(str(sif(tmp_path / "a.sif")))


def test_a_sif_has_the_id_of_its_build(tmp_path: Path) -> None:
    assert id_of(sif(tmp_path / "a.sif")) == f"sif:{'75' * 16}"
    assert id_of(sif(tmp_path / "none.sif", name=b"\0" * 16)) is None
    (tmp_path / "short.sif").write_bytes(b"#!")
    assert id_of(tmp_path / "short.sif") is id_of(tmp_path / "absent.sif") is None


def test_an_image_named_by_its_path_is_known_by_its_id(folder: Path) -> None:
    """The record has its id, so that a replay notices another build in the same place."""
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
