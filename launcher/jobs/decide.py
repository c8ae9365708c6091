"""From a request, a site and a plan to a job; and what the site's limits say about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.engines.mount_words import fields
from launcher.errors import ConfigurationError, UsageError
from launcher.gpus import visible_devices_variables
from launcher.jobs.job import Allocation, Place, Program
from launcher.jobs.script import PLAIN, resumable
from launcher.jobs.site import Site
from launcher.jobs.wishes import Wishes, seconds
from launcher.plan.environment import CACHES, FIXED
from launcher.plan.layers import Settings
from launcher.plan.make import RECORD
from launcher.plan.mounts import PathFact
from launcher.plan.plan import Plan
from launcher.plan.ranks import shares

PRIVATE = "$here"
"""The folder of a job on its node, as the script calls it."""


def allocation(command: str, wishes: Wishes, site: Site, log: str, tasks: int = 0) -> Allocation:
    """Return what Slurm is asked for.

    Raises:
        UsageError: several ranks for a command that runs in one process.
    """
    trains = resumable(command)
    nodes = wishes.number("--nodes", 1)
    all_gpus = max(1, site.number("gpus_per_node"))
    ranks = wishes.number("--gpus", all_gpus if trains else 1)
    if nodes * ranks > 1 and not trains:
        evidence = f"{nodes} nodes, {ranks} GPUs each"
        remedy = "leave --nodes and --gpus out"
        raise UsageError(f"`{command}` runs in one process", evidence, remedy)
    time = wishes.text("--time") or site.text("max_time")
    warn = _warning(wishes, site, seconds(time) if time else 0) if resumable(command) else 0
    request = site.text("gpu_request")
    request = request.format(gpus=ranks) if "{gpus}" in request else request
    named = ("partition", "account", "qos", "reservation")
    chosen = {key: wishes.text(f"--{key}") for key in named}
    for key in ("partition", "account"):
        chosen[key] = chosen[key] or site.text(key)
    return Allocation(
        name=wishes.text("--job-name") or command,
        nodes=nodes,
        ranks=ranks,
        time=time,
        log=log,
        gpu_request=request,
        whole_nodes=site.on("whole_nodes"),
        more=tuple(f"--{key}={value}" for key, value in chosen.items() if value),
        warn_seconds=warn,
        requeue="--no-requeue" not in wishes.given and resumable(command),
        tasks=tasks,
    )


def _warning(wishes: Wishes, site: Site, limit: int) -> int:
    """Return when to stop: as the site says, but not in the first three quarters of a job."""
    if "--no-requeue" in wishes.given and "--warn-seconds" not in wishes.given:
        return 0
    usual = site.number("warn_seconds")
    return wishes.number("--warn-seconds", min(usual, limit // 4) if limit else usual)


def over_limits(what: Allocation, site: Site) -> list[UsageError]:
    """Say what is more than the site allows or advises."""
    found = []
    title = site.text("title") or site.name
    for key, wanted in (("max_nodes", what.nodes), ("nodes", what.nodes)):
        most = site.number(key)
        if most and wanted > most:
            evidence = f"--nodes {wanted}, and {most} is the most on {title}"
            remedy = f"give --nodes {most} or less" + (
                ", or --force" if key == "max_nodes" and wanted <= (site.number("nodes") or wanted)
                else ""
            )  # fmt: skip
            found.append(UsageError("More nodes than the site allows", evidence, remedy))
            break
    most_gpus = site.number("gpus_per_node")
    if site.text("vendor") and what.ranks > most_gpus:
        evidence = f"--gpus {what.ranks}, and a node of {title} has {most_gpus}"
        remedy = f"give --gpus {most_gpus} or less, and more --nodes"
        found.append(UsageError("More GPUs than a node has", evidence, remedy))
    longest = site.text("max_time")
    if longest and what.time and seconds(what.time) > seconds(longest):
        evidence = f"--time {what.time}, and {longest} is the most on {title}"
        remedy = "give less; a job goes on by itself after its limit"
        found.append(UsageError("More time than the site allows", evidence, remedy))
    if what.time and what.warn_seconds >= seconds(what.time):
        evidence = f"--time {what.time}, --warn-seconds {what.warn_seconds}"
        found.append(UsageError("No time to run in", evidence, "give more time"))
    return found


def program(
    plan: Plan,
    options: Sequence[str],
    sweep: tuple[tuple[str, ...], ...],
    paths: Sequence[PathFact],
    settings: Settings,
    site: Site,
    several: bool,
) -> Program:
    """Return what runs.

    Args:
        plan: for a node of the site; its words are those of the request and the stack's flags.
        options: the words of the request, absolute paths in them.
        sweep: words of each task of an array.
        paths: of the request.
        settings: all layers.
        site: where.
        several: more than one rank.
    """
    command = plan.words[0]
    added = _added(plan)
    flags = ["--distributed"] if several and not shares(options) else []
    own = {*FIXED, *CACHES, *visible_devices_variables(), "HOME", RECORD}
    given = [f"{name}={value}" for name, value in plan.variables if name not in own]
    record = dict(plan.variables).get(RECORD, "")
    direct = {fact.absolute for fact in paths if fact.place >= 0}
    ours = ("folder of an output file", "private home and caches", "temporary files of this job")
    binds = [
        fields("type=bind", f"source={m.source}", f"destination={m.target}",
               *([] if m.writable else ["ro"]))
        for m in plan.mounts
        if m.target not in direct and m.why not in ours
    ]  # fmt: skip
    return Program(
        command=command,
        options=tuple(options),
        sweep=sweep,
        flags=(*flags, *added),
        engine=plan.engine,
        image=plan.place or "",
        native=(plan.program, "-m", "aam.cli") if plan.engine == "native" else ("aam",),
        vendor=site.text("vendor"),
        host_libraries=plan.host_libraries,
        variables=tuple(given),
        passed=tuple(n for entry in settings.given("pass_env") for n in entry.value),
        binds=tuple(binds),
        record=record,
    )


def _added(plan: Plan) -> list[str]:
    """Return the stack's flags, which a plan puts behind the words of the request."""
    return [word for d in plan.decisions if d.subject == "flag" for word in d.value.split()]


def place(site: Site) -> Place:
    """Return what the nodes are like.

    Raises:
        ConfigurationError: a folder or a pattern that a script cannot hold.
    """
    local = site.text("local")
    if not PLAIN.match(local):
        evidence = f"'{local}' in {site.facts['local'].where}"
        remedy = "use letters, digits, ._/- and $VARIABLES"
        raise ConfigurationError("A folder that no script can hold", evidence, remedy)
    for pattern in site.words("interfaces"):
        if not re.fullmatch(r"[A-Za-z0-9._*?-]+", pattern):
            evidence = f"'{pattern}' in {site.facts['interfaces'].where}"
            raise ConfigurationError("Not a pattern of interfaces", evidence, "write it as hsn*")
    return Place(
        title=" ".join(site.text("title").split()) or site.name,
        modules=site.words("modules"),
        local=local,
        stage_most_gb=site.number("stage_most_gb"),
        interfaces=site.words("interfaces"),
        plugin=site.words("plugin"),
        network=tuple(f"{name}={value}" for name, value in site.network.items()),
        sync_seconds=max(1, site.number("sync_seconds")),
        sync_patience=site.number("sync_patience"),
    )
