"""`aam check` and `aam golden`: the commands that examine GPU, driver and PyTorch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace

from rich.console import Console

from aam.console import info, warn
from aam.contract.errors import NotFinite, Unavailable
from aam.contract.files import dump_json, refuse_existing
from aam.contract.options.commands.measure import Check, GoldenCompare, GoldenGenerate
from aam.contract.options.groups import DeviceOptions
from aam.model.attention import BACKENDS, TORCH, Backend
from aam.numerics.backends import TORCH_POLICY, choose_attention, reported_status, select_backends
from aam.numerics.check import CheckPlan, Event, conclude, measure, measure_in_child
from aam.numerics.device import Identity, arch_of, choose_device, choose_precision
from aam.numerics.report import (
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


def run_golden(options: GoldenGenerate | GoldenCompare) -> int:
    """Save the golden case, or compare it with a golden folder."""
    # scikit-learn takes 2 CPU-seconds to import, which `aam check` does without.
    from aam import golden

    folder, stack = options.golden_dir, options.stack
    if isinstance(options, GoldenGenerate):
        refuse_existing(folder / golden.FILE, options.overwrite)
    else:
        there, reference = golden.read(folder)
    # Without the check: a wrong backend is kept, since the comparison is made to find it.
    requested = DeviceOptions(
        device=stack.device, attn_implementation=stack.attn_implementation, check=False
    )
    device = choose_device(requested)
    precision = choose_precision(stack.mixed_precision, arch_of(device))
    backends = choose_attention(requested, device, golden.SHAPE, TORCH_POLICY, precision).backends
    here = golden.Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    batches = {name: golden.batch(name) for name in golden.SAMPLES}
    measured = golden.measure(golden.weights(), batches, device, backends, precision)
    if isinstance(options, GoldenGenerate):
        # A reference with NaN would agree with nothing, on any stack.
        for name, tensor in measured.tensors.items():
            if not tensor.isfinite().all():
                cause = "This stack computes values that are not finite"
                raise NotFinite(cause, name, "run `aam check`")
        golden.write(folder, here, measured)
        info(f"{here}: {folder}")
        return 0
    rows = golden.compare(reference, measured, (there.precision, precision))
    if options.json:
        print(dump_json(golden.as_plain(rows, there, here), indent=2))
    else:
        print("\n".join(golden.lines(rows, there, here)))
    return 0 if golden.first_difference(rows) is None else 1
