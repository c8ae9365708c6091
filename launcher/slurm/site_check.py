"""Comparison of the facts of a site with this host, a login node or a node of a job.

A fact that cannot be seen from here is not compared; `site show` names the command that shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from launcher import processes
from launcher.findings import Finding
from launcher.host.facts import Host
from launcher.options.submit import seconds
from launcher.slurm import queue, topology
from launcher.slurm.site import Site

Check = Callable[[Site, Host], str]


def differences(site: Site, host: Host) -> Iterator[Finding]:
    """Yield a warning for each fact of a site that this host, which is live, shows otherwise."""
    remedy = "correct it in a site file of your own"
    for key, check in CHECKS.items():
        if key in site.facts and (found := check(site, host)):
            evidence = f"{key} is {site.facts[key].value} in {site.where(key)}, {found}"
            yield Finding("warning", "A fact of the site differs here", evidence, remedy)


def _partition(site: Site, host: Host) -> str:
    known = queue.partitions() if queue.available() else []
    return f"Slurm has {', '.join(known)}" if known and site.text("partition") not in known else ""


def _of_partition(field: str, wrong: Callable[[Site, str], bool]) -> Check:
    """Compare with what sinfo prints of the partition (sinfo(1), --format)."""

    def check(site: Site, host: Host) -> str:
        found = queue.sinfo(field, site.text("partition")) if queue.available() else []
        return f"Slurm has {found[0]}" if found and wrong(site, found[0]) else ""

    return check


def _more_nodes(site: Site, found: str) -> bool:
    most = found.rpartition("-")[2]  # "1-4", "1-infinite"
    return most.isdecimal() and site.number("max_nodes") > int(most)


def _longer(site: Site, found: str) -> bool:
    return found != "infinite" and seconds(site.text("max_time")) > seconds(found)


def _modules(site: Site, host: Host) -> str:
    line = "type module >/dev/null && module is-avail " + " ".join(site.strings("modules"))
    failed = processes.run(["bash", "-lc", line], timeout=60).returncode != 0
    return f"{line!r} fails here" if failed else ""


def _folders(key: str) -> Check:
    def check(site: Site, host: Host) -> str:
        value = site.facts[key].value
        places = [str(each) for each in (value if isinstance(value, list) else [value])]
        absent = [place for place in places if not os.path.isdir(place)]
        return f"there is no folder {', '.join(absent)}" if absent else ""

    return check


def _archs(site: Site, host: Host) -> str:
    found = {str(gpu.arch) for gpu in topology.gpus(host, site.text("vendor"))}
    return f"the host has {', '.join(sorted(found))}" if found - {site.text("arch")} else ""


def _gpus(site: Site, host: Host) -> str:
    found = len(topology.gpus(host, site.text("vendor")))  # a login node has none
    return f"the host has {found}" if found not in (0, site.number("gpus_per_node")) else ""


def _interfaces(site: Site, host: Host) -> str:
    there = host.slurm is None or topology.interfaces(site.strings("interfaces"))
    return "" if there else f"the node has {', '.join(topology.interfaces(['*']))}"


CHECKS: dict[str, Check] = {
    "partition": _partition,
    "nodes": _of_partition("%D", lambda site, found: int(found) != site.number("nodes")),
    "max_nodes": _of_partition("%s", _more_nodes),
    "max_time": _of_partition("%l", _longer),
    "arch": _archs,
    "gpus_per_node": _gpus,
    "interfaces": _interfaces,
    "modules": _modules,
    "shared": _folders("shared"),
    "home": _folders("home"),
    "image_dir": _folders("image_dir"),
}
"""Key of a fact -> how this host differs from it; "" if it does not, or cannot show it."""
