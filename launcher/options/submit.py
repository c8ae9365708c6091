"""Options of `aam-launch submit` itself, and time limits as Slurm writes them."""

import re
from dataclasses import dataclass
from pathlib import Path

from aam.contract.errors import UsageError
from aam.contract.options import specs
from aam.contract.options.field import ONE_OR_MORE, Range, option

MOST_TASKS = 1000
"""Tasks of an array that Slurm takes by default (MaxArraySize is 1001, slurm.conf(5))."""

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<hm>\d+)(?::(?P<hms>\d+))?)?"
    r"|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)\Z"
)


@dataclass(frozen=True)
class SubmitOptions:
    """Check a command as far as the login node can, then queue it as a Slurm job.

    Examples:
        aam-launch submit pretrain --site cosmos --table t.biom --tree t.nwk --output-dir run
        aam-launch submit search --array-tasks 8 --time 4:00:00 --table t.biom --metadata m.tsv \
        --metadata-column age --output-dir search
    """

    nodes: int = option("Nodes of the job.", default=1, takes=ONE_OR_MORE, basic=True)
    gpus: int | None = option(
        "GPUs of each node, a rank for each; by default all for pretrain and train, else one.",
        default=None,
        takes=ONE_OR_MORE,
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
    qos: str = option("Quality of service.", default="", metavar="NAME")
    reservation: str = option("Reservation.", default="", metavar="NAME")
    array: Path | None = option(
        "YAML file with lists of option values; a job runs for each combination of them.",
        default=None,
        role="input",
    )
    array_tasks: int | None = option(
        "Tasks of an array that share the trials of one `search`; a further job evaluates its "
        "folds when all have succeeded.",
        default=None,
        takes=Range(f"1 to {MOST_TASKS}", 1, MOST_TASKS),
    )
    shards: int | None = option(
        "Tasks of an array, each of which predicts or embeds one part of the samples; a further "
        "job, `aam merge`, starts when all have succeeded.",
        default=None,
        takes=Range(f"1 to {MOST_TASKS}", 1, MOST_TASKS),
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
    here: bool = option(
        "Run in the job that this command is a part of, a script for sbatch.", default=False
    )
    requeue: bool = option(
        "Queue a job again at its time limit, until its run is complete.", default=True
    )


def require_printable(requested: SubmitOptions) -> None:
    """Check that a job script can hold the values of the options.

    Raises:
        UsageError: a value that is empty or has control characters.
    """
    for spec in specs(SubmitOptions):
        value = getattr(requested, spec.field)
        if isinstance(value, str) and not value.isprintable():
            evidence = f"{spec.flag} {value!r}"
            raise UsageError("A value that no job script can hold", evidence, "choose another")


def seconds(time: str) -> int:
    """Return a time limit of Slurm in seconds (sbatch(1), --time).

    Raises:
        UsageError: it is not a time limit.

    >>> [seconds(t) for t in ("90", "1:30", "24:00:00", "1-12", "2-0:30")]
    [5400, 90, 86400, 129600, 174600]
    """
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
