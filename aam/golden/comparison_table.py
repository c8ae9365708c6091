"""The comparison of a golden run as a text table and as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from aam.golden.case import CASES, STEPS
from aam.golden.compare import Row, first_difference
from aam.golden.folder import Stack

_WHERE: dict[tuple[str, ...], str] = {
    ("ragged",): ", where sequences and sets need masks, and not without masks",
    ("even",): ", where no mask is needed, and not with masks",
}
"""The conclusion where only one of the two cases differs."""


def lines(rows: Sequence[Row], there: Stack, here: Stack) -> Iterator[str]:
    """Yield the lines of the table and the conclusion."""
    yield f"golden: {there}"
    yield f"here:   {here}"
    yield ""
    yield f"{'largest difference':<38}{''.join(f'{case:>10}' for case in CASES)}{'rounding':>11}"
    for row in rows:
        cells = "".join(f"{_figure(row.difference.get(case)):>10}" for case in CASES)
        mark = "  differs" if row.differs else ""
        yield f"{row.kind:<9} {row.stage:<28}{cells}{row.allowed:>11.1e}{mark}"
    yield ""
    yield conclusion(rows)


def conclusion(rows: Sequence[Row]) -> str:
    """Return one sentence: whether the two agree, and where they first differ."""
    first = first_difference(rows)
    if first is None:
        numbers = [sum(row.kind == kind for row in rows) for kind in ("output", "gradient")]
        return (
            f"They agree within rounding: outputs of {numbers[0]} stages, gradients of "
            f"{numbers[1]}, losses of {STEPS} steps."
        )
    where = _WHERE.get(first.differs, "")
    named = f"the {first.kind} of {first.stage}" if first.kind != "loss" else f"the {first.stage}"
    worst = max(first.difference.values(), key=lambda v: math.inf if math.isnan(v) else v)
    how = "is not finite" if math.isnan(worst) else f"differs by {worst:.1e}"
    return (
        f"They first differ at {named}{where}: {how} (rounding: {first.allowed:.1e}). "
        "`aam check` measures attention in more detail."
    )


def as_plain(rows: Sequence[Row], there: Stack, here: Stack) -> dict[str, Any]:
    """Return the comparison as JSON values; values that are not finite are null."""
    first = first_difference(rows)
    return {
        "agree": first is None,
        "first_difference": None if first is None else {"kind": first.kind, "stage": first.stage},
        "verdict": conclusion(rows),
        "golden": vars(there),
        "here": vars(here),
        "rows": [
            {
                "kind": row.kind,
                "stage": row.stage,
                "difference": {c: None if math.isnan(v) else v for c, v in row.difference.items()},
                "allowed": row.allowed,
                "differs": list(row.differs),
            }
            for row in rows
        ],
    }


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return "not finite" if math.isnan(value) else f"{value:.1e}" if value else "0"
