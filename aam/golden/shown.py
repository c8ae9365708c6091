"""The comparison as a table for a person and as plain values for a program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from aam.golden.case import CASES, STEPS
from aam.golden.compare import Row, first_departure
from aam.golden.folder import Stack

_WHERE: dict[tuple[str, ...], str] = {
    ("ragged",): ", where sequences and sets need masks, and not without masks",
    ("even",): ", where no mask is needed, and not with masks",
}
"""What it means that one of the two cases alone departs."""


def lines(rows: Sequence[Row], there: Stack, here: Stack) -> Iterator[str]:
    """Yield the table and the verdict, line by line."""
    yield f"golden: {there}"
    yield f"here:   {here}"
    yield ""
    yield f"{'largest difference':<38}{''.join(f'{case:>10}' for case in CASES)}{'rounding':>11}"
    for row in rows:
        cells = "".join(f"{_figure(row.apart.get(case)):>10}" for case in CASES)
        mark = "  departs" if row.departs else ""
        yield f"{row.kind:<9} {row.stage:<28}{cells}{row.allowed:>11.1e}{mark}"
    yield ""
    yield verdict(rows)


def verdict(rows: Sequence[Row]) -> str:
    """Say in one sentence whether the two agree, and where they depart first."""
    first = first_departure(rows)
    if first is None:
        numbers = [sum(row.kind == kind for row in rows) for kind in ("output", "gradient")]
        return (
            f"They agree within rounding: outputs of {numbers[0]} stages, gradients of "
            f"{numbers[1]}, losses of {STEPS} steps."
        )
    where = _WHERE.get(first.departs, "")
    named = f"the {first.kind} of {first.stage}" if first.kind != "loss" else f"the {first.stage}"
    worst = max(first.apart.values(), key=lambda v: math.inf if math.isnan(v) else v)
    how = "is not finite" if math.isnan(worst) else f"differs by {worst:.1e}"
    return (
        f"They depart first at {named}{where}: {how} (rounding: {first.allowed:.1e}). "
        "`aam check` looks at attention more closely."
    )


def as_plain(rows: Sequence[Row], there: Stack, here: Stack) -> dict[str, Any]:
    """Return everything as values that JSON knows; what is not finite is null."""
    first = first_departure(rows)
    return {
        "agree": first is None,
        "departs_first": None if first is None else {"kind": first.kind, "stage": first.stage},
        "verdict": verdict(rows),
        "golden": vars(there),
        "here": vars(here),
        "rows": [
            {
                "kind": row.kind,
                "stage": row.stage,
                "apart": {c: None if math.isnan(v) else v for c, v in row.apart.items()},
                "allowed": row.allowed,
                "departs": list(row.departs),
            }
            for row in rows
        ],
    }


def _figure(apart: float | None) -> str:
    if apart is None:
        return ""
    return "not finite" if math.isnan(apart) else f"{apart:.1e}" if apart else "0"
