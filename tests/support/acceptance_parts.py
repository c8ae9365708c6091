"""Made-up parts of an acceptance: right, wrong, crashing, hanging, with a bug."""

from __future__ import annotations

from collections.abc import Callable

from aam.acceptance.parts import AcceptancePart, Context, NotPossible, Values, Verdict


def right(context: Context) -> Values:
    return {"value": 2.0, "rates": {"speed": 10.0}}


def wrong(context: Context) -> Values:
    return {"value": 3.0, "rates": {}}


def unlike_its_schema(context: Context) -> Values:
    return {"values": []}


def crash(context: Context) -> Values:
    """As a driver that ends the process of a command."""
    context.aam("check", "--json", variables={"PYTHONPATH": "/no", "PYTHONHOME": "/no"})
    return {}


def hang(context: Context) -> Values:
    """A command that computes much longer than the part may take."""
    samples = ("--samples", 50_000, "--asvs", 20_000)
    context.aam("example", "--output-dir", context.folder / "large", *samples)
    return {}


def no_gpu(context: Context) -> Values:
    raise NotPossible("There is no GPU.")


def evaluate(measured: Values) -> Verdict:
    if measured["value"] != 2.0:
        return "wrong", f"{measured['value']} instead of 2.0."
    return "as predicted", "Equal."


def part(measure: Callable[[Context], Values], limit: float = 60.0) -> AcceptancePart:
    return AcceptancePart("made up", limit, measure, evaluate)
