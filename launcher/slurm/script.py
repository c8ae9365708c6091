"""Job script: the #SBATCH lines, the modules, and the start of `launcher.slurm.job`. Pure.

No text of a user or a site stands in it but as a quoted argument.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from aam import __version__

SRUN = ("srun", "--kill-on-bad-exit=1", "--wait=0")
"""How the ranks are started; the job adds their number."""


@dataclass(frozen=True)
class Allocation:
    """What a job requests of Slurm.

    Attributes:
        name: of the job.
        nodes: how many.
        ranks: processes on each node.
        gpus: GPUs of each node.
        cpus: processors of each rank; 0: those of Slurm's default, or of the whole node.
        time: limit as "24:00:00"; empty: the partition's.
        log: file of the job's output, as sbatch's --output takes it.
        gpu_request: option that requests GPUs, ready to use, or "".
        whole_nodes: the nodes are for this job alone.
        more: further options of sbatch: partition, account, ...
        requeue: Slurm may start it again.
        tasks: number of tasks of an array; 0: no array.
    """

    name: str
    nodes: int = 1
    ranks: int = 1
    gpus: int = 1
    cpus: int = 0
    time: str = ""
    log: str = "%x-%j.out"
    gpu_request: str = ""
    whole_nodes: bool = False
    more: tuple[str, ...] = ()
    requeue: bool = False
    tasks: int = 0

    @property
    def counts(self) -> str:
        """The number of nodes and ranks, for messages."""
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}"
        return f"{nodes}, {self.ranks} rank{'s' * (self.ranks > 1)} each"


def script(
    what: Allocation, about: str, modules: Sequence[str], python: str, code: str, job: str
) -> str:
    """Return the script of a job.

    Args:
        about: what runs where, on one line.
        modules: to load first.
        python: absolute path of the interpreter of the launcher.
        code: folder that holds the package `launcher`.
        job: the job file.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in sbatch_options(what))]
    lines.append(f"# {about}. From aam-launch {__version__}.")
    if modules:
        lines.append("command -v module >/dev/null || . /etc/profile")
        lines.append(f"module load {shlex.join(modules)} || exit 69")
    lines.append(f"python={shlex.quote(python)} code={shlex.quote(code)} job={shlex.quote(job)}")
    lines.append("export PYTHONPATH=$code${PYTHONPATH:+:$PYTHONPATH}")
    hidden = (
        "aam-job: $(hostname) does not see '$file'; install the launcher where all nodes see it"
    )
    lines.append('for file in "$python" "$code/launcher"; do')
    lines.append(f'    [ -e "$file" ] || {{ echo "{hidden}" >&2; exit 69; }}')
    lines.append("done")
    lines.append(f'exec "$python" -m launcher.slurm.job "$job" {shlex.join(SRUN)}')
    return "\n".join(lines) + "\n"


def sbatch_options(what: Allocation) -> list[str]:
    """Return the options of sbatch, each as a line of #SBATCH takes it."""
    options = [f"--job-name={what.name}", *what.more]
    options += [f"--nodes={what.nodes}", f"--ntasks-per-node={what.ranks}"]
    options += [what.gpu_request] if what.gpu_request else []
    options += [f"--cpus-per-task={what.cpus}"] if what.cpus else []
    options += ["--exclusive", "--mem=0"] if what.whole_nodes else []
    options += [f"--time={what.time}"] if what.time else []
    options += [f"--array=0-{what.tasks - 1}"] if what.tasks else []
    options += ["--requeue" if what.requeue else "--no-requeue", "--open-mode=append"]
    options += [f"--output={what.log}"]
    return [_directive(option) for option in options]


def log_file(log: str, number: str) -> str:
    """Return the log of a job, or of the task of an array.

    Args:
        log: as `Allocation.log`.
        number: of the job or task.

    >>> log_file("/runs/100%%job-%j.log", "12"), log_file("out-%A_%a.log", "12_3")
    ('/runs/100%job-12.log', 'out-12_3.log')
    """
    job, _, task = number.partition("_")
    values = {"%%": "%", "%j": job, "%A": job, "%a": task}
    return re.sub("%[%jAa]", lambda found: values[found[0]], log)


def _directive(argument: str) -> str:
    """Return an option as a line of #SBATCH takes it: in double quotes where it has to be."""
    assert argument.isprintable(), argument  # `allocation` has refused others
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", argument):
        return argument
    return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'
