"""Options of jobs, site show and site check."""

from dataclasses import dataclass

from aam.contract.options.field import option


@dataclass(frozen=True)
class Jobs:
    """List the jobs that were submitted: state, time left, progress and last metrics.

    Examples:
        aam-launch jobs
        aam-launch jobs --json
    """


@dataclass(frozen=True)
class SiteOptions:
    """Site that a command reads."""

    name: str = option(
        "Name of the site, or its file.", default="", first=True, metavar="SITE", basic=True
    )


@dataclass(frozen=True)
class SiteShow(SiteOptions):
    """Show what is known about a cluster.

    Examples:
        aam-launch site show cosmos
        aam-launch site show ./my_cluster.yaml --json
    """


@dataclass(frozen=True)
class SiteCheck(SiteOptions):
    """Compare what is known about a cluster with this host, a login node of it.

    Examples:
        aam-launch site check cosmos
        aam-launch site check cosmos --json
    """
