"""The commands of docs/cosmos_quickstart.md, in their order, on the test cluster.

They are taken from the code blocks of the document and run in one shell of an ordinary user, as
they stand. What is replaced is the machine: /cosmos is a folder here, Slurm has a partition
`cluster`, `singularity` is Apptainer, `module` a function, and the study is small. The repository's
site `cosmos` describes this cluster: it has no GPU but those that Slurm counts, and names the image
`rocm63`, for the processor, which is built from the lock of `cpu`, whose PyTorch the base image
has. Of the acceptance some short parts are measured.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from aam.stack.acceptance_run import read
from tests.support.engines import ROOT, USER, open_folder
from tests.support.images import base_with_pytorch
from tests.support.slurm_cluster import Cluster, Job, exclusive, rows, start

pytestmark = [pytest.mark.slurm, pytest.mark.container, pytest.mark.slow, pytest.mark.nightly]

COSMOS = Path("/cosmos")
SHORT = " --device cpu --minutes 10 --parts host launch nodes"
AGAIN = "--resume-from auto --epochs 5"
"""Continues a run that was stopped after its second epoch, to a near end."""

HOME = COSMOS / "nfs/home" / USER
NOT_CLONED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", "__pycache__", "*.egg-info", "demo"
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if COSMOS.exists():
        pytest.fail(f"'{COSMOS}' is there already, and the test makes it")
    try:
        with open_folder("quickstart") as folder, exclusive():
            cluster = start(folder)
            cluster.slurm("scontrol", "create", "PartitionName=cluster", "Nodes=ALL", "State=UP")
            yield cluster
            cluster.slurm("scontrol", "delete", "PartitionName=cluster")
    finally:
        shutil.rmtree(COSMOS, ignore_errors=True)


def prepare(cluster: Cluster) -> None:
    """Make what the machine and the user have before the first command."""
    repository = cluster.folder / "repository"
    shutil.copytree(ROOT, repository, ignore=NOT_CLONED)
    arguments = {"BASE": base_with_pytorch(), "SNAPSHOT": "base", "TORCH": "2.13.0+cpu",
                 "TORCH_INDEX": "pypi"}  # fmt: skip
    site = {
        "title": "the test cluster in the place of SDSC Cosmos",
        "partition": "cluster", "nodes": 2, "max_nodes": 2, "max_time": "24:00:00",
        "whole_nodes": True, "gpus_per_node": 4, "modules": ["singularitypro", "rocm"],
        "runtime": "singularity", "shared": [str(COSMOS)], "home": f"{COSMOS}/nfs/home",
        "image_dir": f"{COSMOS}/vast/scratch/$USER/containers", "image": "rocm63",
        "images": {"rocm63": {"vendor": "cpu", "room": [5, 1], "arguments": arguments}},
    }  # fmt: skip
    (repository / "launcher/sites/cosmos.yaml").write_text(yaml.safe_dump(site))
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    locks = repository / "containers/locks"
    shutil.copy(locks / "cpu.txt", locks / "rocm63.txt")
    for argv in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *argv], check=True)
    subprocess.run(["chown", "-R", f"{USER}:", str(repository)], check=True)
    for place in (HOME, COSMOS / "vast/scratch" / USER):
        place.mkdir(parents=True)
        shutil.chown(place, USER, USER)


def commands() -> list[str]:
    """Return the commands of the document's shell blocks, each with its continued lines."""
    text = (ROOT / "docs/cosmos_quickstart.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]


class Shell:
    """A shell of the test user, which keeps its folder and its variables between commands."""

    def __init__(self, cluster: Cluster) -> None:
        variables = {
            "HOME": str(HOME), "USER": USER, "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin",
            "SLURM_CONF": f"{cluster.state}/slurm.conf", "OMP_NUM_THREADS": "1",
            "AAM_REPOSITORY": str(cluster.folder / "repository"),
            **{k: v for k, v in os.environ.items() if k.startswith("PIP_")},
        }  # fmt: skip
        named = [f"{name}={value}" for name, value in variables.items()]
        self.process = subprocess.Popen(
            ["runuser", "-u", USER, "--", "env", "-i", *named, "bash"], cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.run("module() { echo module $*; }; export -f module")

    def run(self, command: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f'{{ {command}\n}} </dev/null\necho "status=$?"\n')
        self.process.stdin.flush()
        output = ""
        while not (
            status := re.fullmatch(r"status=(\d+)\n", line := self.process.stdout.readline())
        ):
            assert line, f"the shell ended after: {command}\n{output}"
            output += line
        assert status[1] == "0", f"{command}\n{output}"
        return output


def test_every_command_of_the_quickstart(cluster: Cluster) -> None:
    prepare(cluster)
    shell = Shell(cluster)
    submitted = [
        command for command in commands() if re.match(r"aam-launch (submit|acceptance)", command)
    ]
    assert len(submitted) == 5
    images = COSMOS / "vast/scratch" / USER / "containers"
    done: list[Job] = []
    for command in commands():
        if command.startswith("cp table.biom"):
            study = cluster.folder / "study"
            metadata = (study / "metadata.tsv").read_text().replace("\tph\t", "\tage\t")
            for name in ("table.biom", "tree.nwk"):
                shutil.copy(study / name, HOME / "attention-all-microbes")
            (HOME / "attention-all-microbes/metadata.tsv").write_text(metadata)
        output = shell.run(command + SHORT * command.startswith("aam-launch acceptance"))
        if command.startswith("bash slurm/cosmos_setup.sh"):
            assert "module load singularitypro rocm" in output
            assert (images / "rocm63.sif").is_file()
            assert (images / "images.json").is_file()
            assert {p.name for p in HOME.glob("aam-*")} >= {
                "aam-data", "aam-checkpoints", "aam-logs", "aam-containers"
            }  # fmt: skip
            made = (images / "rocm63.sif").stat().st_mtime_ns
            shell.run(command)
            assert (images / "rocm63.sif").stat().st_mtime_ns == made
        if command in submitted:
            done += finished(cluster, output)
            if "aam-job: ended with status 75" in done[-1].output:  # as in section 6
                done += finished(cluster, shell.run(f"{command} {AGAIN}"), whole=True)
    first, one_node, two_nodes, *pairs, predicted = (job.state for job in done)
    assert {one_node, two_nodes, first, predicted} == {"COMPLETED"}
    assert pairs == ["FAILED", "COMPLETED"] * 2  # stopped, and continued
    measured = read(HOME / "aam-checkpoints/acceptance/acceptance.json").runs
    assert {run.nodes: set(run.parts) for run in measured} == {1: {"host", "launch"}, 2: {"nodes"}}
    predictions = (HOME / "aam-data/predictions.tsv").read_text().splitlines()
    assert len(predictions) == 37
    assert predictions[0].startswith("sample-id\tpredicted")


def finished(cluster: Cluster, output: str, whole: bool = False) -> Iterator[Job]:
    """Wait for the end of each job; a run of many epochs is stopped after its second one.

    Args:
        whole: it ends by itself.
    """
    log = re.search(r"^follow\s+tail -F (.*)-\d+\.log$", output, re.MULTILINE)
    assert log, output
    for number in re.findall(r"^Job (\d+):", output, re.MULTILINE):
        job, run = Job(cluster, number, Path(f"{log[1]}-{number}.log")), Path(log[1])
        stopped, end = False, time.monotonic() + 900
        while job.state in ("PENDING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < end, job.output
            if not (whole or stopped) and run.name != "first" and rows(run) >= 2:
                cluster.slurm("scancel", "--signal=USR2", "--batch", number)
                stopped = True
            time.sleep(1)
        print(job.state, job.output)  # pytest shows it where a later command fails
        yield job
