"""Client of Slurm: the only module that runs sbatch, squeue and sinfo."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from subprocess import CompletedProcess

from aam.contract.errors import AamError, Unavailable, UsageError
from launcher import processes

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "RESIZING",
          "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "SIGNALING", "STAGE_OUT")  # fmt: skip
"""States in which a job may still write (squeue(1), "JOB STATE CODES")."""
LONGEST = 60
REQUEUE = 60
"""Seconds within which Slurm ends a job that is queued again."""
REFUSALS: tuple[tuple[tuple[str, ...], type[AamError], str, str], ...] = (
    (("invalid partition",), UsageError, "No such partition", "`sinfo` lists them"),
    (("invalid account",), UsageError, "No such account, or not yours",
     "`sacctmgr show associations user=$USER` lists yours"),
    (("node count", "more processors", "node configuration"), UsageError,
     "More than this cluster has", "`sinfo` shows what there is"),
    (("time limit",), UsageError, "More time than the partition allows", "give less --time"),
    (("contact", "timed out"), Unavailable, "Slurm does not respond", "try again later"),
)  # fmt: skip
"""Phrases of sbatch's messages, and the error, its cause and its remedy."""


@dataclass(frozen=True)
class Queued:
    """State of a job, or of a task of an array, from squeue."""

    job: str
    state: str
    left: str
    reason: str

    @property
    def active(self) -> bool:
        """Whether it may still write."""
        return self.state in ACTIVE


def available() -> bool:
    """Return whether this host has Slurm's programs."""
    return shutil.which("sbatch") is not None


def test(script: str) -> None:
    """Let Slurm check a script without queueing it.

    Raises:
        AamError: Slurm refuses it.
    """
    _sbatch(script, "--test-only")


def submit(script: str, after: str = "", condition: str = "afterok") -> str:
    """Queue a script and return the job's number.

    Args:
        script: of the job.
        after: number of a job that has to end first.
        condition: on that end (sbatch(1), --dependency). afterok: all its tasks have succeeded,
            and this job is cancelled if one fails; afterany: whatever its status.

    Raises:
        AamError: Slurm refuses it.
    """
    depends = [f"--dependency={condition}:{after}", "--kill-on-invalid-dep=yes"] if after else []
    return _sbatch(script, "--parsable", *depends).strip().partition(";")[0]


def queued() -> dict[str, Queued]:
    """Return this user's jobs that Slurm still lists, by number ("12", "12_3").

    Raises:
        Unavailable: Slurm does not respond.
    """
    done = _run(["squeue", "--noheader", "--me", "--states=all", "--array", "--format=%i|%T|%L|%r"])
    if done.returncode != 0:
        remedy = "try again later; `scontrol ping` shows when"
        raise Unavailable("Slurm does not respond", _last(done.stderr), remedy)
    rows = (line.strip().split("|", 3) for line in done.stdout.splitlines())
    return {row[0]: Queued(*row) for row in rows if len(row) == 4}


def job_of(variables: Mapping[str, str]) -> str:
    """Return the number of a job, or of the task of an array, as Slurm's programs take it.

    The last task of an array has the number of the whole array as its SLURM_JOB_ID.

    >>> job_of({"SLURM_JOB_ID": "12"})
    '12'
    >>> job_of({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"})
    '12_3'
    """
    if "SLURM_ARRAY_JOB_ID" in variables:
        return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
    return variables["SLURM_JOB_ID"]


def end_time(variables: Mapping[str, str]) -> float:
    """Return when a job reaches its time limit, in seconds since 1970; 0 if Slurm states no end.

    Args:
        variables: the environment of the job; Slurm 23.02 and later states its end there.
    """
    if variables.get("SLURM_JOB_END_TIME", "").isdecimal():
        return float(variables["SLURM_JOB_END_TIME"])
    try:
        argv = ["squeue", "--noheader", f"--jobs={job_of(variables)}", "--format=%e"]
        done = processes.run(argv, LONGEST, {**variables, "SLURM_TIME_FORMAT": "standard"})
        return datetime.fromisoformat(done.stdout.strip()).timestamp()
    except (OSError, ValueError):  # "N/A", or nothing
        return 0


def requeue(variables: Mapping[str, str]) -> None:
    """Queue a running job again; Slurm ends this process with the job.

    Args:
        variables: the environment of the job.

    Raises:
        Unavailable: Slurm does not respond, or refuses.
    """
    done = _run(["scontrol", "requeue", job_of(variables)])
    if done.returncode != 0:
        raise Unavailable("The job cannot be queued again", _last(done.stderr), "submit it again")
    time.sleep(REQUEUE)


def partitions() -> list[str]:
    """Return the partitions there are."""
    return sorted(set(sinfo("%R")))


def sinfo(field: str, partition: str = "") -> list[str]:
    """Return what sinfo prints of a field (sinfo(1), --format); nothing if it fails.

    Args:
        partition: by default every one.
    """
    chosen = [f"--partition={partition}"] if partition else []
    done = _run(["sinfo", "--noheader", *chosen, f"--format={field}"])
    return done.stdout.split() if done.returncode == 0 else []


OPEN = ("account", "partition", "qos", "reservation", "constraint")
"""Options of sbatch that a variable of the shell may set, if neither command line nor site do."""


def _sbatch(script: str, *options: str) -> str:
    if not available():
        raise Unavailable(
            "There is no Slurm on this host",
            "sbatch is not on PATH",
            "log in where jobs are submitted; --dry-run prints the script",
        )
    # SBATCH_TIMELIMIT and others of the user's shell would outrank the #SBATCH lines (sbatch(1),
    # "INPUT ENVIRONMENT VARIABLES"), and the job would not be the one that --dry-run prints.
    # Without SBATCH_EXPORT the job gets the variables of this process, as of any other start.
    # SLURM_CONF and the like stay: they name the cluster.
    # What the script leaves open, such as an account, may stand in a variable.
    left_open = {f"SBATCH_{name.upper()}" for name in OPEN if f"#SBATCH --{name}=" not in script}
    variables = {
        k: v for k, v in os.environ.items() if k in left_open or not k.startswith("SBATCH_")
    }
    done = _run(["sbatch", *options], script, variables)
    if done.returncode != 0:
        raise _refusal(done.stderr)
    return done.stdout


def _refusal(message: str) -> AamError:
    """Return the error for a message with which sbatch refuses a job."""
    text = " ".join(line.removeprefix("sbatch: error: ") for line in message.splitlines() if line)
    for phrases, error, cause, remedy in REFUSALS:
        if any(phrase in text.lower() for phrase in phrases):
            known = ", ".join(partitions()) if "partition" in phrases[0] else ""
            return error(cause, text, f"there are {known}" if known else remedy)
    return UsageError("Slurm refuses the job", text, "correct what it names")


def _run(
    argv: Sequence[str], text: str = "", variables: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    try:
        return processes.run(argv, LONGEST, variables, text)
    except OSError as error:  # a TimeoutError among them
        remedy = "try again later"
        raise Unavailable("Slurm does not respond", f"{argv[0]}: {error}", remedy) from error


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("slurm_load_jobs error: ") if lines else "no message"
