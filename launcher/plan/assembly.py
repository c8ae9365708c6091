"""Assembly of the plan from its inputs and the choice, and the record of the launch. Pure."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aam.contract.errors import UsageError
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.options import arguments, parse_known
from launcher.findings import Decision, Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, StackFault
from launcher.plan.decision import Candidate
from launcher.plan.environment import SECRET, shown
from launcher.plan.hardware import has_code
from launcher.plan.inputs import NATIVE, LaunchInputs
from launcher.plan.mounts import absolute_paths
from launcher.plan.plan import Plan, container_plan, native_plan
from launcher.plan.request import Request
from launcher.plan.tuned import tuned_for, tuned_names, tuned_options, tuned_variables

STRATEGIES = ("--distributed", "--fsdp", "--data-parallel")

RECORD = "AAM_PLAN"
"""The variable that hands the plan to `aam`, which keeps it in the record of the run."""

MAX_VARIABLE_BYTES = 100_000
"""Bytes of a variable: Linux takes 131072 (MAX_ARG_STRLEN, execve(2)). Mounts go first."""

PASSING = ("--dry-run", "--json", "--host")
"""Options that are about showing a plan, not about the run."""


def assemble_plan(inputs: LaunchInputs, choice: Candidate) -> Plan:
    """Return the plan of a launch, with every decision."""
    request, host, catalog = inputs.request, inputs.host, inputs.catalog
    stack = choice.image.pins.get("torch") if choice.image else inputs.native.torch
    vendor = choice.gpus[0].vendor if choice.gpus else None
    arch = (choice.gpus[0].arch or "unknown") if choice.gpus else None
    stack_faults = catalog.faults_of(vendor, stack, arch)
    faults = [fault for fault in stack_faults if fault.flags]
    added, flag_decisions, flag_findings = required(request, faults)
    more, rank_decisions = _processes(request, choice.gpus)
    added += more
    tuned = tuned_for(request, inputs.settings)
    more, tuned_decisions = tuned_options(request, tuned, arch or CPU, added)
    added += more
    if choice.image:
        argv = (*absolute_paths(request, inputs.paths).argv, *added)
        plan = container_plan(inputs, choice, argv)
    else:
        plan = native_plan(inputs, choice, (*request.argv, *added))
    # What the user or the host has set stays: a variable of the catalog or a measurement is only a
    # default. A container does not have it by itself.
    present = {*dict(plan.variables), *host.environment}
    variables = _avoiding(stack_faults, present)
    measured, variable_decisions = tuned_variables(
        tuned, arch or CPU, present | {name for name, _, _ in variables}
    )
    defaults = {name for fault in stack_faults for name in fault.variables}
    defaults |= tuned_names(tuned, arch or CPU)
    kept = {name: host.environment[name] for name in sorted(defaults - {*dict(plan.variables)})
            if plan.image and name in host.environment}  # fmt: skip
    why = "set here; the launcher has another default"
    variable_decisions += [
        Decision("variable", f"{name}={shown(name, value)}", why, "environment")
        for name, value in kept.items()
    ]
    plan = replace(
        plan,
        gpus=choice.gpus,
        variables=(
            *plan.variables, *((name, value) for name, value, _ in variables), *measured.items(),
            *kept.items(),
        ),
        stack=f"torch {stack}" if stack else "",
        forced=choice.misfits,
        decisions=(
            *choice.decisions, *flag_decisions, *rank_decisions, *tuned_decisions, *plan.decisions,
            *(Decision("variable", f"{n}={v}", why, "catalog") for n, v, why in variables),
            *variable_decisions,
        ),
        findings=(
            *choice.findings, *flag_findings,
            *_reported(stack_faults), *_warnings(host, choice, catalog),
        ),
    )  # fmt: skip
    # By its record `aam` knows the digest of the image, under which it keeps check reports.
    if CHECK_REPORTS in dict(plan.variables) or any(
        spec.role == "output" for spec in request.options
    ):
        content = record(plan, inputs)
        note = json.dumps(content, separators=(",", ":"))
        if len(note) > MAX_VARIABLE_BYTES:
            note = json.dumps({**content, "mounts": None}, separators=(",", ":"))
        plan = replace(plan, variables=(*plan.variables, (RECORD, note)))
    return plan


def _avoiding(faults: Sequence[StackFault], present: Container[str]) -> list[tuple[str, str, str]]:
    """Return the variables that avoid faults, unless they are set, with their reasons."""
    return [
        (name, value, f"{fault.reason} ({fault.source})") for fault in faults
        for name, value in fault.variables.items() if name not in present
    ]  # fmt: skip


def _reported(faults: Sequence[StackFault]) -> list[Finding]:
    """Return notes on faults that no flag and no variable avoids."""
    remedy = "`aam check` measures whether it occurs here"
    return [
        Finding("note", "A known fault of this stack", f"{fault.reason} ({fault.source})", remedy)
        for fault in faults if not fault.flags and not fault.variables
    ]  # fmt: skip


def _warnings(host: Host, choice: Candidate, catalog: Catalog) -> list[Finding]:
    if not choice.gpus:
        return []
    vendor = VENDORS[choice.gpus[0].vendor]
    found = vendor.checks(host, choice.gpus, partial(has_code, catalog, vendor.name))
    named = choice.selection and choice.selection.literal
    parts = [part.place for gpu in choice.gpus for part in gpu.instances]
    if len(parts) > 1 and not (named and "," not in named):
        prefix = vendor.instance
        remedy = f"choose with {vendor.visible_devices}={prefix}<uuid>"
        evidence = f"the first of {', '.join(parts)}; {vendor.one_instance}"
        cause = f"Only one {prefix.rstrip('-')} instance is used"
        found.append(Finding("warning", cause, evidence, remedy))
    return found


def required(
    request: Request, faults: Sequence[StackFault]
) -> tuple[list[str], list[Decision], list[Finding]]:
    """Return the arguments to add to a command, the decisions, and warnings.

    Options that the user set are kept, with a warning if the fault concerns them.
    """
    argv: list[str] = []
    decisions: list[Decision] = []
    findings: list[Finding] = []
    options = request.options
    for fault in faults:
        known, _ = parse_known(options, fault.flags)
        needed = " ".join(fault.flags)
        for flag, value in known.items():
            if flag not in request.given:
                argv += fault.flags
                why = f"{fault.reason} ({fault.source})"
                decisions.append(Decision("flag", needed, why, fault.known_from))
            elif request.given[flag] != value:
                given = " ".join(arguments(options, {flag: request.given[flag]}))
                cause = "A choice that is known to go wrong here"
                evidence = f"{given}: {fault.reason}"
                findings.append(Finding("warning", cause, evidence, f"{needed} is what it needs"))
    return argv, decisions, findings


def _processes(request: Request, gpus: Sequence[Gpu]) -> tuple[list[str], list[Decision]]:
    """Return the arguments to add for `--gpus`, and the decision.

    Each process takes one of the GPUs that are used; without any each takes some cores, which is
    how several processes are tried on a laptop.
    """
    number = request.launcher_options.get("--gpus")
    if number is None:
        return [], []
    if request.option("--processes") is None or not request.uses_network:
        without = "" if request.uses_network else " without the transformer"
        evidence = f"`{request.command}`{without} is one process"
        raise UsageError(
            "--gpus is for commands that compute with a network", evidence, "leave it out"
        )
    if gpus and number > len(gpus):
        evidence = f"--gpus {number}, {len(gpus)} x {gpus[0].product}"
        raise UsageError("More GPUs than there are", evidence, "ask for fewer, or submit a job")
    if number == 1:
        return [], []
    argv = ["--processes", str(number)]
    if request.option("--distributed") and not any(map(request.value, STRATEGIES)):
        argv += ["--distributed"]
    why = "one process for each GPU" if gpus else "there is no GPU; they share the cores"
    return argv, [Decision("processes", str(number), why, "command line, --gpus")]


def record(plan: Plan, inputs: LaunchInputs) -> dict[str, object]:
    """Return the launch as run.json stores it, complete enough to repeat it."""
    request, host = inputs.request, inputs.host
    launcher_options: dict[str, list[str]] = {}
    for flag, value in request.launcher_options.items():
        if flag in PASSING:
            continue
        if isinstance(value, bool):
            launcher_options[flag if value else f"--no-{flag[2:]}"] = []
        else:
            texts = map(str, value if isinstance(value, tuple) else (value,))
            # A name alone passes the variable of the shell, so a repeated launch asks for it.
            launcher_options[flag] = [
                text.partition("=")[0] if flag == "--env" and SECRET.search(text.partition("=")[0])
                else text for text in texts
            ]  # fmt: skip
    labels = next((b.labels for b in inputs.built if b.place == plan.place), {})
    return {
        "command": request.command,
        "arguments": list(request.arguments),
        "launcher_options": launcher_options,
        "folder": inputs.context.folder,
        "host": host.name,
        **stack_facts(plan, host),
        "started": inputs.context.started,
        "gpu_modes": [[gpu.mode, gpu.memory_mode] for gpu in plan.gpus],
        "labels": labels,
        "program": plan.program,
        "place": plan.place,
        "job": host.slurm.job if host.slurm else None,
        "mounts": [[m.source, m.target, "rw" if m.writable else "ro"] for m in plan.mounts],
        "devices": list(plan.devices),
        "forced": list(plan.forced),
        "decisions": [
            [d.subject, d.value, d.why, d.source]
            for d in plan.decisions
            if d.subject not in ("mount", "variable", "kept out", "device", "not used")
        ],
    }


def stack_facts(plan: Plan, host: Host) -> dict[str, Any]:
    """Return what a repeated run is compared by: engine, image, stack, GPUs, driver and kernel."""
    driver = host.driver(plan.gpus[0].vendor) if plan.gpus else None
    return {
        "engine": plan.engine,
        "engine_version": engine_version(plan, host),
        "image": plan.image,
        "digest": plan.digest,
        "stack": plan.stack,
        "gpus": [f"{gpu.product} ({gpu.arch}) at {gpu.pci}" for gpu in plan.gpus],
        "driver": driver.version if driver else None,
        "kernel": host.kernel,
    }


def engine_version(plan: Plan, host: Host) -> str | None:
    """Return the version of the engine; of Python for a native launch."""
    if plan.engine == NATIVE:
        return sys.version.split()[0]
    fact = host.engine(plan.engine)
    return fact.version if fact else None
