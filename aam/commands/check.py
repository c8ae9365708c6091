"""`aam check`: accuracy of the attention backends of this GPU, driver and PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from aam.console import info, warn
from aam.contract.errors import Unavailable
from aam.contract.options.commands.stack import Check
from aam.contract.options.device import DeviceOptions
from aam.model.attention import TORCH, Backend
from aam.numerics import report_cache
from aam.numerics.check import CheckPlan, Event, conclude, measure
from aam.numerics.check_report import UNUSABLE, CheckReport, to_json, worst
from aam.numerics.child_process import measure_in_child
from aam.numerics.report_table import show
from aam.numerics.stack_identity import Identity

WRONG = 1
"""Exit status where a usable backend computes wrong."""


def run(options: Check, backends: tuple[Backend, ...] = TORCH) -> int:
    """Measure the attention backends and print the report.

    Args:
        options: device, size of the check, timeout of a backend, and format of the report.
        backends: attention backends to measure.

    Returns:
        The exit status: 0 if every usable backend is correct, else 1.

    Raises:
        Unavailable: a requested GPU does not exist or does not respond, or no backend runs.
    """
    from aam.numerics.device import choose_device

    device = choose_device(DeviceOptions(device=options.device))
    if device.type == "cpu" and options.device == "auto":
        info("No GPU was found; the CPU is measured.")
    plan = CheckPlan(options.quick, recomputed=not options.quick)
    events: Iterable[Event]
    if device.type == "cpu":
        events = measure(backends, plan, device)
    else:
        # A GPU that hangs or crashes its process ends the child alone; the report then has the
        # result of the other backends.
        events = measure_in_child(backends, plan, device, options.timeout)
    report = conclude(events, options.quick)
    _require_results(report)
    report = _kept(report, plan)
    if options.json:
        print(to_json(report))
    else:
        show(report)
    return WRONG if report.wrong else 0


def _kept(report: CheckReport, plan: CheckPlan) -> CheckReport:
    """Return the report with its key, after storing it for the runs of this stack."""
    folder = report_cache.folder_of(os.environ)
    key = report_cache.key_of(Identity(**report.identity), *plan.sizes, os.environ)
    if folder is None or key is None:
        return report
    report = replace(report, key=key)
    # The report is the result; a folder that cannot be written must not hide it.
    if problem := report_cache.store(report, folder):
        warn(f"The check report is not kept: {problem}.")
    return report


def _require_results(report: CheckReport) -> None:
    """Raise an error if no backend ran.

    Raises:
        Unavailable: no backend could be measured.
    """
    outcomes = {name: worst(report.of(name, report.dtypes)) for name in report.backends}
    if any(case.outcome not in UNUSABLE for case in report.cases):
        return
    notes = {c.backend: c.note for c in report.cases if c.outcome in ("failed", "memory")}
    if "memory" in outcomes.values():
        remedy = "another program uses the memory of the GPU: end it, or use another GPU"
        raise Unavailable("Out of memory during the check", _joined(notes), remedy)
    remedy = "this PyTorch may not be compiled for this GPU; choose another image"
    raise Unavailable("No attention backend runs", _joined(notes), remedy)


def _joined(notes: dict[str, str]) -> str:
    return "; ".join(f"{name}: {note}" for name, note in notes.items()) or "none can run"
