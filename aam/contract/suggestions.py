"""Suggestions for misspelt names: the nearest known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], otherwise: str, most: int = 1) -> str:
    """Return the remedy for a misspelt name: its nearest known ones, or `otherwise`.

    >>> nearest("trian", ["train", "predict"], "see `aam --help`")
    "did you mean 'train'?"
    """
    near = difflib.get_close_matches(name, list(known), n=most)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
