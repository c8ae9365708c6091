"""`aam-launch site show NAME`: print the facts of a cluster with their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher import config
from launcher.commands import parse_own, print_json
from launcher.options.inspection import SiteShow
from launcher.slurm.site import SITE_KEYS, Fact, Site


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the facts of a site; `doctor --site` compares them with this host."""
    site = config.site(parse_own(SiteShow, argv[1:], "site show").name)
    if "--json" in launcher_options:
        facts = {key: vars(fact) for key, fact in site.facts.items()}
        print_json({"site": site.name, "facts": facts})
    else:
        print("\n".join(_facts(site)))
    return 0


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
