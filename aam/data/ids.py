"""Ids of two files that ought to be the same: why they probably differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_DIFFERENCES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("blanks at the ends", str.strip),
    ("upper and lower case", str.lower),
    ("blanks and '_'", lambda name: name.replace(" ", "_")),
    ("'.', '_' and '-'", lambda name: re.sub(r"[._-]", ".", name)),
    ("text after ';', as ';size='", lambda name: name.partition(";")[0]),
    ("zeros at the beginning or the end", lambda name: name.strip("0").rstrip(".")),
    ("a prefix", lambda name: re.sub(r"^.*?[._-]", "", name)),
    ("a prefix", lambda name: re.sub(r"^.*[._-]", "", name)),
    ("a suffix", lambda name: re.sub(r"[._-][^._-]*$", "", name)),
    ("a suffix", lambda name: re.sub(r"[._-].*$", "", name)),
)
"""Likely reasons for ids that differ, and what makes them equal on one side or on both."""


def likely_difference(ids: Iterable[str], known: Iterable[str]) -> str:
    """Return in what most ids that are not `known` differ from these; "" if no reason is likely.

    >>> likely_difference(["ASV_1", "ASV_2"], ["asv_1", "asv_2"])
    'upper and lower case'
    """
    whole, present = set(ids), set(known)
    absent, free = whole - present, present - whole
    for reason, change in _DIFFERENCES:
        changed, changed_free = ({change(name) for name in names} for names in (absent, free))
        alike = (changed & free, absent & changed_free, changed & changed_free)
        if max(map(len, alike)) > len(absent) / 2:
            return reason
    return ""


def id_remedy(ids: Iterable[str], known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for ids that are not `known`: what to make alike, or `otherwise`."""
    reason = likely_difference(ids, known)
    return f"make the ids alike: they differ in {reason}" if reason else otherwise
