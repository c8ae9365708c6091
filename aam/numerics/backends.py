"""Selection of attention backends before a run: backends with wrong results are replaced.

On a GPU the quick check runs, unless a report of this stack is kept (`aam.numerics.report`).
On a CPU nothing is measured: no fault is known there, and it would cost a second each time. The
backends and the device types are values, so that a test can pass faulty ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from aam.console import info, warn
from aam.contract.errors import Unavailable
from aam.contract.gpus import GPU
from aam.contract.options.device import AttnImplementation, DeviceOptions
from aam.contract.options.training import ModelOptions
from aam.model.attention import TORCH, Backend, Backends, backend_name, runs
from aam.model.shape import NetworkShape
from aam.numerics.check import PATIENCE, CheckPlan, conclude, measure, measure_in_child
from aam.numerics.device import Precision, dtypes_of, identify
from aam.numerics.probes import DTYPES
from aam.numerics.report import (
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

StatusOf = Callable[[str, Use], Status]
"""The status of a backend, by name, without or with a mask."""

REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""Substitutes for another backend: fused kernels first, and by name, so that the run record names
the kernel that computed."""


@dataclass(frozen=True)
class AttentionChoice:
    """The backends of a run.

    Attributes:
        plain: used where no mask is needed.
        masked: used where a mask is needed.
        warnings: reasons for another backend than the requested one; empty if it is used.
    """

    plain: str
    masked: str
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        both = f"{self.plain}, and {self.masked} with masks"
        return self.plain if self.plain == self.masked else both


