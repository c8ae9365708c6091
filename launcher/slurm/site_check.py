"""Hold the facts of a site against the host where jobs are submitted.

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
from launcher.slurm import queue
from launcher.slurm.site import Site, filled
from launcher.slurm.submit_options import seconds


@dataclass(frozen=True)
class Answer:
    """What was found about a fact."""

    key: str
    verdict: Literal["holds", "differs", "unknown"]
    said: str


def examine(site: Site) -> list[Answer]:
    """Look at every fact of a site that this host can say something about."""
    answers = []
    for key, fact in site.facts.items():
        if key == "title" or key.startswith("sources."):
            continue
        look = LOOKS.get(key)
        answer = look(site) if look else None
        if answer is None:
            say = f"not seen from here; {fact.confirm}" if fact.confirm else "not seen from here"
            answer = Answer(key, "unknown", say)
        answers.append(answer)
    return answers


def _partition(site: Site) -> Answer | None:
    if not queue.available():
        return Answer("partition", "unknown", "there is no Slurm on this host")
    known, wanted = queue.partitions(), site.text("partition")
    if not wanted or not known:
        return None
    return _judged("partition", wanted in known, f"{wanted}; there are {', '.join(known)}")


def _limit(key: str, field: str) -> Callable[[Site], Answer | None]:
    """Compare a limit with that of the partition; more than Slurm allows is wrong."""

    def look(site: Site) -> Answer | None:
        found = _asked(site, field)
        if found is None:
            return None
        if "infinite" in found:
            return Answer(key, "holds", f"{site.text(key)}; Slurm itself has no limit")
        if key == "max_time":
            fits = seconds(site.text(key)) <= seconds(found)
        else:
            fits = site.number(key) <= int(found.rpartition("-")[2] or 0)
        return _judged(key, fits, f"{site.text(key)}; Slurm says {found}")

    return look


def _asked(site: Site, field: str) -> str | None:
    """Ask sinfo about the partition of a site."""
    if not queue.available():
        return None
    chosen = [f"--partition={site.text('partition')}"] if site.text("partition") else []
    words = ["sinfo", "--noheader", *chosen, f"--format={field}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _nodes(site: Site) -> Answer | None:
    found = _asked(site, "%D")
    if found is None:
        return None
    return _judged("nodes", int(found) == site.number("nodes"), f"Slurm has {found}")


def _modules(site: Site) -> Answer | None:
    names = site.words("modules")
    line = "type module >/dev/null && module is-avail " + " ".join(names)
    done = subprocess.run(
        ["bash", "-lc", line], capture_output=True, text=True, check=False, timeout=60
    )
    said = f"{', '.join(names)}" if done.returncode == 0 else f"{line!r} fails on this host"
    return _judged("modules", done.returncode == 0, said)


def _runtime(site: Site) -> Answer | None:
    name = str(site.facts["runtime"].value)
    place = shutil.which(name)
    said = place or f"no {name} on PATH; it may come with {', '.join(site.words('modules'))}"
    return Answer("runtime", "holds" if place else "unknown", said)


def _folders(key: str) -> Callable[[Site], Answer | None]:
    def look(site: Site) -> Answer | None:
        value = site.facts[key].value
        places = [
            filled(str(p), config.who(os.environ))
            for p in (value if isinstance(value, list) else [value])
        ]
        absent = [place for place in places if not os.path.isdir(place)]
        said = f"no folder {', '.join(absent)}" if absent else ", ".join(places)
        return _judged(key, not absent, said)

    return look


def _judged(key: str, right: bool, said: str) -> Answer:
    return Answer(key, "holds" if right else "differs", said)


LOOKS: dict[str, Callable[[Site], Answer | None]] = {
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
"""What this host can say about a fact."""
