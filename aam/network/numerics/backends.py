"""Attention backends: selection before a run, and the command `aam check` that measures them.

A backend with wrong results is replaced by a correct one. On a GPU the quick check runs, unless a
report of this stack is stored (`network.numerics.report`). On a CPU nothing is measured: no fault
is known there, and the check would cost a second in each run. The candidate backends and the types
of devices to measure are arguments, so that a test can pass faulty backends.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console

from aam.console import info, warn
from aam.contract.errors import Unavailable
from aam.contract.gpus import GPU
from aam.contract.options.commands.measure import Check
from aam.contract.options.groups import AttnImplementation, DeviceOptions, ModelOptions
from aam.network.model.attention import BACKENDS, TORCH, Backend, Backends, backend_name, runs
from aam.network.model.shape import NetworkShape
from aam.network.numerics.check import CheckPlan, check_attention
from aam.network.numerics.device import Identity, Precision, choose_device, identify, is_gpu
from aam.network.numerics.probes import DTYPES
from aam.network.numerics.report import CheckReport, StackKey, Status, StatusOf, Use, reports_folder
from aam.network.numerics.report import page as report_page

REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""Substitutes for another backend. Fused kernels come first, and they are named, so that the run
record names the kernel that computed."""


def select_backends(
    requested: AttnImplementation, backends: Sequence[str], status_of: StatusOf, device: str
) -> tuple[str, str, str]:
    """Select the requested attention backend if it is correct, else the next correct one.

    Return the backend without a mask, the backend with masks, and why one of them is not the
    requested one ("" if both are).

    >>> status = {"flash": "wrong", "math": "right"}
    >>> select_backends("flash", list(status), lambda name, use: status[name], "cuda")
    ('math', 'math', '--attn-implementation flash computes wrong on cuda; math runs instead.')
    """
    preferred = backend_name(requested)
    candidates = [preferred, *(n for n in REPLACEMENTS if n in backends and n != preferred)]

    def first(use: Use) -> str:
        # The first correct backend ends the search, since a trial costs time on a GPU.
        for name in candidates:
            if status_of(name, use) == "right":
                return name
        raise Unavailable(
            "No attention backend computes correctly on this device",
            ", ".join(f"{name} {status_of(name, use)}" for name in candidates),
            "measure again (`aam check`), choose another image (`aam-launch images`), compute with "
            "--device cpu, or skip the check with --no-check",
        )

    plain, masked = first("plain"), first("masked")
    if preferred == plain == masked:
        return plain, masked, ""
    if preferred == plain:
        absent = status_of(preferred, "masked") == "absent"
        reason = f"{'supports no mask' if absent else 'computes wrong with masks'} on {device}"
        used = f"{masked} runs with masks"
    else:
        absent = status_of(preferred, "plain") == "absent"
        reason = f"{'cannot run' if absent else 'computes wrong'} on {device}"
        used = f"{plain} runs" if plain == masked else f"{plain}, and {masked} with masks, run"
        used += " instead"
    return plain, masked, f"--attn-implementation {preferred} {reason}; {used}."


@dataclass(frozen=True)
class BackendPolicy:
    """Candidate attention backends, and the types of devices on which they are measured."""

    backends: tuple[Backend, ...] = TORCH
    devices: tuple[str, ...] = (GPU,)

    def choose_attention(
        self,
        options: DeviceOptions,  # requested backend, and whether to measure
        device: torch.device,
        sizes: NetworkShape | ModelOptions,
        precision: Precision = "none",  # precision of training; inference uses fp32
        recomputed: bool = False,  # whether the run uses gradient checkpointing
    ) -> tuple[Backends, dict[str, Any]]:
        """Choose attention backends that compute correctly; return their run record entry too."""
        # Inference after the training uses fp32, so fp32 is always measured.
        dtypes = ("fp32",) if precision == "none" else ("fp32", precision)
        heads, width = sizes.attention_heads, sizes.embedding_dim // sizes.attention_heads
        plan = CheckPlan(True, dtypes, recomputed, heads, width)
        by_name = {backend.name: backend for backend in self.backends}
        report, evidence = _report(options, plan, device, self)

        def tried(name: str, use: Use) -> Status:
            masked = use == "masked"
            can_run = all(runs(by_name[name], device, masked, DTYPES[dtype]) for dtype in dtypes)
            return "right" if can_run else "absent"

        # Without a measurement a backend that runs counts as right.
        status_of = tried if report is None else report.status_of(dtypes, recomputed)
        requested = options.attn_implementation
        plain, masked, warning = select_backends(requested, list(by_name), status_of, device.type)
        record: dict[str, Any] = {
            "requested": requested,
            "without_mask": plain,
            "with_mask": masked,
            "evidence": evidence,
        }
        if warning:
            warn(warning)
        if report is not None:
            wrong = {name: report.faults(name, dtypes) for name in report.backends}
            record["faults"] = {name: list(faults) for name, faults in wrong.items() if faults}
            record["stack"] = report.identity
            if warning and (faults := wrong.get(backend_name(requested))):
                warn(f"attention backend {backend_name(requested)}: {', '.join(faults)}")
        return Backends(by_name[plain], by_name[masked]), record


