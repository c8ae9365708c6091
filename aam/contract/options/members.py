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
        method: what it is in the methods paragraph of a report; "" for its title.
        references: keys of `aam/report/references.bib`.
    """

    title: str
    help: str
    module: str
    default: bool = False
    network: bool = False
    method: str = ""
    references: tuple[str, ...] = ()


MEMBERS = {
    "kernel": MemberEntry(
        "sequence kernel",
        "ridge regression on the kernels of the sequences and of their clades",
        "aam.members.kernel",
        default=True,
        method="a kernel ridge regression on the sequences and clades of the ASVs",
        references=("saunders1998",),
    ),
    "forest": MemberEntry(
        "random forest",
        "random forest on relative abundances",
        "aam.members.forest",
        default=True,
        method="a random forest on relative abundances",
        references=("breiman2001", "pedregosa2011"),
    ),
    "transformer": MemberEntry(
        "transformer",
        "the network",
        "aam.members.transformer",
        network=True,
        method="a transformer on the nucleotides and abundances of the ASVs",
        references=("vaswani2017", "paszke2019"),
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
