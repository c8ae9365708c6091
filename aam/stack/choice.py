"""Which backends a network computes attention with, given what is known of each. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from aam.errors import Unavailable
from aam.model.attention import Backend, Backends, named
from aam.options.groups import AttnImplementation

Use = Literal["plain", "masked"]
Standing = Literal["right", "harmless", "wrong", "absent"]
"""What is known of a backend in a use.

right: it computes what it should, or nobody has measured it and it runs. harmless: it is wrong in
a way that no model notices. wrong: it is not to be trusted. absent: it cannot run.
"""

Known = Callable[[Backend, Use], Standing]

REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""What is tried in place of another: a fused kernel first, and by its name, so that the record
tells what ran."""


@dataclass(frozen=True)
class Choice:
    """Backends, and what has to be said about them because it is not what was asked for."""

    backends: Backends
    said: tuple[str, ...] = ()


def choose(
    asked: AttnImplementation, backends: tuple[Backend, ...], known: Known, device: str
) -> Choice:
    """Take the backend asked for where it is right, and the next right one where it is not.

    Raises:
        Unavailable: no backend computes right.
    """
    wanted = named(asked, backends)
    rest = [b for name in REPLACEMENTS for b in backends if b.name == name and b is not wanted]
    plain = _first(wanted, rest, "plain", known)
    masked = _first(wanted, rest, "masked", known)
    return Choice(Backends(plain, masked), tuple(_said(wanted, plain, masked, known, device)))


def _first(wanted: Backend, rest: list[Backend], use: Use, known: Known) -> Backend:
    harmless = None
    for backend in (wanted, *rest):
        standing = known(backend, use)
        if standing == "right":
            return backend
        if standing == "harmless" and harmless is None:
            harmless = backend
    if harmless is None:
        names = ", ".join(f"{b.name} {known(b, use)}" for b in (wanted, *rest))
        raise Unavailable(
            "No attention backend computes right here",
            names,
            "run `aam check`; --device cpu computes right, --no-check runs all the same",
        )
    return harmless


def _said(wanted: Backend, plain: Backend, masked: Backend, known: Known, device: str) -> list[str]:
    """Say what runs instead of what was asked for, and why."""
    if wanted is plain is masked:
        return []
    asked = f"--attn-implementation {wanted.name}"
    if wanted is plain:
        why = _why(known(wanted, "masked"), "takes no mask", "with masks", device)
        return [f"{asked} {why}; {masked.name} runs where there is one."]
    why = _why(known(wanted, "plain"), "cannot run", "", device)
    ran = plain.name if plain is masked else f"{plain.name}, and {masked.name} with masks,"
    return [f"{asked} {why}; {ran} {'runs' if plain is masked else 'run'} instead."]


def _why(standing: Standing, absent: str, where: str, device: str) -> str:
    if standing == "absent":
        return f"{absent} on {device}"
    return " ".join(f"computes wrong {where} on {device}".split())