def select_backends(
    requested: AttnImplementation, backends: Sequence[str], status_of: StatusOf, device: str
) -> AttentionChoice:
    """Select the requested backend where it is correct, else the next correct one.

    Args:
        requested: value of --attn-implementation.
        backends: names of the candidates.
        status_of: status of a backend by its name and use.
        device: type of the device, for messages.

    Raises:
        Unavailable: no backend is correct.

    >>> status = {"flash": "wrong", "math": "right"}
    >>> choice = select_backends("flash", list(status), lambda name, use: status[name], "cuda")
    >>> choice.plain, choice.masked, len(choice.warnings)
    ('math', 'math', 1)
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
        return AttentionChoice(plain, masked)
    if preferred == plain:
        absent = status_of(preferred, "masked") == "absent"
        reason = f"{'supports no mask' if absent else 'computes wrong with masks'} on {device}"
        used = f"{masked} runs where there is one"
    else:
        absent = status_of(preferred, "plain") == "absent"
        reason = f"{'cannot run' if absent else 'computes wrong'} on {device}"
        used = f"{plain} runs" if plain == masked else f"{plain}, and {masked} with masks, run"
        used += " instead"
    warning = f"--attn-implementation {preferred} {reason}; {used}."
    return AttentionChoice(plain, masked, (warning,))


def reported_status(
    report: CheckReport, dtypes: Collection[str], recomputed: bool = False
) -> StatusOf:
    """Return the status of each backend by a report; a backend wrong in one use is wrong in both.

    Args:
        dtypes: names of the types in which the run computes.
        recomputed: whether the run uses gradient checkpointing.
    """

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
    """Policy of the selection: the candidate backends, and the devices on which they are measured.

    Attributes:
        backends: candidate backends in order of preference.
        devices: types of devices on which they are measured.
        patience: seconds after which a GPU counts as hanging.
    """

    backends: tuple[Backend, ...] = TORCH
    devices: tuple[str, ...] = (GPU,)
    patience: float = PATIENCE


TORCH_POLICY = BackendPolicy()
"""The backends of torch, measured on GPUs."""


@dataclass(frozen=True)
class SelectedBackends:
    """Selected backends of a run.

    Attributes:
        backends: attention backends without and with a mask.
        warnings: sentences about backends that were replaced, and reports that are not used.
        record: entry of the run record.
    """

    backends: Backends
    warnings: tuple[str, ...]
    record: dict[str, Any]


def choose_backends(
    options: DeviceOptions,
    plan: CheckPlan,
    device: torch.device,
    environment: Mapping[str, str],
    policy: BackendPolicy,
) -> SelectedBackends:
    """Select the backends of a run."""
    by_name = {backend.name: backend for backend in policy.backends}
    report, evidence, warnings = _report(options, plan, device, environment, policy)

    def tried(name: str, use: Use) -> Status:
        masked = use == "masked"
        fine = all(runs(by_name[name], device, masked, DTYPES[d]) for d in plan.dtypes)
        return "right" if fine else "absent"

    # Where nothing was measured a backend that runs counts as right.
    status_of: StatusOf = tried
    if report is not None:
        status_of = reported_status(report, plan.dtypes, plan.recomputed)
    requested = options.attn_implementation
    choice = select_backends(requested, list(by_name), status_of, device.type)
    warnings += choice.warnings
    record: dict[str, Any] = {
        "requested": requested,
        "without_mask": choice.plain,
        "with_mask": choice.masked,
        "evidence": evidence,
    }
    if report is not None:
        wrong = {b: report.faults(b, plan.dtypes) for b in report.backends}
        record["faults"] = {name: list(faults) for name, faults in wrong.items() if faults}
        record["stack"] = report.identity
        warnings += [
            f"attention backend {name}: {', '.join(faults)}"
            for name, faults in record["faults"].items()
            if choice.warnings and name == backend_name(requested)
        ]
    backends = Backends(by_name[choice.plain], by_name[choice.masked])
    return SelectedBackends(backends, tuple(warnings), record)


def _report(
    options: DeviceOptions,
    plan: CheckPlan,
    device: torch.device,
    environment: Mapping[str, str],
    policy: BackendPolicy,
) -> tuple[CheckReport | None, str, list[str]]:
    """Return a valid check report or None, its origin, and warnings."""
    if device.type not in policy.devices:
        return None, f"not measured on a {device.type}", []
    if not options.check:
        return None, "not measured: --no-check", []
    here, folder, warnings = identify(device), reports_folder(environment), []
    heads, width = plan.sizes
    key = key_of(here, heads, width, environment) if folder else None
    if folder and key:
        report, problem = load_report(key, folder)
        if problem:
            warnings.append(f"A check report is not used: {problem}.")
        elif report is not None and all(
            report.identity.get(name) == getattr(here, name)
            for name in ("torch", "vendor", "aotriton")
        ):
            if set(plan.dtypes) <= set(report.dtypes) and report.recomputed >= plan.recomputed:
                return report, f"measured for this stack, {report.made}", []
            # What the kept report has is measured again too: it replaces that report, and runs of
            # another precision would otherwise measure in turns.
            dtypes = tuple(name for name in DTYPES if name in {*plan.dtypes, *report.dtypes})
            recomputed = plan.recomputed or report.recomputed
            plan = replace(plan, dtypes=dtypes, recomputed=recomputed)
    name = "CPU" if device.type == "cpu" else "GPU"
    info(f"Measuring whether this {name} computes attention correctly.")
    if device.type == "cpu":
        events = measure(policy.backends, plan, device)
    else:
        # In a child: a faulty kernel may hang or end the process that runs it.
        events = measure_in_child(policy.backends, plan, device, policy.patience)
    report = replace(conclude(events, quick=True), key=key)
    if folder and key and (problem := store_report(report, folder)):
        warnings.append(f"The check report is not kept: {problem}.")
    return report, "measured before this run", warnings


def choose_attention(
    options: DeviceOptions,
    device: torch.device,
    sizes: NetworkShape | ModelOptions,
    policy: BackendPolicy,
    precision: Precision = "none",
    recomputed: bool = False,
) -> SelectedBackends:
    """Choose attention backends that compute correctly: those of the options, or the next ones.

    Args:
        options: requested backend, and whether to measure.
        device: device of the run.
        sizes: sizes of the network, of which the number and the width of the heads are probed.
        policy: candidate backends, and the devices on which they are measured.
        precision: precision of training; inference uses fp32.
        recomputed: whether the run uses gradient checkpointing.

    Raises:
        Unavailable: no backend computes correctly, or the GPU does not work.
    """
    heads, width = sizes.attention_heads, sizes.embedding_dim // sizes.attention_heads
    plan = CheckPlan(True, dtypes_of(precision), recomputed, heads, width)
    chosen = choose_backends(options, plan, device, os.environ, policy)
    for sentence in chosen.warnings:
        warn(sentence)
    return chosen
