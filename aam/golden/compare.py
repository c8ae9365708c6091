"""Comparison of two measurements of the golden case, stage by stage: rows, table and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from aam.golden.case import CASES, SHAPE, STEPS
from aam.golden.folder import Stack
from aam.golden.measure import GoldenResult, is_stage, stage_of
from aam.model.network import Predictor
from aam.model.transformer import FEED_FORWARD
from aam.numerics.device import Precision, product_tolerance

INNER = FEED_FORWARD * SHAPE.embedding_dim
"""Inner size of the network's largest matrix product."""


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        kind: "output", "gradient" or "loss".
        stage: name of the stage, or the steps of a part of the loss curve.
        difference: largest difference relative to the largest value, by case; NaN where a
            value is not finite.
        allowed: tolerance, the difference that rounding explains.
    """

    kind: str
    stage: str
    difference: dict[str, float]
    allowed: float

    @property
    def differs(self) -> tuple[str, ...]:
        """The cases that differ by more than rounding."""
        return tuple(case for case, value in self.difference.items() if not value <= self.allowed)


def compare(
    golden: GoldenResult, found: GoldenResult, precisions: Iterable[Precision], network: Predictor
) -> list[Row]:
    """Return the rows in the order of computation: outputs, then gradients, then the loss curve.

    Args:
        golden: measurement of the golden folder.
        found: measurement of this stack.
        precisions: precisions of both runs; the coarser one decides the tolerance.
        network: the network that was measured, for the order of its parts.
    """
    used = [*precisions]
    depth = max(golden.products.values())

    def allowed(products: int) -> float:
        return max(product_tolerance(precision, products, INNER) for precision in used)

    rows = [*_outputs(golden, found, allowed)]
    # Forward to the losses and back to the first layer: one bound for all gradients.
    rows += _gradients(golden, found, allowed(3 * depth), network)
    # Losses are means and training does not amplify rounding: measured over the 50 steps, with
    # other kernels and in bf16, they stay below a fifth of the bound of one forward pass.
    return [*rows, *_curve(golden.losses, found.losses, allowed(depth))]


def first_difference(rows: Iterable[Row]) -> Row | None:
    """Return the first row, in the order of computation, that differs by more than rounding."""
    return next((row for row in rows if row.differs), None)


def _outputs(
    golden: GoldenResult, found: GoldenResult, allowed: Callable[[int], float]
) -> Iterable[Row]:
    stages = {key.partition("/")[2]: products for key, products in golden.products.items()}
    for stage, products in stages.items():
        differences = {}
        for case in CASES:
            key = f"{case}/{stage}"
            if key in golden.stages:
                differences[case] = _difference([golden.stages[key]], [found.stages.get(key)])
        yield Row("output", stage, differences, allowed(products))


def _gradients(
    golden: GoldenResult, found: GoldenResult, allowed: float, network: Predictor
) -> Iterable[Row]:
    for stage, names in _groups(network).items():
        differences = {}
        for case in CASES:
            keys = [key for name in names if (key := f"{case}/{name}") in golden.gradients]
            if keys:
                right = [golden.gradients[key] for key in keys]
                differences[case] = _difference(right, [found.gradients.get(key) for key in keys])
        if differences:
            yield Row("gradient", stage, differences, allowed)


def _groups(network: Predictor) -> dict[str, list[str]]:
    """List the parameters of each stage, from the losses backwards."""
    stages = {name for name, module in network.named_modules() if is_stage(name, module)}
    found: dict[str, list[str]] = {}
    for parameter, _ in reversed([*network.named_parameters()]):
        module = parameter.rpartition(".")[0]
        above = [name for name in stages if module == name or module.startswith(f"{name}.")]
        within = [name for name in above if name.count(".") > 1 or not name.startswith("encoder.")]
        stage = stage_of(max(within, key=len) if within else module)
        found.setdefault(stage, []).append(parameter)
    return found


def _curve(golden: list[float], found: list[float], allowed: float) -> Iterable[Row]:
    """Yield a row for every fifth of the loss curve."""
    each = max(1, len(golden) // 5)
    for start in range(0, len(golden), each):
        differences = {}
        for turn, case in enumerate(CASES):
            steps = [k for k in range(start, start + each) if k % len(CASES) == turn]
            differences[case] = max(
                (_step_difference(golden[k], found[k]) for k in steps), default=0.0
            )
        yield Row("loss", f"steps {start + 1}-{start + each}", differences, allowed)


def _step_difference(golden: float, found: float) -> float:
    return abs(found - golden) / abs(golden) if math.isfinite(found) else math.nan


def _difference(golden: list[Tensor], found: list[Tensor | None]) -> float:
    """Return the largest difference of tensors, relative to the largest golden value."""
    scale = max(float(right.abs().max()) for right in golden)
    worst = 0.0
    for right, other in zip(golden, found, strict=True):
        if other is None or other.shape != right.shape or not bool(torch.isfinite(other).all()):
            return math.nan
        worst = max(worst, float((other - right).abs().max()))
    return worst / max(scale, torch.finfo(torch.float32).tiny)


_WHERE: dict[tuple[str, ...], str] = {
    ("ragged",): ", where sequences and sets need masks, and not without masks",
    ("even",): ", where no mask is needed, and not with masks",
}
"""The conclusion where only one of the two cases differs."""


def lines(rows: Sequence[Row], there: Stack, here: Stack) -> Iterator[str]:
    """Yield the lines of the table and the conclusion.

    Args:
        rows: differences of all stages.
        there: stack that made the golden folder.
        here: stack of this computation.
    """
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
    """Return the comparison as JSON values; values that are not finite are null.

    Args:
        rows: differences of all stages.
        there: stack that made the golden folder.
        here: stack of this computation.
    """
    first = first_difference(rows)
    return {
        "agree": first is None,
        "first_difference": None if first is None else {"kind": first.kind, "stage": first.stage},
        "verdict": conclusion(rows),
        "golden": vars(there),
        "here": vars(here),
        "rows": [
            asdict(row)
            | {
                "difference": {c: None if math.isnan(v) else v for c, v in row.difference.items()},
                "differs": list(row.differs),
            }
            for row in rows
        ],
    }


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return "not finite" if math.isnan(value) else f"{value:.1e}" if value else "0"
