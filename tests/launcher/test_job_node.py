"""Node of a job before its ranks start: topology, copies of inputs, predicted memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate, UsageError
from launcher import config
from launcher.detect import detect
from launcher.plan.inputs import Request
from launcher.slurm import checks, node
from launcher.slurm.site import Site
from tests.support.hosts import MI300A, Tree
from tests.support.launches import parse, program
from tests.support.submissions import ROOT, SITE, WORDS, queued


def test_each_gpu_has_the_cpus_of_its_numa_node(tmp_path: Path) -> None:
    """On MI300A all GPUs have one location_id, and only the domain differs."""
    tree = Tree(tmp_path).cpu()
    for domain in range(4):
        tree.amd(MI300A, 2, domain=domain)
    sys = tmp_path / "sys"
    addresses = sorted(path.name for path in (sys / "bus/pci/devices").iterdir())
    for number, address in enumerate(addresses):
        (sys / f"bus/pci/devices/{address}/numa_node").write_text(f"{number}\n")
        folder = sys / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{2 * number}-{2 * number + 1},{96 + number}\n")
    found = detect(tmp_path).gpus
    assert [gpu.pci for gpu in found] == addresses
    near = [node.cpus_near(gpu.pci, sys) for gpu in found]
    assert near == [{2 * number, 2 * number + 1, 96 + number} for number in range(4)]
    assert node.cpus_near("0000:00:00.0", tmp_path / "none") == set()


def test_interfaces_are_found_in_the_order_of_the_patterns(tmp_path: Path) -> None:
    for name in ("lo", "eth0", "hsi0", "hsn1", "hsn0"):
        (tmp_path / "class/net" / name).mkdir(parents=True)
    assert node.interfaces(["hsn*", "hsi*"], tmp_path) == ["hsn0", "hsn1"]
    assert node.interfaces(["ib*"], tmp_path) == []


def test_the_network_is_configured_unless_the_user_has_done_so(tmp_path: Path) -> None:
    (tmp_path / "class/net/hsn0").mkdir(parents=True)
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "librccl-net.so").touch()
    found = node.network({}, ["hsn*"], [str(plugin)], tmp_path)
    assert found == {
        "NCCL_SOCKET_IFNAME": "hsn0",
        "GLOO_SOCKET_IFNAME": "hsn0",
        "NCCL_NET_PLUGIN": f"{plugin}/librccl-net.so",
    }
    assert node.network({"NCCL_SOCKET_IFNAME": "eth0"}, ["hsn*"], [], tmp_path) == {
        "GLOO_SOCKET_IFNAME": "hsn0"
    }


# --- staging


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Two files with names that need quoting, and a folder."""
    argv = ["stat", "--file-system", "--format=%T", str(tmp_path)]
    if subprocess.run(argv, capture_output=True, text=True).stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are in memory here, and nothing is staged to memory")
    paths = [tmp_path / "a b", tmp_path / "c,d"]
    for path in paths:
        path.write_text(path.name)
    (tmp_path / "folder").mkdir()
    return [*paths, tmp_path / "folder"]


def test_files_are_copied_once_and_folders_are_not(inputs: list[Path], tmp_path: Path) -> None:
    copies = node.stage(inputs, tmp_path / "staged", 1)
    assert [copy.read_text() for copy in copies.values()] == ["a b", "c,d"]
    assert list(copies) == inputs[:2]
    inodes = [copy.stat().st_ino for copy in copies.values()]
    # Another rank of the node, and the next start of the job, use the same copies.
    again = node.stage(inputs, tmp_path / "staged", 1)
    assert again == copies
    assert [copy.stat().st_ino for copy in again.values()] == inodes
    inputs[1].write_text("c,d and more")
    changed = node.stage(inputs, tmp_path / "staged", 1)
    assert changed[inputs[1]].read_text() == "c,d and more"


