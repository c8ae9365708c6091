"""Job script: what a job requests of Slurm, limits of the site, and the text of the script."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from aam.contract.dataclass import dataclass
from aam.contract.errors import AamError, UsageError
from aam.contract.options import ONE_OR_MORE, ZERO_OR_MORE, Range, basic_option, option
from aam.contract.options.commands import options_of
from aam.contract.version import __version__
from launcher.plan.inputs import Request
from launcher.slurm.queue import Partition, seconds
from launcher.slurm.site import Site
from launcher.system import quoted

TRIALS = "--trials-only"
"""Option of a process that takes part in a search and leaves the evaluation to another one."""
GPU_OPTION = re.compile(r"(--)?(gpus|gres)")
"""Options of sbatch that request GPUs: gres=gpu:a100:4, gpus-per-node=a100:4."""
WIDTH = 100
MAX_JOBS = 100


@dataclass(frozen=True)
class SubmitOptions:
    """Check a command as far as the login node can, then queue it as a Slurm job.

    Examples:
        aam-launch submit pretrain --site cosmos --table t.biom --tree t.nwk --output-dir run
        aam-launch submit search --jobs 8 --time 4:00:00 --table t.biom --metadata m.tsv \
        --metadata-column age --output-dir search
    """

    nodes: int = basic_option("Nodes of the job.", default=1, takes=ONE_OR_MORE)
    gpus: int | None = basic_option(
        "GPUs of each node, a rank for each; by default all for pretrain and train, else one.",
        takes=ONE_OR_MORE,
    )
    cpus: int | None = basic_option(
        "Processors of each rank; by default the share of its GPU in a node.", takes=ONE_OR_MORE
    )
    mem: str = basic_option(
        "Memory of each node, as 64G; by default all of a whole node, else Slurm's default.",
        default="",
        metavar="SIZE",
    )
    time: str = basic_option(
        "Time limit, as 24:00:00 or 1-12 (days-hours); by default the longest of the site.",
        default="",
        metavar="TIME",
    )
    job_name: str = option("Name of the job; by default the command.", default="", metavar="NAME")
    partition: str = option("Partition; by default the site's.", default="", metavar="NAME")
    account: str = basic_option("Account that is charged for the job.", default="", metavar="NAME")
    sbatch: tuple[str, ...] = basic_option(
        "One more option of sbatch, as qos=high, reservation=NAME or constraint=a100.",
        default=(),
        metavar="KEY=VALUE",
        repeated=True,
    )
    stage: int | None = option(
        "Copy the input files to the disk of each node, if they have at most so many GB together; "
        "0: none. By default as the site states.",
        metavar="GB",
        takes=ZERO_OR_MORE,
    )
    jobs: int | None = option(
        "Jobs that share the trials of one `search`; a further job evaluates its folds when all "
        "have succeeded.",
        takes=Range(f"1 to {MAX_JOBS}", 1, MAX_JOBS),
    )
    warn_seconds: int | None = option(
        "Seconds before its time limit at which a job saves a checkpoint and is queued again; by "
        "default as the site says.",
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


class Job(msgspec.Struct, frozen=True):
    """What a job requests of Slurm, its script, and what keeps it from running."""

    command: str  # of `aam`
    log: str  # sbatch's --output
    nodes: int  # how many
    ranks: int  # processes on each node
    gpus: int  # GPUs of each node
    on_gpus: bool  # the command computes on them
    gets_gpus: bool  # the job requests them, or they come with the node
    time: str  # limit as Slurm writes it; empty: the partition's
    warn_seconds: int  # how long before its limit the job stops; 0: it does not
    requeue: bool  # Slurm may start it again
    options: tuple[str, ...]  # of sbatch, in their order
    script: str = ""
    output: Path = Path()  # that it writes
    is_folder: bool = False  # the output
    problems: tuple[AamError, ...] = ()


def has_option(command: str, flag: str) -> bool:
    """Return whether a command of `aam` has an option."""
    return any(spec.flag == flag for spec in options_of(command))


def partition_name(options: SubmitOptions, site: Site, on_gpus: bool) -> str:
    """Return the name of the partition of a job; "": Slurm's default."""
    of_site = site.values.partition if on_gpus else site.values.cpu_partition
    return options.partition or of_site or site.values.partition


