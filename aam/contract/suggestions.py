"""Suggestions for misspelt names: the nearest known ones."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], otherwise: str, most: int = 1) -> str:
    """Return the remedy for a misspelt name: its nearest known ones, or `otherwise`.

    >>> nearest("trian", ["train", "predict"], "see `aam --help`")
    "did you mean 'train'?"
    """
    import difflib  # 0.5 ms that only an error costs

    spellings = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), list(spellings), n=most)
    near = [spellings[each] for each in found]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
