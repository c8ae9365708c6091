"""Options of the commands that show a host, jobs or a cluster."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import option


@dataclass(frozen=True)
class Explain:
    """Show every decision about a command, its reason and its source; run nothing.

    Examples:
        aam-launch explain pretrain --table study.biom --tree tree.nwk --output-dir run
        aam-launch explain pretrain --host node.tar
    """


@dataclass(frozen=True)
class Doctor:
    """Show GPUs, drivers and engines of this host, what would fail, and the remedy.

    Examples:
        aam-launch doctor --site cosmos
        aam-launch doctor --capture node.tar
    """

    capture: Path | None = option(
        "Write the facts about this host that decisions depend on to a tar.",
        default=None,
        role="output",
        basic=True,
    )


@dataclass(frozen=True)
class Jobs:
    """List the jobs that were submitted: state, time left, progress, and why one failed.

    Examples:
        aam-launch jobs
        aam-launch jobs --json
    """


@dataclass(frozen=True)
class SiteShow:
    """Show what is known about a cluster; `doctor --site` compares it with a host.

    Examples:
        aam-launch site show cosmos
        aam-launch site show ./my_cluster.yaml --json
    """

    name: str = option(
        "Name of the site, or its file.", default="", first=True, metavar="SITE", basic=True
    )
