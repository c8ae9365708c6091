"""Make the plan: put request, host, choice, mounts and variables together. Pure."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aam.contract.check_report import VARIABLE, compact, to_json
from launcher.findings import Finding
from launcher.gpus import VENDORS, device_nodes, host_libraries, visible_devices_variables
from launcher.host.facts import EngineTraits, Gpu, Host
from launcher.plan import environment, visible_devices
from launcher.plan.attention import KnownReport, settle
from launcher.plan.catalog import Catalog, StackFault
from launcher.plan.decision import Decision
from launcher.plan.environment import CACHES
from launcher.plan.flags import required
from launcher.plan.image_fit import served
from launcher.plan.mounts import HOME, Mount, PathFact, fold, of_paths, require_passable
from launcher.plan.plan import Plan
from launcher.plan.rank_count import processes
from launcher.plan.request import Request, options_of
from launcher.plan.selection import NATIVE, Choice, NativeStack
from launcher.plan.settings import LaunchSettings

RECORD = "AAM_PLAN"
"""The variable that hands the plan to `aam`, which keeps it in the record of the run."""

LONGEST = 100_000
"""Bytes of a variable: Linux takes 131072 (MAX_ARG_STRLEN, execve(2)). Mounts go first."""

PASSING = ("--dry-run", "--json", "--host", "--recheck")
"""Options that are about showing a plan, not about the run."""


@dataclass(frozen=True)
class LaunchContext:
    """What the process itself knows.

    Attributes:
        folder: the current one.
        private: folder of this user, job and node.
        home: the user's home folder.
        terminal: standard input and output are a terminal.
        asked_mounts: from --bind and configurations.
    """

    folder: str
    private: str
    home: str
    terminal: bool
    asked_mounts: tuple[Mount, ...] = ()


def make(
    request: Request,
    host: Host,
    choice: Choice,
    catalog: Catalog,
    settings: LaunchSettings,
    paths: Sequence[PathFact],
    native: NativeStack,
    here: LaunchContext,
    known: KnownReport | None = None,
) -> Plan:
    """Return the plan; its decisions tell everything that was decided.

    `known` is the check report of the stack; None where no GPU computes attention.
    """
    in_container = choice.image is not None
    stack = choice.image.pins.get("torch") if choice.image else native.torch
    vendor = choice.gpus[0].vendor if choice.gpus else None
    faults: Sequence[StackFault] = catalog.faults_of(vendor, stack)
    measured: list[Decision] = []
    doubts: list[Finding] = []
    if known is not None:
        arch = choice.gpus[0].arch or "unknown"
        faults, measured, doubts = settle(faults, known, request, arch)
    added, flag_decisions, flag_findings = required(request, faults)
    more, rank_decisions = processes(request, choice.gpus)
    added += more
    words = request.words
    if in_container:
        words = request.with_paths({f.place: f.absolute for f in paths if f.place >= 0})
    plan = (_contained if in_container else _natively)(
        host, choice, settings, paths, native, here, (*request.command.split(), *words, *added)
    )
    decisions = (
        *choice.decisions, *measured, *flag_decisions, *rank_decisions, *plan.decisions,
    )  # fmt: skip
    findings = (
        *settings.findings,
        *choice.findings,
        *doubts,
        *flag_findings,
        *_warnings(host, choice, catalog),
    )
    if known is not None and known.report is not None:
        handed = (VARIABLE, to_json(compact(known.report), brief=True))
        plan = replace(plan, variables=(*plan.variables, handed))
    plan = replace(
        plan,
        gpus=choice.gpus,
        stack=f"torch {stack}" if stack else "",
        forced=choice.forced,
        decisions=decisions,
        findings=findings,
    )
    if any(spec.role == "output" for spec in options_of(request.command).values()):
        said = record(plan, request, host, here)
        note = json.dumps(said, separators=(",", ":"))
        if len(note) > LONGEST:
            note = json.dumps({**said, "mounts": None}, separators=(",", ":"))
        plan = replace(plan, variables=(*plan.variables, (RECORD, note)))
    return plan


def record(plan: Plan, request: Request, host: Host, here: LaunchContext) -> dict[str, object]:
    """Return what a run's record says about its launch; enough to do it again."""
    own = {flag: list(given) for flag, given in request.own.items() if flag not in PASSING}
    driver = host.driver(plan.gpus[0].vendor) if plan.gpus else None
    return {
        "command": request.command,
        "words": list(request.words),
        "own": own,
        "folder": here.folder,
        "host": host.name,
        "engine": plan.engine,
        "engine_version": engine_version(plan, host),
        "program": plan.program,
        "image": plan.image,
        "place": plan.place,
        "digest": plan.digest,
        "stack": plan.stack,
        "gpus": [f"{gpu.product} ({gpu.arch}) at {gpu.pci}" for gpu in plan.gpus],
        "driver": driver.version if driver else None,
        "kernel": host.kernel,
        "job": host.slurm.job if host.slurm else None,
        "mounts": [[m.source, m.target, "rw" if m.writable else "ro"] for m in plan.mounts],
        "devices": list(plan.devices),
        "forced": list(plan.forced),
        "decisions": [
            [d.subject, d.value, d.why, d.source]
            for d in plan.decisions
            if d.subject not in ("mount", "variable", "kept out", "device")
        ],
    }