def allocation_of(
    request: Request, chosen: SubmitOptions, site: Site, log: str,
    partition: Partition | None = None, on_gpus: bool = True,
) -> Job:  # fmt: skip
    """Return what a job requests of Slurm; without `on_gpus` it runs on the CPU."""
    facts, command = site.values, request.command
    trains = has_option(command, "--resume-from")
    fits_network = trains and not has_option(command, TRIALS) and request.uses_network
    several_ranks = request.starts_ranks or fits_network
    # Of a cluster about which nothing is stated Slurm itself counts the GPUs of a node.
    types = partition.gpus if partition and on_gpus else {}
    by_user = [text for text in chosen.sbatch if GPU_OPTION.match(text)]
    if len(types) > 1 and not (by_user or facts.gpu_request):
        evidence = ", ".join(f"{count} x {kind}" for kind, count in types.items())
        forms = " or ".join(f"--sbatch gres=gpu:{kind}:{n}" for kind, n in types.items())
        raise UsageError("Nodes with GPUs of several types", evidence, f"choose with {forms}")
    of_user = sum(int(n) for text in by_user for n in re.findall(r"[:=](\d+)(?=,|$)", text))
    of_slurm = of_user or sum(types.values())
    per_node = facts.gpus_per_node if "gpus_per_node" in site.facts else max(1, of_slurm)
    gpus = chosen.gpus or of_user or (max(1, per_node) if several_ranks else 1)
    if of_user and gpus != of_user:
        evidence = f"--gpus {gpus} and --sbatch {by_user[0]}"
        raise UsageError("Two numbers of GPUs", evidence, "each rank takes one: give them alike")
    ranks = 1 if request.starts_ranks and chosen.nodes == 1 else gpus
    if chosen.nodes * ranks > 1 and not several_ranks:
        evidence = f"--nodes {chosen.nodes}" + f" --gpus {chosen.gpus}" * (chosen.gpus is not None)
        without = " without the transformer" if trains and not has_option(command, TRIALS) else ""
        cause = f"`{command}`{without} runs in one process"
        raise UsageError(cause, evidence, "leave --nodes and --gpus out")
    if chosen.time and seconds(chosen.time) == 0:
        evidence = f"Slurm sets no limit for --time {chosen.time}"
        raise UsageError("A job without a time limit", evidence, "write it as 24:00:00")
    time = chosen.time or facts.max_time
    # Slurm sends the signal at once if less time is left, so a short job trains for three quarters.
    warn = 0
    if trains and (chosen.requeue or chosen.warn_seconds is not None):
        usual = chosen.warn_seconds or facts.warn_seconds
        warn = min(usual, max(1, int(seconds(time) / 4))) if time and seconds(time) < 1e9 else usual
    # Without a GPU a job takes cores and memory, and leaves the GPUs of a node to others.
    takes_gpus = on_gpus or chosen.gpus is not None or bool(by_user)
    whole_node, gpu_request = facts.whole_nodes and takes_gpus, ""
    if takes_gpus and not by_user:
        gpu_request = facts.gpu_request.replace("{gpus}", str(gpus))
        counted = types if partition else chosen.gpus and on_gpus
        if counted and not (gpu_request or facts.vendor):
            gpu_request = f"--gpus-per-node={gpus}"
    # Slurm gives a rank one processor by default: it gets its GPUs' share, or all of a node.
    of_node = facts.cpus_per_node or (partition.cpus if partition else 0)
    share = max(1, of_node * gpus // max(gpus, per_node) // ranks) if of_node else 0
    cpus = chosen.cpus or (0 if whole_node else share)
    memory = chosen.mem or ("0" if whole_node else "")
    if facts.memory_gb and of_node and not (memory or takes_gpus):
        memory = f"{max(1, facts.memory_gb * cpus * ranks // of_node)}G"
    # `scancel --signal=USR2` saves and ends, USR1 saves and queues the job again.
    signal = f"--signal=B:USR{1 if chosen.requeue else 2}@{warn}"
    account, name = chosen.account or facts.account, partition_name(chosen, site, on_gpus)
    options = (
        f"--job-name={chosen.job_name or command}", *([f"--partition={name}"] if name else []),
        *([f"--account={account}"] if account else []), f"--nodes={chosen.nodes}",
        f"--ntasks-per-node={ranks}", *([gpu_request] if gpu_request else []),
        *([f"--cpus-per-task={cpus}"] if cpus else []), *(["--exclusive"] if whole_node else []),
        *([f"--mem={memory}"] if memory else []), *([f"--time={time}"] if time else []),
        *([signal] if warn else []), "--requeue" if chosen.requeue and trains else "--no-requeue",
        "--open-mode=append", f"--output={log}",
    )  # fmt: skip
    # Further options of sbatch; those that the script has already are refused.
    taken = {option.partition("=")[0] for option in options} | {"--array", "--export", "--wrap"}
    for text in chosen.sbatch:
        directive = f"--{text.removeprefix('--')}"
        key = directive.partition("=")[0]
        if not re.fullmatch("--[a-z][a-z0-9-]*", key):
            remedy = "write --sbatch KEY=VALUE with a long option of sbatch"
            raise UsageError("Not an option of sbatch", f"--sbatch '{text}'", remedy)
        if key in taken:
            cause, evidence = "An option that the job script sets", f"--sbatch '{text}'"
            raise UsageError(cause, evidence, "leave it out")
        options = (*options, directive)
    for flag in options:
        if not flag.isprintable() or flag.partition("=")[1:] == ("=", ""):
            raise UsageError("No job script can hold this value", repr(flag), "choose another")
    gets_gpus = takes_gpus and bool(gpu_request or facts.vendor or by_user)
    again = chosen.requeue and trains
    return Job(command, log, chosen.nodes, ranks, gpus, on_gpus, gets_gpus, time, warn, again,
               options)  # fmt: skip


def over_limits(job: Job, site: Site, partition: Partition | None, force: bool) -> list[AamError]:
    """Return an error for each limit of partition and site that a job exceeds; --force: advice."""
    errors: list[AamError] = []
    facts, title = site.values, site.title
    # Slurm queues such a job and never starts it.
    if partition and job.time and seconds(job.time) > seconds(partition.max_time):
        evidence = f"--time {job.time}, partition {partition.name} gives {partition.max_time}"
        errors.append(UsageError("More time than the partition allows", evidence, "give less"))
    if force:
        return errors
    over = facts.max_time and job.time and seconds(job.time) > seconds(facts.max_time)
    if over and not errors:
        evidence = f"--time {job.time}, and {facts.max_time} is the most on {title}"
        remedy = "give less; a job goes on by itself after its limit"
        errors.append(UsageError("More time than the site allows", evidence, remedy))
    most = next((n for n in (facts.max_nodes, facts.nodes) if n and job.nodes > n), 0)
    if most:
        evidence = f"--nodes {job.nodes}, and {most} is the most on {title}"
        advice = most == facts.max_nodes and job.nodes <= (facts.nodes or job.nodes)
        remedy = f"give --nodes {most} or less{', or --force' if advice else ''}"
        errors.append(UsageError("More nodes than the site allows", evidence, remedy))
    if facts.vendor and job.gpus > facts.gpus_per_node:
        evidence = f"--gpus {job.gpus}, and a node of {title} has {facts.gpus_per_node}"
        remedy = f"give --gpus {facts.gpus_per_node} or less, and more --nodes"
        errors.append(UsageError("More GPUs than a node has", evidence, remedy))
    return errors


def script(job: Job, site: Site, about: Sequence[str], argv: Sequence[str]) -> str:
    """Return the script of a job."""
    lines = ["#!/bin/bash"]
    for directive in job.options:  # in double quotes if it needs them
        plain = re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", directive)
        escaped = directive.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f"#SBATCH {directive}" if plain else f'#SBATCH "{escaped}"')
    for line in (f"{about[0]}; by aam-launch {__version__}", *about[1:]):
        # A control character would begin a line of its own.
        lines.append("# " + "".join(c if c.isprintable() else "?" for c in line))
    if modules := site.values.modules:
        profile = "command -v module >/dev/null || . /etc/profile"
        lines.append(f"{profile}; module load {shlex.join(modules)} || exit 69")
    text = "\n".join([*lines, wrapped(["exec", *argv]), ""])
    if odd := re.search("\\S*[\ud800-\udfff]\\S*", text):
        raise UsageError("No job can have this name", f"{odd[0]!a} is not UTF-8", "rename it")
    return text


