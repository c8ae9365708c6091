"""Registry of the members of `aam train`: the models that it trains and combines.

It needs no library, so that command lines, help pages and the launcher read it.
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class MemberEntry:
    """Declaration of a member.

    Attributes:
        title: noun for messages and reports.
        help: description of the model for help pages.
        module: module whose `MEMBER` is the member; it is imported where the member is used.
        default: whether it is trained without --members.
        network: whether it computes with the network: on a GPU, or in several processes.
    """

    title: str
    help: str
    module: str
    default: bool = False
    network: bool = False


MEMBERS = {
    "kernel": MemberEntry(
        "sequence kernel",
        "ridge regression on the kernels of the sequences and of their clades",
        "aam.members.kernel",
        default=True,
    ),
    "forest": MemberEntry(
        "random forest",
        "random forest on relative abundances",
        "aam.members.forest",
        default=True,
    ),
    "transformer": MemberEntry(
        "transformer", "the network", "aam.members.transformer_model", network=True
    ),
}
"""Members by name; a module and an entry add one."""

MemberName = Annotated[str, MEMBERS]


def networks(members: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the members that compute with the network."""
    return tuple(name for name in members if MEMBERS[name].network)


def default_members() -> tuple[str, ...]:
    """Return the members that are trained without --members."""
    return tuple(name for name, entry in MEMBERS.items() if entry.default)
