"""Mismatched ids of two files: the likely difference, and the remedy in an error message."""

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
"""Likely differences of ids, each with a function that makes the ids equal."""


def likely_difference(ids: Iterable[str], expected: Iterable[str]) -> str:
    """Return the likely difference between ids and the expected ids; "" if there is none.

    >>> likely_difference(["ASV_1", "ASV_2"], ["asv_1", "asv_2"])
    'upper and lower case'
    """
    id_set, expected_set = set(ids), set(expected)
    absent, free = id_set - expected_set, expected_set - id_set
    for reason, change in _DIFFERENCES:
        changed, changed_free = ({change(name) for name in names} for names in (absent, free))
        alike = (changed & free, absent & changed_free, changed & changed_free)
        if max(map(len, alike)) > len(absent) / 2:
            return reason
    return ""


def id_remedy(ids: Iterable[str], expected: Iterable[str], otherwise: str) -> str:
    """Return the remedy for unexpected ids: the likely difference, or `otherwise`."""
    reason = likely_difference(ids, expected)
    return f"make the ids alike: they differ in {reason}" if reason else otherwise
