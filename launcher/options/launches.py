"""Options of explain and doctor."""

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
        aam-launch doctor
        aam-launch doctor --capture node.tar
    """

    capture: Path | None = option(
        "Write the facts about this host that decisions depend on to a tar.",
        default=None,
        role="output",
        basic=True,
    )
