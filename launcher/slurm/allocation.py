"""Allocation of a job: what it requests of Slurm, limits of the site, a node as a `Host`. Pure."""

from __future__ import annotations

import re

from aam.contract.errors import ConfigurationError, UsageError
from aam.contract.options import ParsedCommand, options_of
from launcher.gpus import VENDORS
from launcher.host.facts import Driver, EngineFact, Gpu, Host
from launcher.options.submit import SubmitOptions, seconds
from launcher.slurm.script import Allocation
from launcher.slurm.site import Site

NAME = re.compile(r"[A-Za-z0-9_.@+-]+\Z")
"""Names of partitions, accounts, reservations and qualities of service."""
GPU_REQUEST = re.compile(r"--[a-z-]+(=[A-Za-z0-9_.:,*=-]+)?\Z")
MODULE = re.compile(r"[A-Za-z0-9_.+][A-Za-z0-9_./+-]*\Z")
PRINTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")
TRIALS = "--trials-only"
"""Option of a process that takes part in a search and leaves the evaluation to another one."""


def resumable(command: str) -> bool:
    """Return whether a command can go on from a checkpoint, or with the trials that are left."""
    return any(spec.flag == "--resume-from" for spec in options_of(command))


def shares_trials(command: str) -> bool:
    """Return whether several jobs can work on one run folder, each in one process."""
    return any(spec.flag == TRIALS for spec in options_of(command))


def allocation_of(
    command: ParsedCommand, requested: SubmitOptions, site: Site, log: str, tasks: int = 0
) -> Allocation:
    """Return what a job requests of Slurm.

    Raises:
        UsageError: several ranks for a command that runs in one process, or a time limit of
            zero.
    """
    trains = resumable(command.command)
    shared = trains and not shares_trials(command.command)
    own_ranks = command.starts_ranks
    several = own_ranks or (shared and command.uses_network)
    nodes = requested.nodes
    gpus = requested.gpus or (max(1, site.number("gpus_per_node")) if several else 1)
    ranks = 1 if own_ranks and nodes == 1 else gpus
    if nodes * ranks > 1 and not several:
        evidence = f"{nodes} nodes, {gpus} GPUs each"
        remedy = "leave --nodes and --gpus out"
        without = " without the transformer" if shared else ""
        raise UsageError(f"`{command.command}`{without} runs in one process", evidence, remedy)
    if requested.time and seconds(requested.time) == 0:
        evidence = f"Slurm sets no limit for --time {requested.time}"
        raise UsageError("A job without a time limit", evidence, "write it as 24:00:00")
    time = requested.time or site.text("max_time")
    # On a shared node Slurm gives a rank one processor by default: it gets those of its GPUs.
    share = site.number("cpus_per_node") * gpus // max(1, site.number("gpus_per_node"))
    request = site.text("gpu_request").replace("{gpus}", str(gpus))
    if request:
        _require(GPU_REQUEST, request, site.where("gpu_request"))
    named = ("partition", "account", "qos", "reservation")
    chosen = {key: (getattr(requested, key), f"--{key}") for key in named}
    for key in ("partition", "account"):
        chosen[key] = chosen[key] if chosen[key][0] else (site.text(key), site.where(key))
    for value, where in chosen.values():
        if value:
            _require(NAME, value, where)
    return Allocation(
        name=requested.job_name or command.command,
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        cpus=0 if site.on("whole_nodes") else share // ranks,
        time=time,
        log=log,
        gpu_request=request,
        whole_nodes=site.on("whole_nodes"),
        more=tuple(f"--{key}={value}" for key, (value, _) in chosen.items() if value),
        requeue=requested.requeue and trains,
        tasks=tasks,
    )


def warn_seconds(command: str, requested: SubmitOptions, site: Site) -> int:
    """Return how long before its limit a job stops; 0: it does not.

    A job with a short limit stops later (`rank.stop_time`): it reads the limit that it really has.
    """
    if not resumable(command) or (not requested.requeue and requested.warn_seconds is None):
        return 0
    return requested.warn_seconds or site.number("warn_seconds")


def _require(pattern: re.Pattern[str], value: str, where: str) -> None:
    """Refuse a value that would become something else in a line of the script.

    Raises:
        ConfigurationError: the value does not match.
    """
    if not pattern.match(value):
        cause, evidence = "A value that no job script can hold", f"{value!r} in {where}"
        remedy = f"it has to match {pattern.pattern.removesuffix(chr(92) + 'Z')}"
        raise ConfigurationError(cause, evidence, remedy)


def over_limits(what: Allocation, site: Site) -> list[UsageError]:
    """Return an error for each limit or advice of the site that a job exceeds."""
    found = []
    title = site.title
    nodes, present = what.nodes, site.number("nodes")
    advised = site.number("max_nodes")
    most = next((limit for limit in (advised, present) if limit and nodes > limit), 0)
    if most:
        evidence = f"--nodes {nodes}, and {most} is the most on {title}"
        force = ", or --force" if most == advised and nodes <= (present or nodes) else ""
        remedy = f"give --nodes {most} or less{force}"
        found.append(UsageError("More nodes than the site allows", evidence, remedy))
    most_gpus = site.number("gpus_per_node")
    if site.text("vendor") and what.gpus > most_gpus:
        evidence = f"--gpus {what.gpus}, and a node of {title} has {most_gpus}"
        remedy = f"give --gpus {most_gpus} or less, and more --nodes"
        found.append(UsageError("More GPUs than a node has", evidence, remedy))
    longest = site.text("max_time")
    if longest and what.time and seconds(what.time) > seconds(longest):
        evidence = f"--time {what.time}, and {longest} is the most on {title}"
        remedy = "give less; a job goes on by itself after its limit"
        found.append(UsageError("More time than the site allows", evidence, remedy))
    return found


def require_scriptable(site: Site) -> None:
    """Check that a script can hold the values of a site.

    Raises:
        ConfigurationError: a value that it cannot.
    """
    for key, pattern, values in (
        ("modules", MODULE, site.strings("modules")),
        ("title", PRINTABLE, (site.title,)),
    ):
        for value in values:
            _require(pattern, value, site.where(key))


def node_of(site: Site, here: Host, gpus_used: int) -> Host:
    """Return a node of `site`, seen from the host where jobs are submitted, with the GPUs used.

    Its engines are those of this host: a site that has others names one (`runtime`).

    Raises:
        ConfigurationError: an unknown vendor.
    """
    vendor = site.text("vendor")
    if vendor and vendor not in VENDORS:
        remedy = f"known are {', '.join(VENDORS)}, or none for processors"
        evidence = f"'{vendor}' in {site.where('vendor')}"
        raise ConfigurationError("No such vendor", evidence, remedy)
    gpus = tuple(
        Gpu(vendor, number, site.text("arch") or None, site.text("gpu"), f"{number:04x}:00:00.0")
        for number in range(gpus_used if vendor else 0)
    )
    return Host(
        root=f"site {site.name}",
        name=f"a node of {site.title}",
        kernel="unknown",
        machine=here.machine,
        gpus=gpus,
        nodes=(),
        drivers=(Driver(vendor, None, f"site {site.name}"),) if vendor else (),
        engines=tuple(
            EngineFact(engine.name, engine.name, traits=engine.traits)
            for engine in here.engines if engine.traits.several_ranks
        ),
        complete=False,
        absent_engines=here.absent_engines,
        slurm=None,
        user=here.user,
    )  # fmt: skip
