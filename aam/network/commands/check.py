"""`aam check`: whether the attention backends of this GPU, driver and PyTorch are right."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace

from rich.console import Console

from aam.console import info, warn
from aam.contract.errors import Unavailable
from aam.contract.options.commands.measure import Check
from aam.contract.options.groups import DeviceOptions
from aam.network.model.attention import BACKENDS, TORCH, Backend
from aam.network.numerics.backends import reported_status, select_backends
from aam.network.numerics.check import CheckPlan, Event, conclude, measure, measure_in_child
from aam.network.numerics.device import Identity, choose_device
from aam.network.numerics.report import (
    UNUSABLE,
    WRONG,
    CheckReport,
    key_of,
    page,
    reports_folder,
    store_report,
    to_json,
    worst,
)


def run_check(options: Check, backends: tuple[Backend, ...] = TORCH) -> int:
    """Measure the attention backends and print the report."""
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
    if all(case.outcome in UNUSABLE for case in report.cases):
        notes = {c.backend: c.note for c in report.cases if c.outcome in ("failed", "memory")}
        evidence = "; ".join(f"{name}: {note}" for name, note in notes.items()) or "none can run"
        cause = "No attention backend runs"
        remedy = "this PyTorch may not be compiled for this GPU; choose another image"
        if any(case.outcome == "memory" for case in report.cases):
            cause = "Out of memory during the check"
            remedy = "another program uses the memory of the GPU: end it, or use another GPU"
        raise Unavailable(cause, evidence, remedy)
    folder = reports_folder(os.environ)
    key = key_of(Identity(**report.identity), *plan.sizes, os.environ)
    if folder is not None and key is not None:
        report = replace(report, key=key)
        # The report is the result; a folder that cannot be written must not hide it.
        if problem := store_report(report, folder):
            warn(f"The check report is not kept: {problem}.")
    if options.json:
        print(to_json(report))
    else:
        console = Console(highlight=False, width=None if Console().is_terminal else 120)
        console.print(page(report, conclusion(report)))
    return 1 if report.wrong else 0


def conclusion(report: CheckReport) -> str:
    """Return whether the backends are right, and which of them `aam` uses."""
    try:
        status_of = reported_status(report, report.dtypes)
        plain, masked, _ = select_backends("auto", BACKENDS, status_of, "this device")
    except Unavailable as error:
        return str(error)
    bad = [name for name in report.backends if worst(report.of(name)) in WRONG]
    verdict = f"Wrong here: {', '.join(bad)}" if bad else "Right here"
    uses = plain if plain == masked else f"{plain}, and {masked} with masks"
    return f"{verdict}. aam uses {uses}. ({math.ceil(report.seconds)} s)"
