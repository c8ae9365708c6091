"""Task of a job: where this process stands in it, by Slurm's variables, and its folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.contract.errors import AamError
from aam.contract.json_files import read_json
from launcher import config
from launcher.plan.request import Request
from launcher.plan.settings import LaunchSettings
from launcher.slurm.job_file import JobFile


@dataclass(frozen=True)
class Task:
    """This process in its job, and what it runs.

    Attributes:
        job: the job file.
        request: the command, with the options of the task of an array.
        settings: of the launch on this node.
        number: SLURM_JOB_ID; each task of an array has its own (`queue.job_of` names the task).
        rank: number of the process among all of them, and
        local_rank: among those of its node.
        node: number of the node, of
        nodes: so many.
        size: number of ranks.
        start: 0 for the first start of the job, 1 after it was queued again, ...
        private: folder on the disk of the node: home, caches, copies, stop file.
        shared: folder beside the job file, through which the nodes exchange facts.
    """

    job: JobFile
    request: Request
    settings: LaunchSettings
    number: str
    rank: int
    local_rank: int
    node: int
    nodes: int
    size: int
    start: int
    private: Path
    shared: Path

    @property
    def first(self) -> bool:
        """Whether this is rank 0, on the node where the batch script runs."""
        return self.rank == 0

    @property
    def stop_file(self) -> Path:
        """The file of the stop request; that of the first node counts."""
        return self.private / "stop"

    @property
    def ready_file(self) -> Path:
        """The file that the first rank of a node leaves when the others may start."""
        return self.private / f"ready-{self.start}-{self.node}"

    @property
    def status_file(self) -> Path:
        """The file in which the rank that fails first leaves its exit status."""
        return self.shared / "status"

    @property
    def run_folder(self) -> Path | None:
        """The folder of a command that can be resumed, else None."""
        given: Path | None = self.request.given.get("--output-dir")
        return given if self.request.option("--resume-from") else None

    @property
    def local_run(self) -> Path | None:
        """The run folder on the disk of the node, which is copied to the shared one.

        None without staging, in the launcher's own environment, where nothing can be mounted, and
        where several jobs write to the run folder.
        """
        copied = self.job.of_site.number("stage_most_gb") and self.job.image.name is not None
        several_jobs = self.request.option("--trials-only") is not None
        return self.private / "run" if self.run_folder and copied and not several_jobs else None

    @property
    def continues(self) -> bool:
        """Whether this start goes on with the run that an earlier start of the job began."""
        if self.start == 0 or self.run_folder is None:
            return False
        try:
            expected: dict[str, Any] = {"host": {"job": str | None}}
            host = read_json(self.run_folder / "run.json", expected, "run record")["host"]
        except AamError:
            return False
        return bool(host["job"] == self.number)


def task_of(job: JobFile, file: Path, variables: Mapping[str, str]) -> Task:
    """Return the task that this process is.

    Args:
        job: content of `file`.
        variables: the environment, with Slurm's variables (srun(1), "OUTPUT ENVIRONMENT").

    Raises:
        AamError: the command line of the job is wrong.
    """
    numbers = {name: int(variables.get(f"SLURM_{name}") or default) for name, default in (
        ("PROCID", 0), ("LOCALID", 0), ("NODEID", 0), ("NNODES", 1), ("STEP_NUM_TASKS", 1),
        ("RESTART_COUNT", 0))}  # fmt: skip
    number = variables["SLURM_JOB_ID"]
    settings = job.node_settings({**variables, **config.who(variables)})
    name = os.uname().nodename
    return Task(
        job=job,
        request=job.request(variables),
        settings=settings,
        number=number,
        rank=numbers["PROCID"],
        local_rank=numbers["LOCALID"],
        node=numbers["NODEID"],
        nodes=numbers["NNODES"],
        size=numbers["STEP_NUM_TASKS"],
        start=numbers["RESTART_COUNT"],
        private=Path(config.private_folder(settings, os.geteuid(), name, number)),
        shared=file.with_name(f"{file.stem}-{number}"),
    )
