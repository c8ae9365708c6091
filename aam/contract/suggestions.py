"""The nearest known name for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for a misspelt `word`: the nearest of `known`, or `otherwise`."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else otherwise
