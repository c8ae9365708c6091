"""Selection of attention backends before a run: backends with wrong results are replaced.

On a GPU the quick check runs, unless a report of this stack is kept (`network.numerics.report`).
On a CPU nothing is measured: no fault is known there, and it would cost a second each time. The
backends and the device types are values, so that a test can pass faulty ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from aam.console import info, warn
from aam.contract.errors import Unavailable
from aam.contract.gpus import GPU
from aam.contract.options.groups import AttnImplementation, DeviceOptions, ModelOptions
from aam.network.model.attention import TORCH, Backend, Backends, backend_name, runs
from aam.network.model.shape import NetworkShape
from aam.network.numerics.check import CheckPlan, conclude, measure, measure_in_child
from aam.network.numerics.device import Precision, identify, is_gpu
from aam.network.numerics.probes import DTYPES
from aam.network.numerics.report import (
    UNUSABLE,
    WRONG,
    CheckReport,
    key_of,
    load_report,
    reports_folder,
    store_report,
    worst,
)

Use = Literal["plain", "masked"]
Status = Literal["right", "wrong", "absent"]
"""right: correct for every model, or it runs and was not measured. wrong: must not be used. absent:
cannot run."""

StatusOf = Callable[[str, Use], Status]  # the status of a backend, by name, without or with a mask

REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""Substitutes for another backend: fused kernels first, and by name, so that the run record names
the kernel that computed."""


def select_backends(
    requested: AttnImplementation, backends: Sequence[str], status_of: StatusOf, device: str
) -> tuple[str, str, str]:
    """Select the requested backend where it is correct, else the next correct one.

    Return the backends without and with a mask, and why another than the requested one; or "".

    >>> status = {"flash": "wrong", "math": "right"}
    >>> select_backends("flash", list(status), lambda name, use: status[name], "cuda")
    ('math', 'math', '--attn-implementation flash computes wrong on cuda; math runs instead.')
    """
    preferred = backend_name(requested)
    rest = [name for name in REPLACEMENTS if name in backends and name != preferred]

    def first(use: Use) -> str:
        # The first correct one ends the search, since a trial costs time on a GPU.
        for name in (preferred, *rest):
            if status_of(name, use) == "right":
                return name
        raise Unavailable(
            "No attention backend computes correctly on this device",
            ", ".join(f"{name} {status_of(name, use)}" for name in (preferred, *rest)),
            "`aam check` measures again, `aam-launch images` lists other images, --device cpu "
            "computes correctly, --no-check skips the check",
        )

    plain, masked = first("plain"), first("masked")
    if preferred == plain == masked:
        return plain, masked, ""
    if preferred == plain:
        absent = status_of(preferred, "masked") == "absent"
        reason = f"{'supports no mask' if absent else 'computes wrong with masks'} on {device}"
        used = f"{masked} runs where there is one"
    else:
        absent = status_of(preferred, "plain") == "absent"
        reason = f"{'cannot run' if absent else 'computes wrong'} on {device}"
        used = f"{plain} runs" if plain == masked else f"{plain}, and {masked} with masks, run"
        used += " instead"
    return plain, masked, f"--attn-implementation {preferred} {reason}; {used}."


def reported_status(
    report: CheckReport, dtypes: Collection[str], recomputed: bool = False
) -> StatusOf:
    """Return the status of each backend by a report; one wrong in one use is wrong in both."""

    def status_of(backend: str, use: Use) -> Status:
        cases = [
            case for case in report.of(backend, dtypes) if recomputed or case.mask != "recomputed"
        ]
        if any(case.outcome in WRONG for case in cases):
            return "wrong"
        outcome = worst([case for case in cases if (case.mask == "none") == (use == "plain")])
        return "absent" if outcome in UNUSABLE else "right"

    return status_of


@dataclass(frozen=True)
class BackendPolicy:
    """Candidate backends, and the types of devices on which they are measured."""

    backends: tuple[Backend, ...] = TORCH
    devices: tuple[str, ...] = (GPU,)


TORCH_POLICY = BackendPolicy()  # the backends of torch, measured on GPUs


def choose_attention(
    options: DeviceOptions,  # requested backend, and whether to measure
    device: torch.device,
    sizes: NetworkShape | ModelOptions,
    policy: BackendPolicy,
    precision: Precision = "none",  # precision of training; inference uses fp32
    recomputed: bool = False,  # whether the run uses gradient checkpointing
) -> tuple[Backends, dict[str, Any]]:
    """Choose attention backends that compute correctly, and return their run record too."""
    # Inference after the training uses fp32.
    dtypes = ("fp32",) if precision == "none" else ("fp32", precision)
    heads, width = sizes.attention_heads, sizes.embedding_dim // sizes.attention_heads
    plan = CheckPlan(True, dtypes, recomputed, heads, width)
    by_name = {backend.name: backend for backend in policy.backends}
    report, evidence = _report(options, plan, device, policy)

    def tried(name: str, use: Use) -> Status:
        masked = use == "masked"
        fine = all(runs(by_name[name], device, masked, DTYPES[dtype]) for dtype in dtypes)
        return "right" if fine else "absent"

    # Where nothing was measured a backend that runs counts as right.
    status_of = tried if report is None else reported_status(report, dtypes, recomputed)
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
    here, folder = identify(device), reports_folder(os.environ)
    key = key_of(here, *plan.sizes, os.environ) if folder else None
    if folder and key:
        report, problem = load_report(key, folder)
        if problem:
            warn(f"A check report is not used: {problem}.")
        elif report is not None and all(
            report.identity.get(name) == getattr(here, name)
            for name in ("torch", "vendor", "aotriton")
        ):
            if set(plan.dtypes) <= set(report.dtypes) and report.recomputed >= plan.recomputed:
                return report, f"measured for this stack, {report.made}"
            # What the kept report has is measured again too: it replaces that report, and runs of
            # another precision would otherwise measure in turns.
            dtypes = tuple(name for name in DTYPES if name in {*plan.dtypes, *report.dtypes})
            recomputed = plan.recomputed or report.recomputed
            plan = replace(plan, dtypes=dtypes, recomputed=recomputed)
    kind = "GPU" if is_gpu(device) else "CPU"
    info(f"Measuring whether this {kind} computes attention correctly.")
    # In a child on a GPU: a faulty kernel may hang or end the process that runs it.
    events = (measure_in_child if is_gpu(device) else measure)(policy.backends, plan, device)
    report = replace(conclude(events, quick=True), key=key)
    if folder and key and (problem := store_report(report, folder)):
        warn(f"The check report is not kept: {problem}.")
    return report, "measured before this run"
