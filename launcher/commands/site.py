"""`aam-launch site show|check NAME`: print the facts of a cluster, or check them on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aam.contract.errors import Unavailable
from launcher import config
from launcher.commands import parse_own, print_json
from launcher.options.clusters import SiteShow
from launcher.slurm.site import SITE_KEYS, Fact, Site
from launcher.slurm.site_check import FactCheck, check_facts


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
