"""Before a run: no backend that computes wrong is used.

On a GPU the quick check runs, unless a verdict came with the launch and is for this very stack. On
a processor nothing is measured: no fault is known there, and it would cost a second each time. The
backends and the kinds of devices are values, so that a test can hand in faulty ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aam import __version__
from aam.console import say
from aam.errors import DataError
from aam.model.attention import TORCH, Backend, Backends, runs
from aam.options.groups import AttnImplementation
from aam.record import launched_by
from aam.stack.check import Plan, conclude, measure
from aam.stack.choice import Known, Standing, Use, choose
from aam.stack.identity import Identity, identify
from aam.stack.probes import DTYPES
from aam.stack.verdict import UNUSABLE, WRONG, Verdict, from_json, worst
from aam.stack.watch import PATIENCE, watched

VERDICT = "AAM_VERDICT"
"""The variable in which the launcher hands over a verdict."""


@dataclass(frozen=True)
class Guard:
    """What is guarded, and where.

    Attributes:
        backends: those to choose from, in order of preference.
        devices: kinds of devices on which they are measured.
        patience: seconds after which a GPU is taken to hang.
    """

    backends: tuple[Backend, ...] = TORCH
    devices: tuple[str, ...] = ("cuda",)
    patience: float = PATIENCE


GUARD = Guard()
"""Torch's backends, measured on GPUs."""


@dataclass(frozen=True)
class Need:
    """What a run asks of attention.

    Attributes:
        asked: --attn-implementation.
        check: False for --no-check.
        dtypes: in which the run computes, names of `probes.DTYPES`.
        recomputed: under gradient checkpointing.
        heads, width: of the network; 0 for the default.
    """

    asked: AttnImplementation
    check: bool = True
    dtypes: tuple[str, ...] = ("fp32",)
    recomputed: bool = False
    heads: int = 0
    width: int = 0


@dataclass(frozen=True)
class Guarded:
    """The outcome.

    Attributes:
        backends: what the network computes attention with.
        warnings: what has to be said.
        record: for run.json.
    """

    backends: Backends
    warnings: tuple[str, ...]
    record: dict[str, Any]


def guarded(
    need: Need, device: torch.device, environment: Mapping[str, str], guard: Guard
) -> Guarded:
    """Choose the backends of a run.

    Raises:
        Unavailable: no backend computes right, or the GPU does not answer.
    """
    verdict, evidence, warnings = _verdict(need, device, environment, guard)
    known = _running(device, need) if verdict is None else of_verdict(verdict, need)
    choice = choose(need.asked, guard.backends, known, device.type)
    warnings += list(choice.said)
    record: dict[str, Any] = {
        "asked": need.asked,
        "without_mask": choice.backends.plain.name,
        "with_mask": choice.backends.masked.name,
        "evidence": evidence,
    }
    if verdict is not None:
        wrong = {b: verdict.faults(b, need.dtypes) for b in verdict.backends}
        record["faults"] = {name: list(faults) for name, faults in wrong.items() if faults}
        record["stack"] = verdict.identity
        warnings += [
            f"attention backend {name}: {', '.join(faults)}"
            for name, faults in record["faults"].items()
            if choice.said and name == need.asked.replace("sdpa", "auto")
        ]
    return Guarded(choice.backends, tuple(warnings), record)


def _verdict(
    need: Need, device: torch.device, environment: Mapping[str, str], guard: Guard
) -> tuple[Verdict | None, str, list[str]]:
    """Return a verdict to rely on, if any, where it comes from, and what has to be said."""
    if device.type not in guard.devices:
        return None, f"not measured on a {device.type}", []
    if not need.check:
        return None, "not measured: --no-check", []
    text = environment.get(VERDICT)
    warnings = []
    if text:
        try:
            verdict = from_json(text)
            problem = unsuited(verdict, identify(device), need, launched_by(environment))
        except DataError as error:
            problem = str(error).rstrip(".")
        if problem is None:
            return verdict, f"measured for this stack, {verdict.made}", []
        warnings.append(f"The verdict that came with the launch is not used: {problem}.")
    where = "processor" if device.type == "cpu" else "GPU"
    say(f"Measuring whether this {where} computes attention right.")
    plan = Plan(True, need.dtypes, need.recomputed, need.heads, need.width)
    if device.type == "cpu":
        events = measure(guard.backends, plan, device)
    else:
        events = watched(guard.backends, plan, device, guard.patience)
    return conclude(events, quick=True), "measured before this run", warnings


def unsuited(
    verdict: Verdict, here: Identity, need: Need, launch: Mapping[str, Any] | None
) -> str | None:
    """Say why a verdict does not tell about this stack or this run; None if it does.

    Args:
        launch: what the launcher says of the run; it alone knows the digest of the image.
    """
    if verdict.key is None:
        return "it does not say what it was made for"
    held = {
        "arch": (verdict.key.arch, here.arch),
        "driver": (verdict.key.driver, here.driver or "none"),
        "aam": (verdict.key.aam, __version__),
        "torch": (verdict.identity.get("torch"), here.torch),
        "vendor": (verdict.identity.get("vendor"), here.vendor),
        "aotriton": (verdict.identity.get("aotriton"), here.aotriton),
    }
    if launch and launch.get("image"):
        held["image"] = (verdict.key.image, launch.get("digest"))
    for name, (then, now) in held.items():
        if then != now:
            return f"it was made for {name} {then}, here is {now}"
    missing = set(need.dtypes) - set(verdict.dtypes)
    if missing:
        return f"it says nothing about {', '.join(sorted(missing))}"
    return None


def of_verdict(verdict: Verdict, need: Need) -> Known:
    """What a verdict says of each backend: one that is wrong anywhere is trusted nowhere."""

    def known(backend: Backend, use: Use) -> Standing:
        cases = verdict.of(backend.name, need.dtypes)
        cases = tuple(c for c in cases if need.recomputed or c.mask != "recomputed")
        if any(case.outcome in WRONG for case in cases):
            return "wrong"
        found = worst([case for case in cases if (case.mask == "none") == (use == "plain")])
        if found in UNUSABLE:
            return "absent"
        return "harmless" if found == "harmless" else "right"

    return known


def _running(device: torch.device, need: Need) -> Known:
    """What merely trying says of each backend."""

    def known(backend: Backend, use: Use) -> Standing:
        masked = use == "masked"
        fine = all(runs(backend, device, masked, DTYPES[name]) for name in need.dtypes)
        return "right" if fine else "absent"

    return known
