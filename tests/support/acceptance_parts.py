"""Made-up parts of an acceptance: right, wrong, crashing, hanging, with a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aam.stack.acceptance_parts import (
    AcceptancePart,
    Context,
    Measured,
    NotPossible,
    PartVerdict,
)


@dataclass(frozen=True)
class Value(Measured):
    value: float

    def verdict(self) -> PartVerdict:
        if self.value != 2.0:
            return "wrong", f"{self.value} instead of 2.0."
        return "as predicted", "Equal."


def right(context: Context) -> Value:
    return Value(2.0, rates={"speed": 10.0})


def wrong(context: Context) -> Value:
    return Value(3.0)


def with_a_bug(context: Context) -> Value:
    return Value({}["value"])


def crash(context: Context) -> Value:
    """As a driver that ends the process of a command."""
    context.aam("check", "--json", variables={"PYTHONPATH": "/no", "PYTHONHOME": "/no"})
    return Value(0.0)


def hang(context: Context) -> Value:
    """A command that computes much longer than the part may take."""
    samples = ("--samples", 50_000, "--asvs", 20_000)
    context.aam("example", "--output-dir", context.folder / "large", *samples)
    return Value(0.0)


def no_gpu(context: Context) -> Value:
    raise NotPossible("There is no GPU.")


def part(measure: Callable[[Context], Value], limit: float = 60.0) -> AcceptancePart:
    return AcceptancePart("made up", limit, measure)
