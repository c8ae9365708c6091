"""Site check: compares the facts of a site with the host where jobs are submitted.

What can be seen only on a node is not guessed: the command that shows it is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from launcher import config
from launcher.options.submit import seconds
from launcher.slurm import queue
from launcher.slurm.site import Site, filled


@dataclass(frozen=True)
class FactCheck:
    """Outcome of the check of one fact."""

    key: str
    verdict: Literal["holds", "differs", "unknown"]
    detail: str


def check_facts(site: Site) -> list[FactCheck]:
    """Check every fact of a site that can be seen from this host."""
    checks = []
    for key, fact in site.facts.items():
        if key == "title" or key.startswith("sources."):
            continue
        probe = CHECKS.get(key)
        check = probe(site) if probe else None
        if check is None:
            detail = f"not seen from here; {fact.confirm}" if fact.confirm else "not seen from here"
            check = FactCheck(key, "unknown", detail)
        checks.append(check)
    return checks


def _partition(site: Site) -> FactCheck | None:
    if not queue.available():
        return FactCheck("partition", "unknown", "there is no Slurm on this host")
    known, named = queue.partitions(), site.text("partition")
    if not named or not known:
        return None
    return _compared("partition", named in known, f"{named}; there are {', '.join(known)}")


def _limit(key: str, field: str) -> Callable[[Site], FactCheck | None]:
    """Compare a limit with that of the partition; more than Slurm allows is wrong."""

    def check(site: Site) -> FactCheck | None:
        found = _sinfo(site, field)
        if found is None:
            return None
        if "infinite" in found:
            return FactCheck(key, "holds", f"{site.text(key)}; Slurm itself has no limit")
        if key == "max_time":
            fits = seconds(site.text(key)) <= seconds(found)
        else:
            fits = site.number(key) <= int(found.rpartition("-")[2] or 0)
        return _compared(key, fits, f"{site.text(key)}; the limit of Slurm is {found}")

    return check


def _sinfo(site: Site, field: str) -> str | None:
    """Return the first value that sinfo prints about the partition of a site."""
    if not queue.available():
        return None
    chosen = [f"--partition={site.text('partition')}"] if site.text("partition") else []
    argv = ["sinfo", "--noheader", *chosen, f"--format={field}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _nodes(site: Site) -> FactCheck | None:
    found = _sinfo(site, "%D")
    if found is None:
        return None
    return _compared("nodes", int(found) == site.number("nodes"), f"Slurm has {found}")


def _modules(site: Site) -> FactCheck | None:
    names = site.strings("modules")
    line = "type module >/dev/null && module is-avail " + " ".join(names)
    fails = subprocess.run(["bash", "-lc", line], capture_output=True, check=False, timeout=60)
    right = fails.returncode == 0
    return _compared("modules", right, ", ".join(names) if right else f"{line!r} fails here")


def _runtime(site: Site) -> FactCheck | None:
    name = str(site.setting("runtime"))
    place = shutil.which(name)
    detail = place or f"no {name} on PATH; it may come with {', '.join(site.strings('modules'))}"
    return FactCheck("runtime", "holds" if place else "unknown", detail)


def _folders(key: str) -> Callable[[Site], FactCheck | None]:
    def check(site: Site) -> FactCheck | None:
        value = site.facts[key].value
        values = value if isinstance(value, list) else [value]
        places = [filled(str(place), config.who(os.environ)) for place in values]
        absent = [place for place in places if not os.path.isdir(place)]
        detail = f"no folder {', '.join(absent)}" if absent else ", ".join(places)
        return _compared(key, not absent, detail)

    return check


def _compared(key: str, right: bool, detail: str) -> FactCheck:
    return FactCheck(key, "holds" if right else "differs", detail)


CHECKS: dict[str, Callable[[Site], FactCheck | None]] = {
    "partition": _partition,
    "nodes": _nodes,
    "max_nodes": _limit("max_nodes", "%s"),
    "max_time": _limit("max_time", "%l"),
    "modules": _modules,
    "runtime": _runtime,
    "shared": _folders("shared"),
    "home": _folders("home"),
    "image_dir": _folders("image_dir"),
}
"""Key of a fact -> its check on this host."""
