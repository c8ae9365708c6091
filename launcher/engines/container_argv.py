"""Parts of a container engine's command line: `env` assignments and --mount fields."""

from __future__ import annotations

from launcher.plan.plan import Plan

ENV = "/usr/bin/env"


def program(plan: Plan) -> tuple[str, ...]:
    """Return the argv inside the container: `env` sets the variables, so no engine interprets them.

    Apptainer splits the values of its own --env at commas and has a shell evaluate them.
    """
    return (ENV, *assignments(plan), "aam", *plan.argv)


def assignments(plan: Plan) -> tuple[str, ...]:
    """Return the variables of a plan as `env` takes them."""
    return tuple(f"{name}={value}" for name, value in plan.variables)


def fields(*values: str) -> str:
    """Join the fields of a --mount value; it is read as CSV (RFC 4180), so quotes are doubled.

    >>> fields("type=bind", "source=/a,b")
    'type=bind,"source=/a,b"'
    """
    return ",".join(_quoted(value) for value in values)


def _quoted(value: str) -> str:
    special = any(mark in value for mark in ',"\r\n') or value.startswith(" ")
    return '"' + value.replace('"', '""') + '"' if special else value
