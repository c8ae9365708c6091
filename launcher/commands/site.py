"""`aam-launch site show|check NAME`: print the facts of a cluster, or compare them with this host.

What only a node shows is not guessed: the command that shows it is named.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aam.contract.errors import Unavailable
from launcher import config, processes
from launcher.commands import parse_own, print_json
from launcher.options.inspection import SiteShow
from launcher.options.submit import seconds
from launcher.slurm import queue
from launcher.slurm.site import SITE_KEYS, Fact, Site, filled


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the facts of a site or check them on this host; return 69 if one differs."""
    verb, rest = argv[0], argv[1:]
    name = parse_own(SiteShow, rest, f"site {verb}").name
    site = config.site(name)
    answers = check_facts(site) if verb == "check" else []
    if "--json" in launcher_options:
        print_json({"site": site.name, "facts": {k: vars(f) for k, f in site.facts.items()},
                    "answers": [vars(answer) for answer in answers]})  # fmt: skip
    elif verb == "show":
        print("\n".join(_facts(site)))
    else:
        print("\n".join(_lines(answers)))
    return Unavailable.status if any(a.verdict == "differs" for a in answers) else 0


def _facts(site: Site) -> list[str]:
    lines = [f"{site.title}  ({site.name})"]
    for key, fact in site.facts.items():
        if key == "title" or key.startswith("sources."):
            continue
        lines += ["", f"{key}: {_value(fact)}"]
        help = SITE_KEYS[key].help if key in SITE_KEYS else ""
        lines += [f"    {help}"] if help else []
        if fact.source:
            lines.append(f"    from {fact.source}")
        if fact.confirmed is not None:
            status = "confirmed" if fact.confirmed else "not confirmed"
            lines.append(
                f"    {status}" + (f"; to confirm: {fact.confirm}" if fact.confirm else "")
            )
    letters = {k.partition(".")[2]: f.value for k, f in site.facts.items() if "sources." in k}
    if letters:
        lines += ["", *(f"[{letter}] {title}" for letter, title in letters.items())]
    return lines


def _value(fact: Fact) -> str:
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    return ", ".join(map(str, fact.value)) if isinstance(fact.value, list) else str(fact.value)


def _lines(answers: Sequence[FactCheck]) -> list[str]:
    return [f"{a.verdict:<8} {a.key:<16} {a.detail}" for a in answers]


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
    found = queue.sinfo(field, site.text("partition")) if queue.available() else []
    return found[0] if found else None


def _nodes(site: Site) -> FactCheck | None:
    found = _sinfo(site, "%D")
    if found is None:
        return None
    return _compared("nodes", int(found) == site.number("nodes"), f"Slurm has {found}")


def _modules(site: Site) -> FactCheck | None:
    names = site.strings("modules")
    line = "type module >/dev/null && module is-avail " + " ".join(names)
    right = processes.run(["bash", "-lc", line], timeout=60).returncode == 0
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
