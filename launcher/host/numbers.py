"""Whole numbers and lists of them in files and variables, read within bounds."""

from __future__ import annotations

LONGEST_LIST = 4096
"""Members of a list of GPUs; no node has as many."""


def whole_number(text: str) -> int | None:
    """Return a decimal number of a file or a variable; None for anything else.

    >>> whole_number("128"), whole_number("-1"), whole_number("9" * 5000)
    (128, None, None)
    """
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 20 else None


def numbers(text: str) -> tuple[int, ...] | None:
    """Read "0,2-4" as (0, 2, 3, 4); None for anything else and for long ranges."""
    found: list[int] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        start, end = whole_number(first), whole_number(last or first)
        if start is None or end is None or end - start > LONGEST_LIST:
            return None
        found.extend(range(start, end + 1))
    return tuple(found)