def engine_version(plan: Plan, host: Host) -> str | None:
    """Return the version of what starts the program; of Python where nothing else does."""
    if plan.engine == NATIVE:
        return sys.version.split()[0]
    fact = host.engine(plan.engine)
    return fact.version if fact else None


def _natively(
    host: Host,
    choice: Choice,
    settings: LaunchSettings,
    paths: Sequence[PathFact],
    native: NativeStack,
    here: LaunchContext,
    words: tuple[str, ...],
) -> Plan:
    # Modules in the current folder must not replace those of the environment (Python >= 3.11).
    variables = {"PYTHONSAFEPATH": "1"}
    if not native.in_user_site:
        variables["PYTHONNOUSERSITE"] = "1"
    unset: tuple[str, ...] = ()
    decisions = []
    folders: tuple[str, ...] = ()
    if choice.selection and (
        choice.gpus != choice.selection.ours or choice.selection.source != "host"
    ):
        selection, unset = _selected(choice, choice.selection.ours)
        variables |= dict([selection])
        decisions.append(_selection_decision(selection, choice))
    if choice.gpus and host.slurm:
        caches = {n: f"{here.private}/{f}" for n, f in CACHES.items() if n not in host.environment}
        variables |= caches
        folders = (os.path.dirname(here.private), here.private, *dict.fromkeys(caches.values()))
    asked, _ = environment.inside({}, (), _asked(settings), here.private)
    given = {name: asked[name] for name in _asked(settings) if name in asked}
    for name, value in (variables | given).items():
        if name not in visible_devices_variables():
            decisions.append(
                Decision(
                    "variable",
                    f"{name}={value}",
                    "keeps other packages out"
                    if name.startswith("PYTHON")
                    else "a cache of this job alone",
                    "default",
                )
            )
    return Plan(
        engine="native",
        program=native.python,
        words=words,
        variables=tuple((variables | given).items()),
        unset=unset,
        folders=folders,
        outputs=(),
        workdir=here.folder,
        terminal=here.terminal,
        decisions=tuple(decisions),
    )


def _contained(
    host: Host,
    choice: Choice,
    settings: LaunchSettings,
    paths: Sequence[PathFact],
    native: NativeStack,
    here: LaunchContext,
    words: tuple[str, ...],
) -> Plan:
    assert choice.image is not None
    private = here.private
    engine, traits = host.engine(choice.engine), host.traits(choice.engine)
    visible = tuple(sorted(choice.gpus, key=lambda gpu: gpu.index))
    variables, decisions = environment.inside(
        host.environment,
        [name for entry in settings.given("pass_env") for name in entry.value],
        _asked(settings),
        private,
    )
    vendor = VENDORS[choice.gpus[0].vendor] if choice.gpus else None
    devices: tuple[str, ...] = ()
    if vendor and choice.selection:
        # An engine's own support binds every device; else the chosen ones are all that is there.
        seen = choice.selection.ours if vendor.host_libraries else visible
        selection, _ = _selected(choice, seen)
        variables |= dict([selection])
        decisions.append(_selection_decision(selection, choice))
    if vendor and not vendor.host_libraries:
        devices = device_nodes(visible)
        decisions += [
            Decision("device", path, "a node that all GPUs of the vendor share"
                     if path in vendor.shared_nodes else "a GPU that is used", "host")
            for path in devices
        ]  # fmt: skip
    folded = _mounts(traits, settings, paths, here)
    names = [path for mount in folded for path in (mount.source, mount.target)]
    require_passable(
        folded, [*words, *names, *(variables.get(name, "") for name in _asked(settings))]
    )
    decisions += [
        Decision("mount", f"{m.target} {'rw' if m.writable else 'ro'}"
                 + (f" from {m.source}" if m.source != m.target else ""), m.why, m.origin)
        for m in folded
    ]  # fmt: skip
    asked = settings.on("host_rocm") and traits.host_libraries
    libraries = host_libraries(vendor.name if vendor else "", asked)
    if vendor and vendor.library_flags:
        bring, keep_out = vendor.library_flags
        why = "asked for" if libraries else "it would replace the image's libraries with the host's"
        if vendor.host_libraries:
            why = "the driver's libraries have to come from the host"
        value = bring if libraries else keep_out
        source = "default" if vendor.host_libraries else settings.source("host_rocm")
        decisions.append(Decision("engine option", value, why, source))
    user = host.user
    outputs = [f.absolute if f.folder else f.absolute.rpartition("/")[0] or "/"
               for f in paths if f.role == "output" and f.kind != "file"]  # fmt: skip
    return Plan(
        engine=choice.engine,
        program=engine.path if engine else choice.engine,
        words=words,
        variables=tuple(variables.items()),
        unset=environment.unset(host.environment, traits),
        image=choice.image.name,
        place=choice.built.place if choice.built else None,
        digest=choice.built.digest if choice.built else None,
        mounts=folded,
        devices=devices,
        groups=_groups(host, devices),
        folders=(os.path.dirname(private), private, f"{private}/home", f"{private}/tmp",
                 *(f"{private}/{folder}" for folder in dict.fromkeys(CACHES.values()))),
        outputs=tuple(dict.fromkeys(outputs)),
        workdir=f"{private}/home",
        host_libraries=libraries,
        cdi=vendor.cdi if vendor else "",
        user=(user.uid, user.gid) if user else (0, 0),
        terminal=here.terminal,
        decisions=tuple(decisions),
    )  # fmt: skip


