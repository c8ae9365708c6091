"""Client of Slurm: the only module that runs sbatch, squeue, sinfo, scontrol and scancel."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from subprocess import CompletedProcess

import msgspec
from msgspec.structs import replace

from aam.contract.errors import AamError, Unavailable, UsageError
from launcher import system

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "RESIZING",
          "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "SIGNALING", "STAGE_OUT")  # fmt: skip
"""States in which a job may still write (squeue(1), "JOB STATE CODES")."""
LONGEST = 60
REQUEUE = 60  # seconds within which Slurm ends a job that is queued again
SEE_QUEUE = "see `squeue --me`: the job may be queued"


class Unconfirmed(Unavailable):
    """No answer, or an unreadable one: after a submission a job of unknown number may be queued."""


REFUSALS: tuple[tuple[tuple[str, ...], type[AamError], str, str], ...] = (
    (("invalid partition",), UsageError, "No such partition", "`sinfo` lists them"),
    (("invalid account",), UsageError, "No such account, or not yours",
     "`sacctmgr show associations user=$USER` lists yours"),
    (("node count", "more processors", "node configuration"), UsageError,
     "More than this cluster has", "`sinfo` shows what there is"),
    (("time limit",), UsageError, "More time than the partition allows", "give less --time"),
    (("timed out",), Unconfirmed, "Slurm did not respond in time", "try again later"),
    (("contact",), Unavailable, "Slurm does not respond", "try again later"),
)  # fmt: skip
"""Phrases of sbatch's messages, and the error, its cause and its remedy."""
NO_NODE_NOW = "node configuration is not available"
"""What `sbatch --test-only` prints also where plain sbatch queues: while a node is down."""
OPEN = ("account", "partition", "qos", "reservation", "constraint")
"""Options of sbatch that a variable of the shell may set, if neither command line nor site do."""
NUMBER = re.compile(r"(?:Submitted batch job )?([0-9]{1,19})(?:;\S+| on cluster \S+)?\Z")
"""A line of sbatch with the number of a job, with and without --parsable."""
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<hm>\d+)(?::(?P<hms>\d+))?)?"
    r"|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)\Z"
)
"""A time limit as Slurm writes it."""


class Queued(msgspec.Struct, frozen=True):
    """State of a job from squeue."""

    job: str
    state: str
    left: str
    reason: str

    @property
    def active(self) -> bool:
        """Whether it may still write."""
        return self.state in ACTIVE


class Partition(msgspec.Struct, frozen=True):
    """Limits of a partition: `max_time` as Slurm writes it, processors and GPUs of a node."""

    name: str
    default: bool
    max_time: str
    cpus: int
    nodes: int
    max_nodes: float
    gpus: dict[str, int]  # that Slurm counts (GRES), by type; empty: it counts none


def seconds(time: str) -> float:
    """Return a time limit of Slurm in seconds (sbatch(1), --time; slurm.conf(5), MaxTime).

    >>> [seconds(t) for t in ("90", "1:30", "24:00:00", "1-12", "2-0:30", "UNLIMITED")]
    [5400, 90, 86400, 129600, 174600, inf]
    """
    if time.lower() in ("unlimited", "infinite"):
        return math.inf
    match = _TIME.match(time)
    if not match:
        evidence = f"--time '{time}'"
        raise UsageError("Not a time", evidence, "write it as 24:00:00, 1-12 or 90 (minutes)")
    fields = {name: int(value) if value else 0 for name, value in match.groupdict().items()}
    if not match["days"] and not match["c"]:  # minutes and seconds
        return fields["a"] * 60 + fields["b"]
    hours, minutes, secs = (fields[k] for k in (("h", "hm", "hms") if match["days"] else "abc"))
    return fields["days"] * 86400 + hours * 3600 + minutes * 60 + secs


def available() -> bool:
    """Return whether this host has Slurm's programs."""
    return shutil.which("sbatch") is not None


def test(script: str) -> str:
    """Let Slurm check a script without queueing it; return why it would wait, or nothing."""
    try:
        _sbatch(script, "--test-only")
    except UsageError as error:
        if NO_NODE_NOW in error.evidence:  # sbatch itself decides whether there will be one
            return error.evidence
        raise
    return ""