def test_inputs_that_are_too_large_stay(
    inputs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with inputs[0].open("r+b") as stream:
        stream.truncate(2 * node.GB)
    assert node.stage(inputs, tmp_path / "staged", 1) == {}
    assert "inputs of 2 GB are not copied; --stage is 1 GB" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_that_is_too_small_keeps_the_inputs_where_they_are(
    inputs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4")
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    with image.open("wb") as stream:
        stream.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no loop device")
    try:
        inputs[0].write_bytes(bytes(8 << 20))
        assert node.stage(inputs, disk / "staged", 1) == {}
        assert "they are not copied" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_copy_that_cannot_be_written_is_named(inputs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    folder.mkdir()
    facts = inputs[0].stat()
    (folder / f"0-{facts.st_size}-{facts.st_mtime_ns}.part").mkdir()
    with pytest.raises(CannotCreate, match="An input cannot be staged: '.*a b' to"):
        node.stage(inputs, folder, 1)


# --- memory


PROGRAM = (sys.executable, str(ROOT / "launcher"))


def site(folder: Path, gigabytes: int) -> Site:
    path = folder / f"site-{gigabytes}.yaml"
    path.write_text(f"{SITE}gpu: MI210\ngpu_memory_gb: {gigabytes}\n")
    return config.site(str(path))


def training(study_dir: Path, *more: str) -> Request:
    table, tree = study_dir / "table.biom", study_dir / "tree.nwk"
    sizes = ("--embedding-dim", "32", "--attention-layers", "1")
    return parse(
        ["pretrain", "--table", str(table), "--tree", str(tree), "--output-dir", "run", *sizes,
         "--runtime", "native", *more]
    )  # fmt: skip


@pytest.mark.slow
def test_a_job_that_does_not_fit_ends_before_its_ranks_start(
    study_dir: Path, tmp_path: Path
) -> None:
    """1 GiB of driver and libraries, and a small network; a restarted job has fitted before."""
    program(tmp_path / "bin/srun", f"echo $SECRET >>{tmp_path}/started")
    variables = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path),
                 "TMPDIR": str(tmp_path),
                 "SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "4"}  # fmt: skip

    def job(gigabytes: int, *own: str, **more: str) -> subprocess.CompletedProcess[str]:
        place = site(tmp_path, gigabytes) and tmp_path / f"site-{gigabytes}.yaml"
        request = training(study_dir, "--distributed")
        argv = [*PROGRAM, "job", *own, "--site", str(place), "--runtime", "native", *request.argv]
        return subprocess.run(argv, capture_output=True, text=True, env={**variables, **more},
                              check=False, cwd=tmp_path)  # fmt: skip

    refused = job(1)
    assert refused.returncode == 64, refused.stderr
    _, problem, last = refused.stderr.splitlines()
    assert "The job does not fit into the memory of a GPU: 1.1 GB predicted" in problem
    assert "MI210 has 1 GB" in problem and "--no-memory-check" in problem
    assert last == "aam-job: ended with status 64"
    assert not (tmp_path / "started").exists()
    assert not list(tmp_path.glob("aam-*/7-*"))
    fits = (job(2), job(1, "--no-memory-check"), job(1, SLURM_RESTART_COUNT="1"))
    assert [done.returncode for done in fits] == [0, 0, 0], [done.stderr for done in fits]
    assert len((tmp_path / "started").read_text().splitlines()) == 3


def printing(folder: Path, text: str) -> tuple[str, ...]:
    return (str(program(folder / "launcher", text)),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo 'aam: The table is damaged.' >&2; exit 65", "aam: The table is damaged;"),
        ("exit 3", "it ended with status 3;"),
        ("echo hello", "is not predicted: "),
        ("echo '{}'", "it printed no prediction;"),
    ],
)
def test_a_job_goes_on_where_its_memory_is_not_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    program = printing(tmp_path, text)
    checks.require_memory(training(tmp_path), 1, site(tmp_path, 1), program)
    line = capsys.readouterr().err
    assert line.startswith("aam-job: the memory of the job is not predicted: ")
    assert sentence in line
    assert line.endswith("`aam-launch memory pretrain` with the same options shows why\n")
    checks.require_memory(training(tmp_path), 1, site(tmp_path, 1), ("/no/such",))
    assert "No such file or directory" in capsys.readouterr().err


def test_values_of_env_are_in_no_command_line_of_a_prediction(tmp_path: Path) -> None:
    program = printing(tmp_path, f'echo "$@ has $TOKEN" >{tmp_path}/seen')
    request = training(tmp_path, "--env", "TOKEN=s3cret", "--env", "HOME")
    checks.require_memory(request, 1, site(tmp_path, 1), program)
    seen = (tmp_path / "seen").read_text()
    assert "--env=TOKEN" in seen and "--env=HOME" in seen
    assert seen.endswith(" has s3cret\n") and seen.count("s3cret") == 1


@pytest.mark.parametrize(
    ("command", "gigabytes", "predicted"),
    [
        ("pretrain", 16, True),
        ("pretrain", 0, False),  # the memory of the GPUs is unknown
        ("pretrain --device cpu", 16, False),
        ("pretrain --batch-size auto", 16, False),
        ("pretrain --asv-chunk auto", 16, False),
        ("train --members transformer", 16, True),
        ("train --members kernel", 16, False),
        ("predict", 16, False),
    ],
)
def test_networks_of_given_sizes_on_a_gpu_are_predicted(
    tmp_path: Path, command: str, gigabytes: int, predicted: bool
) -> None:
    name, *more = command.split()
    required = {
        "pretrain": ["--table", "t", "--tree", "n", "--output-dir", "run"],
        "train": ["--table", "t", "--metadata", "t", "--metadata-column", "c", "--output-dir", "r"],
        "predict": ["--table", "t", "--model", "m", "--output", "o"],
    }
    request = parse([name, *required[name], *more])
    needed = json.dumps({"needed": 17 * 10**9})
    program = printing(tmp_path, f"touch {tmp_path}/predicted; echo '{needed}'")
    refused = pytest.raises(UsageError) if predicted else nullcontext()
    with refused:
        checks.require_memory(request, 1, site(tmp_path, gigabytes), program)
    assert (tmp_path / "predicted").exists() == predicted


def test_a_submission_predicts_nothing(place: Path) -> None:
    """A login node is shared; the job predicts in its first second."""
    with (place / "site.yaml").open("a") as stream:
        stream.write("gpu_memory_gb: 1\n")
    assert "memory" not in queued(place, *WORDS)
    assert " --no-memory-check " in queued(place, *WORDS, "--overwrite", "--no-memory-check")
