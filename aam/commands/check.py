"""`aam check`: does this GPU, driver and PyTorch compute attention right?"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from aam.console import say
from aam.contract.check_report import UNUSABLE, CheckReport, to_json, worst
from aam.contract.errors import Unavailable
from aam.contract.options.commands import Check
from aam.contract.options.groups import DeviceOptions
from aam.model.attention import TORCH, Backend
from aam.numerics.check import CheckPlan, Event, conclude, measure
from aam.numerics.child_process import watched
from aam.numerics.report_table import show

WRONG = 1
"""Exit status where a usable backend computes wrong."""


def run(options: Check, backends: tuple[Backend, ...] = TORCH) -> int:
    """Measure, show, and return 0 if every usable backend is right, else 1.

    Raises:
        Unavailable: no GPU although one was asked for, one that does not answer, or no backend
            that answers.
    """
    from aam.numerics.device import choose_device

    device = choose_device(DeviceOptions(device=options.device))
    if device.type == "cpu" and options.device == "auto":
        say("No GPU here: the processor is measured.")
    plan = CheckPlan(options.quick, recomputed=not options.quick)
    report = conclude(_events(backends, plan, device, options.timeout), options.quick)
    _require_answers(report)
    if options.json:
        print(to_json(report))
    else:
        show(report)
    return WRONG if report.wrong else 0


def _events(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device, patience: float
) -> Iterable[Event]:
    if device.type == "cpu":
        return measure(backends, plan, device)
    return watched(backends, plan, device, patience)


def _require_answers(report: CheckReport) -> None:
    """Refuse to judge where nothing answered.

    Raises:
        Unavailable: no backend could be measured.
    """
    outcomes = {name: worst(report.of(name, report.dtypes)) for name in report.backends}
    if any(case.outcome not in UNUSABLE for case in report.cases):
        return
    notes = {c.backend: c.note for c in report.cases if c.outcome in ("failed", "memory")}
    if "memory" in outcomes.values():
        remedy = "another program holds the GPU's memory: end it, or take another GPU"
        raise Unavailable("Out of memory during the check", _said(notes), remedy)
    remedy = "this PyTorch may not be made for this GPU; choose another image"
    raise Unavailable("No attention backend answers", _said(notes), remedy)


def _said(notes: dict[str, str]) -> str:
    return "; ".join(f"{name}: {note}" for name, note in notes.items()) or "none can run"
