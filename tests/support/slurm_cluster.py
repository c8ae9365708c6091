"""Slurm cluster for tests: its installation, jobs, and the image that they run in.

The environment variable AAM_SLURM names the folder of a Slurm of two nodes on this machine, whose
SLURM_CONF is DIR/slurm.conf; AAM_ENGINES names the container engines (tests.support.engines).
Jobs are submitted by the ordinary user `aamtest`.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from aam.network.training.checkpoints import read_tensors
from tests.support.engines import LAUNCH, USER, Engines
from tests.support.images import cpu_sif, workshop

SITE = """title: the test cluster
partition: gpu
nodes: 2
max_nodes: 2
max_time: "30"
gpus_per_node: 4
gpu_request: "--gpus-per-node={gpus}"
whole_nodes: yes
stage_most_gb: 1
"""
TINY = ("--embedding-dim", "8", "--attention-heads", "2", "--attention-layers", "1",
        "--batch-size", "8", "--patience", "0", "--dropout", "0", "--device", "cpu")  # fmt: skip
PATIENCE = 240
LONG = 40
"""Epochs of a run that a test interrupts."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "")


@dataclass(frozen=True)
class Cluster:
    """A Slurm, a folder that its nodes see, and a study in it."""

    state: Path
    folder: Path
    engines: Engines

    def launch(
        self, *words: object, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `aam-launch` as the test user in the folder."""
        variables = {
            "HOME": str(self.folder / "home"), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8",
            "PYTHONPATH": f"{self.engines.folder}/code", "SLURM_CONF": f"{self.state}/slurm.conf",
            "AAM_IMAGE_DIR": str(self.engines.images), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        named = [f"{name}={value}" for name, value in variables.items()]
        command = ["runuser", "-u", USER, "--", "env", "-i", *named, *LAUNCH]
        return subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, check=False,
            timeout=PATIENCE, cwd=folder or self.folder,
        )  # fmt: skip

    def submit(self, *words: object, time: str = "20") -> Job:
        own = ["--site", self.folder / "site.yaml", "--image", "cpu", "--time", time]
        done = self.launch("submit", *own, *words)
        assert done.returncode == 0, done.stderr
        number = re.match(r"Job (\d+):", done.stdout)
        log = re.search(r"tail -F (.*)$", done.stdout, re.MULTILINE)
        assert number
        assert log
        return Job(self, number[1], Path(*shlex.split(log[1])))

    def pretraining(self, out: str, epochs: int) -> tuple[object, ...]:
        study = self.folder / "study"
        return ("pretrain", "--table", study / "table.biom", "--tree", study / "tree.nwk",
                "--output-dir", self.folder / out, "--epochs", epochs, *TINY)  # fmt: skip

    def slurm(self, *words: str) -> str:
        """Run one of Slurm's programs as root."""
        variables = {**os.environ, "SLURM_CONF": f"{self.state}/slurm.conf"}
        done = subprocess.run(words, capture_output=True, text=True, env=variables, check=False)
        return done.stdout

    @contextmanager
    def without(self, node: str) -> Iterator[None]:
        """Kill the daemon of a node; at the end it is there again, and used again."""
        os.kill(int((self.state / f"slurmd.{node}.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            conf = str(self.state / "slurm.conf")
            subprocess.run(["slurmd", "-f", conf, "-N", node], check=True)
            self.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def jobs(self) -> dict[str, str]:
        return {row["job"]: row["state"] for row in self.rows()}

    def rows(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = json.loads(self.launch("--json", "jobs").stdout)
        return rows


@dataclass(frozen=True)
class Job:
    cluster: Cluster
    number: str
    log: Path

    @property
    def state(self) -> str:
        shown = self.cluster.slurm("scontrol", "show", "job", self.number)
        found = re.search(r"JobState=(\w+)", shown)
        return found[1] if found else ""

    @property
    def exit_status(self) -> int:
        found = re.search(
            r"ExitCode=(\d+):", self.cluster.slurm("scontrol", "show", "job", self.number)
        )
        assert found
        return int(found[1])

    @property
    def node(self) -> str:
        shown = self.cluster.slurm("scontrol", "show", "job", self.number)
        found = re.search(r"BatchHost=(\S+)", shown)
        assert found, shown
        return found[1]

    @property
    def folder(self) -> Path:
        """The folder of the job on the disk of its nodes, which is one disk here."""
        user = pwd.getpwnam(USER).pw_uid
        return Path(f"/tmp/aam-{user}/{self.number}-{os.uname().nodename}")

    @property
    def started(self) -> bool:
        return bool(ranks(self))

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def signal(self, name: str) -> None:
        """Send a signal to the batch process, as Slurm does before the limit (USR1)."""
        self.cluster.slurm("scancel", f"--signal={name}", "--batch", self.number)

    def ended(self, quiet: float = PATIENCE) -> str:
        """Wait for its end and return its last state; a job that was queued again is hurried.

        Args:
            quiet: seconds that it may run without writing output.
        """
        hurried = False

        def over() -> bool:
            nonlocal hurried
            pending = self.state == "PENDING"
            if pending and not hurried:
                self.hurry()
            hurried = pending
            return self.state in ENDED

        until(over, self, quiet)
        return self.state

    def hurry(self) -> None:
        """Start a job that was queued again soon; Slurm waits two minutes by itself.

        Within the second of the requeue its credential is revoked, and Slurm ends the job.
        """
        self.cluster.slurm("scontrol", "update", f"JobId={self.number}", "StartTime=now+2")

    def until_epoch(self, run: Path, epoch: int) -> None:
        """Wait until the run has as many rows of metrics."""
        until(lambda: rows(run) >= epoch, self)

    def processes(self) -> list[int]:
        """Return the processes of the job on this machine, Slurm's own of its steps first.

        As long as one of those lives it tells Slurm how the others ended; a dead node does not.
        """
        steps, found = [], []
        for place in Path("/proc").iterdir():
            if not place.name.isdigit():
                continue
            try:
                line = (place / "cmdline").read_bytes()
                variables = (place / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if line.startswith(f"slurmstepd: [{self.number}.".encode()):
                steps.append(int(place.name))
            elif f"SLURM_JOB_ID={self.number}".encode() in variables:
                found.append(int(place.name))
        return sorted(steps) + sorted(found)


def until(true: Callable[[], bool], job: Job, quiet: float = PATIENCE) -> None:
    """Wait for something that a job does; longer while it waits for a node or writes output."""
    now = begin = last = time.monotonic()
    before = ""
    while not true():
        now = time.monotonic()
        state, output = job.state, job.output
        last = now if state == "PENDING" or output != before else last
        before = output
        assert now < min(last + quiet, begin + 4 * PATIENCE), f"{state}\n{job.output}"
        time.sleep(1)


def rows(run: Path) -> int:
    try:
        return len((run / "metrics.csv").read_text().splitlines()) - 1
    except OSError:
        return 0


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the last checkpoint."""
    content = read_tensors(run / "checkpoints/last.ckpt")
    found: dict[str, torch.Tensor] = content["state_dict"]
    return found


def ranks(job: Job) -> list[int]:
    found = []
    for number in job.processes():
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        own = words[2:3] == [b"job"]
        if not own and (words[0].endswith(b"python") or b"/opt/aam/bin/aam" in words[:2]):
            found.append(number)
    return found


def same(one: Path, other: Path) -> None:
    """Check that two runs ended with the same weights, bit for bit."""
    expected, found = weights(one), weights(other)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open(newline="") as stream:
        return [float(row["val_loss"]) for row in csv.DictReader(stream)]


@contextmanager
def exclusive() -> Iterator[None]:
    """Keep the two nodes for the tests of one file; those of another file wait."""
    state = os.environ.get("AAM_SLURM")
    if state is None:
        yield
        return
    with (Path(state) / "tests.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def start(folder: Path) -> Cluster:
    """Return the cluster with an image and a study; skip, or fail in CI, where there is none."""
    state = os.environ.get("AAM_SLURM")
    if state is None and "CI" in os.environ and "AAM_ENGINES" in os.environ:
        pytest.fail("AAM_SLURM names no folder of a Slurm")
    if state is None:
        pytest.skip("AAM_SLURM names no folder of a Slurm")
    engines = workshop()
    cpu_sif()
    from aam.contract.options.commands.studies import Example
    from aam.data.simulation import simulate, write_study

    options = Example(output_dir=folder / "study", samples=36, asvs=90, length=60, richness=25,
                       depth=900, subjects=12, seed=7)  # fmt: skip
    write_study(simulate(options), options)
    (folder / "site.yaml").write_text(SITE)
    (folder / "home").mkdir()
    for place in (folder, folder / "home"):
        shutil.chown(place, USER)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return Cluster(Path(state), folder, engines)
