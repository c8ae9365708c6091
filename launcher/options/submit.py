"""Options of `aam-launch submit` and `jobs cancel`, and time limits as Slurm writes them."""

import math
import re
from dataclasses import dataclass

from aam.contract.errors import UsageError
from aam.contract.options.field import ONE_OR_MORE, ZERO_OR_MORE, Range, option

MOST_JOBS = 100
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<hm>\d+)(?::(?P<hms>\d+))?)?"
    r"|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)\Z"
)


@dataclass(frozen=True)
class SubmitOptions:
    """Check a command as far as the login node can, then queue it as a Slurm job.

    Examples:
        aam-launch submit pretrain --site cosmos --table t.biom --tree t.nwk --output-dir run
        aam-launch submit search --jobs 8 --time 4:00:00 --table t.biom --metadata m.tsv \
        --metadata-column age --output-dir search
    """

    nodes: int = option("Nodes of the job.", default=1, takes=ONE_OR_MORE, basic=True)
    gpus: int | None = option(
        "GPUs of each node, a rank for each; by default all for pretrain and train, else one.",
        default=None,
        takes=ONE_OR_MORE,
        basic=True,
    )
    cpus: int | None = option(
        "Processors of each rank; by default the share of its GPU in a node.",
        default=None,
        takes=ONE_OR_MORE,
        basic=True,
    )
    mem: str = option(
        "Memory of each node, as 64G; by default all of a whole node, else Slurm's default.",
        default="",
        metavar="SIZE",
        basic=True,
    )
    time: str = option(
        "Time limit, as 24:00:00 or 1-12 (days-hours); by default the longest of the site.",
        default="",
        metavar="TIME",
        basic=True,
    )
    job_name: str = option("Name of the job; by default the command.", default="", metavar="NAME")
    partition: str = option("Partition; by default that of the site.", default="", metavar="NAME")
    account: str = option(
        "Account that is charged for the job.", default="", metavar="NAME", basic=True
    )
    sbatch: tuple[str, ...] = option(
        "One more option of sbatch, as qos=high, reservation=NAME or constraint=a100.",
        default=(),
        metavar="KEY=VALUE",
        repeated=True,
        basic=True,
    )
    stage: int | None = option(
        "Copy the input files to the disk of each node, if they have at most so many GB together; "
        "0: none. By default as the site states.",
        default=None,
        metavar="GB",
        takes=ZERO_OR_MORE,
    )
    jobs: int | None = option(
        "Jobs that share the trials of one `search`; a further job evaluates its folds when all "
        "have succeeded.",
        default=None,
        takes=Range(f"1 to {MOST_JOBS}", 1, MOST_JOBS),
    )
    warn_seconds: int | None = option(
        "Seconds before its time limit at which a job saves a checkpoint and is queued again; by "
        "default those of the site.",
        default=None,
        takes=ONE_OR_MORE,
    )
    memory_check: bool = option(
        "Predict the memory of a training with `aam memory` and refuse a job that does not fit "
        "into a GPU of the site.",
        default=True,
    )
    requeue: bool = option(
        "Queue a job again at its time limit, until its run is complete.", default=True
    )


@dataclass(frozen=True)
class JobOptions:
    """Options that a job script gives to `launcher.slurm.job` beside those of a direct launch."""

    digest: str = option("Digest of the image at the submission.", default="")
    stage: int | None = option("Most GB of inputs to copy to the node.", default=None)


@dataclass(frozen=True)
class JobsCancel:
    """Cancel jobs; the last checkpoint of a training stays, for --resume-from auto.

    Examples:
        aam-launch jobs cancel 4711
        aam-launch jobs cancel 4711 4712
    """

    numbers: tuple[str, ...] = option("Numbers of the jobs.", first=True, metavar="JOB", basic=True)


def seconds(time: str) -> float:
    """Return a time limit of Slurm in seconds (sbatch(1), --time; slurm.conf(5), MaxTime).

    Raises:
        UsageError: it is not a time limit.

    >>> [seconds(t) for t in ("90", "1:30", "24:00:00", "1-12", "2-0:30", "UNLIMITED")]
    [5400, 90, 86400, 129600, 174600, inf]
    """
    if time.lower() in ("unlimited", "infinite"):
        return math.inf
    found = _TIME.match(time)
    if not found:
        evidence = f"--time '{time}'"
        raise UsageError("Not a time", evidence, "write it as 24:00:00, 1-12 or 90 (minutes)")
    part = {name: int(value) if value else 0 for name, value in found.groupdict().items()}
    if found["days"]:
        return part["days"] * 86400 + part["h"] * 3600 + part["hm"] * 60 + part["hms"]
    if found["c"]:
        return part["a"] * 3600 + part["b"] * 60 + part["c"]
    return part["a"] * 60 + part["b"]