def _report(
    options: DeviceOptions, plan: CheckPlan, device: torch.device, policy: BackendPolicy
) -> tuple[CheckReport | None, str]:
    """Return a valid check report or None, and its origin."""
    if device.type not in policy.devices:
        return None, f"not measured on a {device.type}"
    if not options.check:
        return None, "not measured: --no-check"
    stack, folder = identify(device), reports_folder(os.environ)
    key = StackKey.of(stack, *plan.sizes, os.environ) if folder else None
    if folder and key:
        report, problem = key.load(folder)
        if problem:
            warn(f"A check report is not used: {problem}.")
        elif report is not None and all(
            report.identity.get(name) == getattr(stack, name)
            for name in ("torch", "vendor", "aotriton")
        ):
            if set(plan.dtypes) <= set(report.dtypes) and report.recomputed >= plan.recomputed:
                return report, f"measured for this stack, {report.made}"
            # The new report replaces the stored one, so it measures again what that one has.
            # Otherwise runs of different precisions would replace each other's reports.
            dtypes = tuple(name for name in DTYPES if name in {*plan.dtypes, *report.dtypes})
            recomputed = plan.recomputed or report.recomputed
            plan = replace(plan, dtypes=dtypes, recomputed=recomputed)
    kind = "GPU" if is_gpu(device) else "CPU"
    info(f"Measuring whether this {kind} computes attention correctly.")
    report = replace(check_attention(policy.backends, plan, device), key=key)
    if folder and key and (problem := report.store(folder)):
        warn(f"The check report is not stored: {problem}.")
    return report, "measured before this run"


def run_check(options: Check, backends: tuple[Backend, ...] = TORCH) -> int:
    """Run `aam check`: measure the attention backends of a device and print the report."""
    device = choose_device(DeviceOptions(device=options.device))
    if not is_gpu(device) and options.device == "auto":
        info("No GPU was found; the CPU is measured.")
    plan = CheckPlan(options.quick, recomputed=not options.quick)
    report = check_attention(backends, plan, device, options.timeout)
    if all(case.unusable for case in report.cases):
        notes = {c.backend: c.note for c in report.cases if c.outcome in ("failed", "memory")}
        evidence = "; ".join(f"{name}: {note}" for name, note in notes.items()) or "none can run"
        cause = "No attention backend runs"
        remedy = "this PyTorch may not be compiled for this GPU; choose another image"
        if any(case.outcome == "memory" for case in report.cases):
            cause = "Out of memory during the check"
            remedy = "another program uses the memory of the GPU: end it, or use another GPU"
        raise Unavailable(cause, evidence, remedy)
    folder = reports_folder(os.environ)
    key = StackKey.of(Identity(**report.identity), *plan.sizes, os.environ)
    if folder is not None and key is not None:
        report = replace(report, key=key)
        # A folder that cannot be written must not hide the report.
        if problem := report.store(folder):
            warn(f"The check report is not stored: {problem}.")
    if options.json:
        print(report.to_json())
    else:
        console = Console(highlight=False, width=None if Console().is_terminal else 120)
        console.print(report_page(report, conclusion(report)))
    return 1 if report.wrong else 0


def conclusion(report: CheckReport) -> str:
    """Return whether the backends of a check report are right, and which of them `aam` uses."""
    try:
        status_of = report.status_of(report.dtypes)
        plain, masked, _ = select_backends("auto", BACKENDS, status_of, "this device")
    except Unavailable as error:
        return str(error)
    wrong = list(dict.fromkeys(case.backend for case in report.cases if case.wrong))
    verdict = f"Wrong here: {', '.join(wrong)}" if wrong else "Right here"
    uses = plain if plain == masked else f"{plain}, and {masked} with masks"
    return f"{verdict}. aam uses {uses}. ({math.ceil(report.seconds)} s)"
