"""`aam-launch site show NAME`: print the facts of a cluster with their sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from aam.contract.errors import UsageError
from aam.contract.options import basic_option
from launcher import config
from launcher.commands import parse_own, print_json, show
from launcher.slurm.site import HELP


@dataclass(frozen=True)
class SiteShow:
    """Show what is known about a cluster; `doctor --site` compares it with a host.

    Examples:
        aam-launch site show cosmos
        aam-launch site show ./my_cluster.yaml --json
    """

    name: str = basic_option(
        "Name of the site, or its file.", default="", first=True, metavar="SITE"
    )


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the facts of a site; `doctor --site` compares them with this host."""
    name = parse_own(SiteShow, argv[1:], "site show").name
    if not name:
        remedy = f"known are {', '.join(config.sites())}; a path names a file"
        raise UsageError("No site is named", "`site show`", remedy)
    site = config.site(name)
    if "--json" in launcher_options:
        facts = {key: msgspec.structs.asdict(fact) for key, fact in site.facts.items()}
        print_json({"site": site.name, "facts": facts})
        return 0
    show(f"{site.title}  ({site.name})")
    for key, fact in site.facts.items():
        if key == "title" or key.startswith("sources."):
            continue
        value = fact.value
        shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        show("", f"{key}: {', '.join(map(str, value)) if isinstance(value, tuple) else shown}")
        if key in HELP:
            show(f"    {HELP[key]}")
        if fact.source:
            show(f"    from {fact.source}")
        if fact.confirmed is not None:
            status = "confirmed" if fact.confirmed else "not confirmed"
            show(f"    {status}" + (f"; to confirm: {fact.confirm}" if fact.confirm else ""))
    if site.values.sources:
        show("", *(f"[{key}] {title}" for key, title in site.values.sources.items()))
    return 0