def wrapped(argv: Sequence[str]) -> str:
    """Return a shell command on lines of at most 100 characters, where its words are shorter."""
    groups: list[str] = []  # a flag beside its value
    for previous, word in zip(["", *argv], argv, strict=False):
        beside = previous.startswith("--") and not word.startswith("--")
        groups[-1:] = [f"{groups[-1]} {quoted(word)}"] if beside else [*groups[-1:], quoted(word)]
    lines = groups[:1]
    for number, group in enumerate(groups[1:], 1):
        if number > 1 and len(lines[-1]) + len(group) >= WIDTH:
            lines.append("   ")
        lines[-1] += f" {group}"
    return " \\\n".join(lines)


def directives(text: str) -> dict[str, str]:
    r"""Return the options of sbatch in a script, by name.

    >>> directives('#!/bin/bash\n#SBATCH --job-name=a\n#SBATCH "--output=b c.log"\n')
    {'job-name': 'a', 'output': 'b c.log'}
    """
    options = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            with suppress(ValueError):
                option = "".join(shlex.split(line.removeprefix("#SBATCH ")))
                key, _, value = option.removeprefix("--").partition("=")
                options[key] = value
    return options


def log_file(log: str, number: str) -> str:
    """Return the log file of a job; `log` is its --output, as sbatch takes it.

    >>> log_file("/runs/100%%job-%j.log", "12")
    '/runs/100%job-12.log'
    """
    return re.sub("%[%j]", lambda match: {"%%": "%", "%j": number}[match[0]], log)
