"""Selection of attention backends before a run: none that computes wrong is used.

On a GPU the quick check runs, unless the launcher passes a report that is valid for this stack.
On a CPU nothing is measured: no fault is known there, and it would cost a second each time. The
backends and the device types are values, so that a test can pass faulty ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aam import __version__
from aam.console import say
from aam.contract.attention import Status, StatusOf, Use, reported_status, select_backends
from aam.contract.check_report import VARIABLE, CheckReport, from_json
from aam.contract.errors import DataError
from aam.contract.gpus import GPU
from aam.contract.options.groups import AttnImplementation
from aam.contract.run_record import launched_by
from aam.model.attention import TORCH, Backend, Backends, runs
from aam.numerics.check import CheckPlan, conclude, measure
from aam.numerics.child_process import PATIENCE, measure_in_child
from aam.numerics.probes import DTYPES
from aam.numerics.stack_identity import Identity, identify


@dataclass(frozen=True)
class BackendPolicy:
    """Policy of the selection: the candidate backends, and the devices on which they are measured.

    Attributes:
        backends: in order of preference.
        devices: types of devices on which they are measured.
        patience: seconds after which a GPU counts as hanging.
    """

    backends: tuple[Backend, ...] = TORCH
    devices: tuple[str, ...] = (GPU,)
    patience: float = PATIENCE


TORCH_POLICY = BackendPolicy()
"""The backends of torch, measured on GPUs."""


@dataclass(frozen=True)
class AttentionNeed:
    """Requirements of a run on attention.

    Attributes:
        dtypes: those the run computes in, names of `probes.DTYPES`.
        heads, width: of the network; 0 for the default.
    """

    implementation: AttnImplementation
    check: bool = True
    dtypes: tuple[str, ...] = ("fp32",)
    recomputed: bool = False
    heads: int = 0
    width: int = 0


@dataclass(frozen=True)
class SelectedBackends:
    """The selected backends."""

    backends: Backends
    warnings: tuple[str, ...]
    record: dict[str, Any]


def choose_backends(
    need: AttentionNeed, device: torch.device, environment: Mapping[str, str], policy: BackendPolicy
) -> SelectedBackends:
    """Select the backends of a run.

    Raises:
        Unavailable: no backend computes right, or the GPU does not answer.
    """
    by_name = {backend.name: backend for backend in policy.backends}
    report, evidence, warnings = _report(need, device, environment, policy)
    status_of = _trial(by_name, device, need)
    if report is not None:
        status_of = reported_status(report, need.dtypes, need.recomputed)
    choice = select_backends(need.implementation, list(by_name), status_of, device.type)
    warnings += choice.warnings
    record: dict[str, Any] = {
        "requested": need.implementation,
        "without_mask": choice.plain,
        "with_mask": choice.masked,
        "evidence": evidence,
    }
    if report is not None:
        wrong = {b: report.faults(b, need.dtypes) for b in report.backends}
        record["faults"] = {name: list(faults) for name, faults in wrong.items() if faults}
        record["stack"] = report.identity
        warnings += [
            f"attention backend {name}: {', '.join(faults)}"
            for name, faults in record["faults"].items()
            if choice.warnings and name == need.implementation.replace("sdpa", "auto")
        ]
    backends = Backends(by_name[choice.plain], by_name[choice.masked])
    return SelectedBackends(backends, tuple(warnings), record)


def _report(
    need: AttentionNeed, device: torch.device, environment: Mapping[str, str], policy: BackendPolicy
) -> tuple[CheckReport | None, str, list[str]]:
    """Return a valid check report or None, its origin, and warnings."""
    if device.type not in policy.devices:
        return None, f"not measured on a {device.type}", []
    if not need.check:
        return None, "not measured: --no-check", []
    text = environment.get(VARIABLE)
    warnings = []
    if text:
        try:
            report = from_json(text)
            problem = invalid_because(report, identify(device), need, launched_by(environment))
        except DataError as error:
            problem = str(error).rstrip(".")
        if problem is None:
            return report, f"measured for this stack, {report.made}", []
        warnings.append(f"The check report that came with the launch is not used: {problem}.")
    name = "CPU" if device.type == "cpu" else "GPU"
    say(f"Measuring whether this {name} computes attention correctly.")
    plan = CheckPlan(True, need.dtypes, need.recomputed, need.heads, need.width)
    if device.type == "cpu":
        events = measure(policy.backends, plan, device)
    else:
        events = measure_in_child(policy.backends, plan, device, policy.patience)
    return conclude(events, quick=True), "measured before this run", warnings


def invalid_because(
    report: CheckReport, here: Identity, need: AttentionNeed, launch: Mapping[str, Any] | None
) -> str | None:
    """Return the reason why a report is not valid for this stack or run; None if it is.

    Args:
        launch: the launcher's record of the run, which alone holds the digest of the image.
    """
    if report.key is None:
        return "it names no stack"
    held = {
        "arch": (report.key.arch, here.arch),
        "driver": (report.key.driver, here.driver or "none"),
        "aam": (report.key.aam, __version__),
        "torch": (report.identity.get("torch"), here.torch),
        "vendor": (report.identity.get("vendor"), here.vendor),
        "aotriton": (report.identity.get("aotriton"), here.aotriton),
    }
    if launch and launch.get("image"):
        held["image"] = (report.key.image, launch.get("digest"))
    for name, (then, now) in held.items():
        if then != now:
            return f"it is for {name} {then}, and this stack has {now}"
    missing = set(need.dtypes) - set(report.dtypes)
    if missing:
        return f"it has no results for {', '.join(sorted(missing))}"
    return None


def _trial(backends: Mapping[str, Backend], device: torch.device, need: AttentionNeed) -> StatusOf:
    """Return a status function that only tries whether a backend runs."""

    def status_of(name: str, use: Use) -> Status:
        masked = use == "masked"
        fine = all(runs(backends[name], device, masked, DTYPES[d]) for d in need.dtypes)
        return "right" if fine else "absent"

    return status_of