def submit(script: str, after: Sequence[str] = (), condition: str = "afterok") -> str:
    """Queue a script to run after jobs that have to end first; return the job's number.

    The `condition` is one of sbatch(1), --dependency: afterok, or afterany, whatever their status.
    """
    depends = [f"--dependency={condition}:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    try:
        printed = _sbatch(script, "--parsable", *(depends if after else []))
    except Unconfirmed as error:
        raise Unconfirmed(error.cause, error.evidence, SEE_QUEUE) from error
    # Programs in place of sbatch print lines of their own, or leave --parsable out. A number that
    # is no decimal one of this length would become a part of paths.
    lines = map(str.strip, printed.splitlines())
    numbers = {match[1] for match in map(NUMBER.match, lines) if match}
    if len(numbers) != 1:
        evidence = repr(printed.strip()[:200])
        raise Unconfirmed("sbatch printed no job number", evidence, SEE_QUEUE)
    return numbers.pop()


def cancel(numbers: Sequence[str]) -> None:
    """Cancel jobs."""
    done = _run(["scancel", *numbers])
    if done.returncode != 0:
        cause, remedy = "Slurm does not cancel the job", "`aam-launch jobs` lists yours"
        raise UsageError(cause, _last(done.stderr), remedy)


def queued() -> dict[str, Queued]:
    """Return this user's jobs that Slurm still lists, by number."""
    done = _run(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%L|%r"])
    if done.returncode != 0:
        remedy = "try again later; `scontrol ping` shows when"
        raise Unavailable("Slurm does not respond", _last(done.stderr), remedy)
    rows = (line.strip().split("|", 3) for line in done.stdout.splitlines())
    return {row[0]: Queued(*row) for row in rows if len(row) == 4}


def requeue(number: str) -> None:
    """Queue a running job again; Slurm ends this process with the job."""
    done = _run(["scontrol", "requeue", number])
    if done.returncode != 0:
        raise Unavailable("The job cannot be queued again", _last(done.stderr), "submit it again")
    time.sleep(REQUEUE)


def partitions() -> list[Partition]:
    """Return the partitions there are; nothing without a Slurm that responds."""
    if not available():
        return []
    try:
        done = _run(["sinfo", "--all", "--noheader", "--format=%P|%l|%c|%D|%s|%G"])
    except Unavailable:  # sbatch will say so
        return []
    read = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, *facts = line.strip().split("|")
        if len(facts) == 5:
            numbers = [re.match(r"\d+", text) for text in (facts[1], facts[2])]
            cpus, nodes = (int(match[0]) if match else 0 for match in numbers)
            most = facts[3].rpartition("-")[2]  # "1-4", "1-infinite"
            # "gpu:v100:4(S:0-1)"
            gpus = re.findall(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)", facts[4])
            read.append(Partition(name.rstrip("*"), name.endswith("*"), facts[0], cpus, nodes,
                                   int(most) if most.isdecimal() else float("inf"),
                                   {kind: int(count) for kind, count in gpus}))  # fmt: skip
    return read


def partition(partitions: Sequence[Partition], name: str, gpus: int = 0) -> Partition | None:
    """Return a partition, by default Slurm's default one; its nodes have so many GPUs if any do."""
    matching = [p for p in partitions if (p.name == name if name else p.default)]
    if not matching:
        return None
    # A line for each kind of node: the smallest that suits counts.
    enough = [p for p in matching if sum(p.gpus.values()) >= gpus]
    suiting = enough or [p for p in matching if p.gpus] or matching
    smallest = min(suiting, key=lambda p: (p.cpus, sum(p.gpus.values())))
    return replace(smallest, nodes=sum(p.nodes for p in matching))


def _sbatch(script: str, *options: str) -> str:
    if not available():
        remedy = "log in where jobs are submitted; --dry-run prints the script"
        raise Unavailable("There is no Slurm on this host", "sbatch is not on PATH", remedy)
    # SBATCH_TIMELIMIT and others of the user's shell would outrank the #SBATCH lines (sbatch(1),
    # "INPUT ENVIRONMENT VARIABLES"), and the job would not be the one that --dry-run prints. What
    # the script leaves open, such as an account, may stand in a variable.
    left_open = {f"SBATCH_{name.upper()}" for name in OPEN if f"#SBATCH --{name}=" not in script}
    variables = {k: v for k, v in os.environ.items()
                 if k in left_open or not k.startswith("SBATCH_")}  # fmt: skip
    done = _run(["sbatch", *options], script, variables)
    if done.returncode == 0:
        return done.stdout
    lines = filter(None, done.stderr.splitlines())
    text = " ".join(line.removeprefix("sbatch: error: ") for line in lines)
    for phrases, error, cause, remedy in REFUSALS:
        if any(phrase in text.lower() for phrase in phrases):
            raise error(cause, text, remedy)
    raise UsageError("Slurm refuses the job", text, "correct what it names")


def _run(
    argv: Sequence[str], text: str = "", variables: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    try:
        return system.run(argv, LONGEST, variables, text)
    except TimeoutError as error:
        evidence = f"{argv[0]}: {error.strerror}"
        raise Unconfirmed("Slurm did not respond in time", evidence, "try again later") from error
    except OSError as error:
        evidence = f"{argv[0]}: {error}"
        raise Unavailable("Slurm does not respond", evidence, "try again later") from error


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("slurm_load_jobs error: ") if lines else "no message"