def _mounts(
    traits: EngineTraits, settings: LaunchSettings, paths: Sequence[PathFact], here: LaunchContext
) -> tuple[Mount, ...]:
    """What goes into a container: the private folders, the request's paths, what was asked for."""
    private = here.private
    mounts = [
        Mount(f"{private}", private, True, "private home and caches", "default"),
        Mount(f"{private}/tmp", "/tmp", True, "temporary files of this job", "default"),
    ]
    if not traits.own_shm:
        why = "shared memory of loaders and ranks"
        mounts.append(Mount("/dev/shm", "/dev/shm", True, why, "default"))
    mounts += [*of_paths(paths), *here.asked_mounts]
    if settings.on("mount_home"):
        mounts.append(Mount(here.home, here.home, True, HOME, settings.source("mount_home")))
    return fold(mounts)


def _selected(choice: Choice, visible: Sequence[Gpu]) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return the one variable with its value, and the variables that are removed."""
    assert choice.selection is not None
    kept = visible_devices.DeviceSelection(
        choice.selection.vendor, choice.gpus, choice.selection.ours, "", "",
        choice.selection.literal,
    )  # fmt: skip
    name = VENDORS[choice.selection.vendor].visible_devices
    others = tuple(other for other in visible_devices_variables() if other != name)
    return (name, visible_devices.value_for(kept, visible)), others


def _selection_decision(selection: tuple[str, str], choice: Choice) -> Decision:
    assert choice.selection is not None
    why = "one variable instead of many; it counts what the program will see"
    value = f"{selection[0]}={selection[1]}"
    return Decision("GPU selection", value, why, choice.selection.source)


def _asked(settings: LaunchSettings) -> dict[str, tuple[str | None, str]]:
    """Return the variables of --env and configurations, later layers last."""
    return {
        name: (None if value is None else str(value), entry.where)
        for entry in settings.given("env")
        for name, value in entry.value.items()
    }


def _groups(host: Host, devices: Sequence[str]) -> tuple[int, ...]:
    """Return the groups that own the devices and that the user is in."""
    mine = set(host.user.groups) if host.user else set()
    owners = {node.gid for path in devices if (node := host.node(path)) and node.gid is not None}
    return tuple(sorted(owners & mine))


def _warnings(host: Host, choice: Choice, catalog: Catalog) -> list[Finding]:
    if not choice.gpus:
        return []
    vendor = VENDORS[choice.gpus[0].vendor]
    images = [image for image in catalog.images if image.vendor == vendor.name]
    found = vendor.checks(
        host, choice.gpus, lambda arch: any(served(image, arch) for image in images)
    )
    named = choice.selection and choice.selection.literal
    parts = [part.uuid or part.place for gpu in choice.gpus for part in gpu.instances]
    if len(parts) > 1 and not (named and "," not in named):
        prefix = vendor.instance
        remedy = f"choose with {vendor.visible_devices}={prefix}<uuid>"
        evidence = f"the first of {', '.join(parts)}; {vendor.one_instance}"
        cause = f"Only one {prefix.rstrip('-')} instance is used"
        found.append(Finding("warning", cause, evidence, remedy))
    return found
