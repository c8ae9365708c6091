"""Formats of numbers: significant digits, fixed digits."""

from __future__ import annotations


def significant(value: float, signed: bool = False) -> str:
    """Format a number with three significant digits; as an integer from 100 to a billion.

    >>> significant(0.01234), significant(4218.4), significant(1.5, signed=True)
    ('0.0123', '4218', '+1.5')
    """
    sign = "+" if signed else ""
    return f"{value:{sign}.0f}" if 100 <= abs(value) < 1e9 else f"{value:{sign}.3g}"


def fixed(value: float, digits: int = 3) -> str:
    """Format a number with fixed decimals: at most one from 100 on, none from 1000 on.

    >>> fixed(0.7), fixed(347.221), fixed(1234.7), fixed(-0.0001)
    ('0.700', '347.2', '1235', '0.000')
    """
    size = abs(value)
    digits = min(digits, 0 if size >= 1000 else 1 if size >= 100 else digits)
    # Adding 0 turns -0.000 into 0.000.
    return f"{round(value, digits) + 0:.{digits}f}"
