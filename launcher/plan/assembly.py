"""Plan of a launch: program, mounts, devices and variables, natively or in a container. Pure."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from aam.contract.errors import ConfigurationError, Problem, UsageError
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.options.command_line import arguments, parse_known, typed
from aam.contract.records import Sourced
from launcher.findings import REQUESTED, Decision, warning
from launcher.gpus import VENDORS, device_nodes
from launcher.host.facts import EngineTraits, Gpu, Host
from launcher.plan.catalog import CPU
from launcher.plan.environment import (
    CACHES,
    Variable,
    container_variables,
    is_secret,
    matches,
    shown,
    unset,
)
from launcher.plan.hardware import Candidate, has_code
from launcher.plan.inputs import NATIVE, LaunchInputs, Request
from launcher.plan.mounts import Mount, fold, of_paths, require_passable
from launcher.plan.settings import LaunchSettings, Tuned
from launcher.plan.visible_devices import value_for, visible_devices_variables

STRATEGIES = ("--distributed", "--fsdp", "--data-parallel")
ENGINES_OWN = ("HOME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "PS1")
"""Variables that have a meaning of their own for an engine."""
PATH = "PYTHONPATH"
RECORD = "AAM_PLAN"
"""Variable that hands the plan to `aam` for the record of the run."""
MAX_VARIABLE_BYTES = 100_000
"""Bytes of a variable: Linux takes 131072 (MAX_ARG_STRLEN, execve(2)). Mounts go first."""
PASSING = ("--dry-run", "--json", "--host")
"""Options that are about showing a plan, not about the run."""


class Plan(msgspec.Struct, frozen=True):
    """A program to execute, with its environment, mounts and devices."""

    engine: str  # name of the engine
    program: str  # absolute path of the engine, or of the Python interpreter
    argv: tuple[str, ...]  # the command of `aam` and its options
    assigned: tuple[Variable, ...] = ()  # variables of `aam`, literally, with their reasons
    unset: tuple[str, ...] = ()  # variables to remove from the environment of the program
    # variables of `assigned` that stand in no command line, because they may be secrets
    unseen: tuple[str, ...] = ()
    inside: str = ""  # see `EngineTraits`
    image: str | None = None  # name of the image, None for native
    place: str | None = None  # file or reference of the image
    digest: str | None = None  # digest of the image, if known
    mounts: tuple[Mount, ...] = ()  # mounts of the container
    devices: tuple[str, ...] = ()  # device nodes in the container
    groups: tuple[int, ...] = ()  # numeric groups that own devices
    gpus: tuple[Gpu, ...] = ()  # the GPUs of the launch
    folders: tuple[str, ...] = ()  # private folders to make first, readable by the user alone
    outputs: tuple[str, ...] = ()  # output folders to make first
    workdir: str = "/"  # current folder inside
    host_libraries: str = ""  # the vendor whose libraries of the host the engine binds; empty: none
    # the container sees the host's /dev: ranks share its /dev/shm, or a mount lies below it
    host_devices: bool = False
    cdi: tuple[str, ...] = ()  # names by which the engine brings in GPUs that a CDI description has
    user: tuple[int, int] = (0, 0)  # numeric user and group
    terminal: bool = False  # standard input and output are a terminal
    stack: str = ""  # vendor and version of PyTorch, for the record
    forced: tuple[str, ...] = ()  # misfits that --force overrode
    choices: tuple[Decision, ...] = ()  # decisions that are not about a variable or a mount
    findings: tuple[Problem, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """Variables of `aam` by name."""
        return {variable.name: variable.value for variable in self.assigned}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision, those about mounts and variables last."""
        of_variables = (variable.decision for variable in self.assigned if variable.why)
        return (*self.choices, *(mount.decision for mount in self.mounts), *of_variables)

    def environment(self, present: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program, given the `present` one."""
        variables = {name: value for name, value in present.items() if name not in self.unset}
        return {**variables, **self.own_environment}

    @property
    def own_environment(self) -> dict[str, str]:
        """Variables of the program beside the present ones; most are set inside a container."""
        if self.image is None:
            return self.variables
        return {f"{self.inside}{n}": v for n, v in self.variables.items() if n in self.unseen}


def assemble_plan(inputs: LaunchInputs, chosen: Candidate) -> Plan:
    """Return the plan of a launch, with every decision."""
    request, host, catalog = inputs.request, inputs.host, inputs.catalog
    pins = chosen.image.pins if chosen.image else {"torch": inputs.native.torch or ""}
    torch = pins.get("torch")
    vendor = chosen.gpus[0].vendor if chosen.gpus else None
    arch = (chosen.gpus[0].arch or "unknown") if chosen.gpus else CPU
    faults = catalog.faults_of(vendor, pins, arch)
    # Arguments that avoid faults. Options that the user has set are kept, with a warning if a fault
    # concerns them.
    added, decisions, findings = list[str](), list[Decision](), list[Problem]()
    for fault in faults:
        needed, why = " ".join(fault.flags), f"{fault.reason} ({fault.source})"
        for flag, value in parse_known(request.options, fault.flags)[0].items():
            if flag not in request.given:
                added += fault.flags
                decisions.append(Decision("flag", needed, why, fault.known_from))
            elif request.given[flag] != value:
                argument = " ".join(arguments(request.options, {flag: request.given[flag]}))
                evidence, remedy = f"{argument}: {fault.reason}", f"{needed} is what it needs"
                cause = "A choice with a known fault here"
                findings.append(warning(cause, evidence, remedy))
    more, by_processes = _processes(request, chosen.gpus)
    tuned, by_tuning, variables = tuned_options(request, inputs.settings, arch, [*added, *more])
    added += [*more, *tuned]
    if chosen.image:
        plan = _container_plan(inputs, chosen, (*inputs.absolute_request.argv, *added))
    else:
        plan = _native_plan(inputs, chosen, (*request.argv, *added))
    # A variable of the catalog or a measurement is only a default: what the user or the host has
    # set stays. A container does not have it by itself.
    of_faults = [Variable(name, value, f"{fault.reason} ({fault.source})", "catalog")
           for fault in faults for name, value in fault.variables.items()]  # fmt: skip
    assigned = {variable.name: variable for variable in plan.assigned}
    for default in (*of_faults, *variables):
        name, present = default.name, host.environment.get(default.name)
        if name not in assigned and present is None:
            assigned[name] = default
        elif name not in assigned and plan.image:
            why = "set here; the launcher has another default"
            assigned[name] = Variable(name, present or "", why, "environment")
    remedy = "`aam check` measures whether it occurs here"
    findings += [Problem("A known fault of this stack", f"{fault.reason} ({fault.source})", remedy)
                 for fault in faults if not fault.flags and not fault.variables]  # fmt: skip
    if chosen.gpus:
        own_vendor = VENDORS[chosen.gpus[0].vendor]
        served = partial(has_code, catalog, own_vendor.name)
        findings += own_vendor.checks(host, chosen.gpus, served)
        names = chosen.group and chosen.group.literal
        instances = [instance.place for gpu in chosen.gpus for instance in gpu.instances]
        if len(instances) > 1 and not (names and "," not in names):
            prefix = own_vendor.instance
            remedy = f"choose with {own_vendor.visible_devices}={prefix}<uuid>"
            evidence = f"the first of {names or ', '.join(instances)}; {own_vendor.one_instance}"
            cause = f"Only one {prefix.rstrip('-')} instance is used"
            findings.append(warning(cause, evidence, remedy))
    plan = replace(
        plan, gpus=chosen.gpus, assigned=tuple(assigned.values()),
        stack=f"torch {torch}" if torch else "", forced=tuple(chosen.misfits.values()),
        choices=(*chosen.decisions, *decisions, *by_processes, *by_tuning, *plan.choices),
        findings=(*chosen.findings, *findings),
    )  # fmt: skip
    plan = _with_selection(plan, inputs, chosen)
    # By its record `aam` knows the digest of the image, under which it keeps check reports.
    if CHECK_REPORTS in assigned or any(spec.role == "output" for spec in request.options):
        content = record(plan, inputs)
        note = json.dumps(content, separators=(",", ":"))
        if len(note) > MAX_VARIABLE_BYTES:
            note = json.dumps({**content, "mounts": None}, separators=(",", ":"))
        plan = replace(plan, assigned=(*plan.assigned, Variable(RECORD, note, "")))
    return plan


def _processes(request: Request, gpus: Sequence[Gpu]) -> tuple[list[str], list[Decision]]:
    """Return the arguments to add for `--gpus`, and the decision."""
    number = request.launcher_options.get("--gpus")
    if number is None:
        return [], []
    if request.option("--processes") is None or not request.uses_network:
        without = "" if request.uses_network else " without the transformer"
        cause = "--gpus is for commands that compute with a network"
        evidence = f"`{request.command}`{without} is one process"
        raise UsageError(cause, evidence, "leave it out")
    if gpus and number > len(gpus):
        evidence = f"--gpus {number}, {len(gpus)} x {gpus[0].product}"
        raise UsageError("More GPUs than there are", evidence, "ask for fewer, or submit a job")
    if number == 1:
        return [], []
    divided = request.option("--distributed") and not any(map(request.value, STRATEGIES))
    argv = ["--processes", str(number), *(["--distributed"] if divided else [])]
    why = "one process for each GPU" if gpus else "there is no GPU; they share the cores"
    return argv, [Decision("processes", str(number), why, "command line, --gpus")]


def tuned_options(
    request: Request, settings: LaunchSettings, arch: str, taken: Collection[str]
) -> tuple[list[str], list[Decision], list[Variable]]:
    """Return arguments, their decisions and variables that were measured as good (`Tuned`)."""
    # Commands with this option compute with the network on a study; others measure a stack.
    if not request.option("--num-workers") or request.wrapped or not request.uses_network:
        return [], [], []
    argv, decisions, options = list[str](), list[Decision](), dict[str, Sourced[Any]]()
    variables, why = dict[str, Variable](), f"measured as good on {arch}"
    for layer in settings.tuned:
        measured = layer.value.get(arch, Tuned())
        options |= {f"--{name}": Sourced(value, layer.source)
                    for name, value in measured.options.items() if value is not None}  # fmt: skip
        variables |= {name: Variable(name, str(value), why, layer.source)
                      for name, value in measured.env.items()}  # fmt: skip
    for flag, option_value in options.items():
        spec = request.option(flag)
        if spec and not {flag, f"--no-{flag[2:]}"} & {*request.given, *taken}:
            added = arguments([spec], typed(spec, option_value))
            argv += added
            decisions.append(Decision("flag", " ".join(added), why, option_value.source))
    return argv, decisions, [*variables.values()]


# --- natively


def _native_plan(inputs: LaunchInputs, chosen: Candidate, argv: tuple[str, ...]) -> Plan:
    """Return the plan of a command in the launcher's own Python environment."""
    host, native = inputs.host, inputs.native
    # Modules in the current folder must not replace installed modules (Python >= 3.11).
    isolation = ("PYTHONSAFEPATH", *(() if native.in_user_site else ("PYTHONNOUSERSITE",)))
    assigned = [Variable(name, "1", "keeps other packages out") for name in isolation]
    # Libraries of modules of a cluster are built for another Python, or are other versions.
    folders, choices, path = tuple[str, ...](), list[Decision](), host.environment.get(PATH)
    if path and path != native.import_path and PATH not in inputs.settings.env:
        why = "its libraries would come before the libraries of the environment"
        choices.append(Decision("kept out", PATH, why, "environment"))
        why = "the folder of aam alone"
        assigned += [Variable(PATH, native.import_path, why)] if native.import_path else []
    # Jobs of one user share a home, and MIOpen and Triton damage caches that two of them write.
    if chosen.gpus and host.slurm:
        caches = {name: folder for name, folder in CACHES.items() if name not in host.environment}
        folders = inputs.private_folders(caches.values())
        why = "a cache of this job alone"
        assigned += [Variable(n, f"{inputs.private}/{f}", why) for n, f in caches.items()]
    reports = _reports(inputs, chosen)
    requested = [Variable(name, setting.value, REQUESTED, setting.source)
                 for name, setting in inputs.settings.env.items()
                 if setting.value is not None]  # fmt: skip
    last = {variable.name: variable for variable in (*assigned, *reports, *requested)}
    return Plan(
        NATIVE, native.python, argv, tuple(last.values()), unset=(PATH,) if choices else (),
        unseen=tuple(variable.name for variable in requested), folders=folders,
        outputs=tuple(report.value for report in reports), workdir=inputs.folder,
        terminal=inputs.terminal, choices=tuple(choices),
    )  # fmt: skip


# --- in a container


def _container_plan(inputs: LaunchInputs, chosen: Candidate, argv: tuple[str, ...]) -> Plan:
    """Return the plan of a command in a container; `argv` is the command line of `aam`."""
    assert chosen.image is not None
    host, settings = inputs.host, inputs.settings
    engine, traits, user = host.engine(chosen.engine), host.traits(chosen.engine), host.user
    assigned, choices = container_variables(host.environment, settings, inputs.private)
    reports = _reports(inputs, chosen)
    assigned |= {report.name: report for report in reports}
    private = inputs.private
    usual = [(private, private, "private home and caches"),
           (f"{private}/tmp", "/tmp", "temporary files of this job"),
           *((report.value, report.value, "check reports") for report in reports)]  # fmt: skip
    if not traits.own_shm:
        usual.append(("/dev/shm", "/dev/shm", "shared memory of loaders and ranks"))
    wanted = [Mount(source, target, True, why, "default", "own") for source, target, why in usual]
    wanted += [*of_paths(inputs.paths), *inputs.requested_mounts]
    if settings.mount_home.value:
        source = settings.mount_home.source
        wanted.append(Mount(inputs.home, inputs.home, True, "home folder", source, "placed"))
    mounts = fold(wanted)
    names = [path for mount in mounts for path in (mount.source, mount.target)]
    requested = [assigned[name].value for name in settings.env if name in assigned]
    require_passable(mounts, [*argv, *names, *requested])
    # An engine that gives a container a /dev of its own has no place there to mount anything.
    below_dev = [mount for mount in mounts if mount.target.startswith("/dev/")]
    for mount in below_dev:
        if mount.source != mount.target:
            cause = "A folder that cannot be mounted"
            evidence = f"'{mount.source}' at '{mount.target}' ({mount.origin})"
            raise ConfigurationError(cause, evidence, "use a path outside of /dev")
    shares_memory = host.slurm is not None and host.slurm.shares_node
    host_devices = traits.own_shm and (shares_memory or bool(below_dev))
    # An engine cannot mount what does not exist.
    outputs = [
        fact.absolute if fact.folder else os.path.dirname(fact.absolute)
        for fact in inputs.paths if fact.role == "output" and fact.file_type != "file"
    ]  # fmt: skip
    # The vendor whose libraries of the host the engine binds.
    libraries = ""
    vendor = VENDORS[chosen.gpus[0].vendor] if chosen.gpus else None
    if vendor and vendor.library_flags:
        bring, keep_out = vendor.library_flags
        libraries, source = vendor.name, "default"
        why = "the driver's libraries must come from the host"
        if not vendor.host_libraries:
            requests = settings.libraries[vendor.libraries_setting]
            libraries = vendor.name if requests.value and traits.host_libraries else ""
            why, source = REQUESTED, requests.source
            if not libraries:
                why = "it would replace the image's libraries with the host's"
        value = bring if libraries else keep_out
        choices.append(Decision("engine option", value, why, source))
    # The libraries of a driver of the host come in with all GPUs of the vendor, by the engine's own
    # option or by the name of a CDI description; else the nodes of the chosen GPUs alone go in.
    nodes: list[tuple[str, str]] = []
    cdi: list[tuple[str, str]] = []
    visible = sorted(chosen.gpus, key=lambda gpu: gpu.index)
    if vendor and vendor.host_libraries:
        why = "all GPUs, with the driver's libraries, as the host describes them"
        cdi = [(f"{vendor.cdi[0]}=all", why)] if traits.needs_cdi and vendor.cdi else []
    elif vendor:
        shared = "a node that all GPUs of the vendor share"
        nodes = [(path, shared if path in vendor.shared_nodes else "a GPU that is used")
                 for path in device_nodes(visible)]  # fmt: skip
    choices += [Decision("device", path, why, "host") for path, why in (*cdi, *nodes)]
    owners = {node.gid for path, _ in nodes if (node := host.node(path)) and node.gid is not None}
    # Where the engine maps the user to root of the container, that root owns the user's files.
    mapped = user is None or (engine is not None and engine.maps_root)
    stored, digest = (chosen.built.place, chosen.built.digest) if chosen.built else (None, None)
    return Plan(
        chosen.engine, engine.path if engine else chosen.engine, argv, tuple(assigned.values()),
        unset=unset(host.environment, traits),
        unseen=tuple(v.name for v in assigned.values() if _is_unseen(v, inputs, traits)),
        inside=traits.inside, image=chosen.image.name, place=stored, digest=digest, mounts=mounts,
        devices=tuple(path for path, _ in nodes),
        groups=() if mapped or user is None else tuple(sorted(owners.intersection(user.groups))),
        cdi=tuple(name for name, _ in cdi),
        folders=inputs.private_folders(("home", "tmp", *CACHES.values())),
        outputs=tuple(dict.fromkeys([*outputs, *(report.value for report in reports)])),
        workdir=f"{private}/home", host_libraries=libraries, host_devices=host_devices,
        user=(0, 0) if mapped or user is None else (user.uid, user.gid),
        terminal=inputs.terminal, choices=tuple(choices),
    )  # fmt: skip


def _is_unseen(variable: Variable, inputs: LaunchInputs, traits: EngineTraits) -> bool:
    """Return whether a possible secret reaches a container by the environment of the engine."""
    name, value, settings = variable.name, variable.value, inputs.settings
    secret = is_secret(name, value)
    if name in ENGINES_OWN:
        return False
    if not traits.ends_value or traits.ends_value not in value:
        return secret or name in settings.env or matches(name, settings.pass_env)
    if secret:
        evidence = f"{name} has U+{ord(traits.ends_value):04X}"
        remedy = "remove that character, or use another --runtime"
        raise ConfigurationError("A secret that the engine cannot take", evidence, remedy)
    return False


def _reports(inputs: LaunchInputs, chosen: Candidate) -> list[Variable]:
    """Return the variable with the folder of the check reports, if a GPU computes."""
    folder = inputs.reports if chosen.gpus else ""
    why = "aam measures a stack once on a GPU and keeps the report there"
    return [Variable(CHECK_REPORTS, folder, why, subject="aam check")] if folder else []


def _with_selection(plan: Plan, inputs: LaunchInputs, chosen: Candidate) -> Plan:
    """Return the plan with one variable that selects GPUs, or none: a second one selects again."""
    names = visible_devices_variables()
    assigned = [variable for variable in plan.assigned if variable.name not in names]
    unseen = tuple(name for name in plan.unseen if name not in names)
    removed: tuple[str, ...] = ()
    selection = chosen.group
    if selection and (plan.image or chosen.gpus != selection.ours or {*names} & {*inputs.masks}):
        vendor, visible = VENDORS[selection.vendor], selection.ours
        # If device nodes are bound one by one, the container has the chosen GPUs alone.
        if plan.image and not (vendor.host_libraries or plan.host_devices):
            visible = tuple(sorted(chosen.gpus, key=lambda gpu: gpu.index))
        value = value_for(selection, visible)
        why = "one variable instead of many; it counts what the program will see"
        name = vendor.visible_devices
        assigned.append(Variable(name, value, why, selection.source, "GPU selection"))
        removed = () if plan.image else tuple(variable for variable in names if variable != name)
    unset = (*plan.unset, *removed)
    return replace(plan, assigned=tuple(assigned), unseen=unseen, unset=unset)


# --- the record of a launch


def record(plan: Plan, inputs: LaunchInputs) -> dict[str, object]:
    """Return the launch as run.json stores it, complete enough to repeat it."""
    request, host = inputs.request, inputs.host
    options: dict[str, list[str]] = {}
    for flag, value in request.launcher_options.items():
        texts = [str(text) for text in (value if isinstance(value, tuple) else (value,))]
        if isinstance(value, bool):
            flag, texts = flag if value else f"--no-{flag[2:]}", []
        elif flag == "--env":
            # A name alone passes the variable of the shell, so a repeated launch asks for it.
            pairs = (text.partition("=") for text in texts)
            texts = [f"{name}{equals}{text}" if shown(name, text) == text else name
                     for name, equals, text in pairs]  # fmt: skip
        options |= {} if flag in PASSING else {flag: texts}
    return {
        "command": request.command,
        "arguments": list(request.arguments),
        "launcher_options": options,
        "folder": inputs.folder,
        "host": host.name,
        **stack_facts(plan, host),
        "started": inputs.started,
        "gpu_modes": [[gpu.mode, gpu.memory_mode] for gpu in plan.gpus],
        "labels": next((b.labels for b in inputs.built if b.place == plan.place), {}),
        "program": plan.program,
        "place": plan.place,
        "job": host.slurm.job if host.slurm else None,
        "mounts": [[m.source, m.target, "rw" if m.writable else "ro"] for m in plan.mounts],
        "devices": list(plan.devices),
        "forced": list(plan.forced),
        "decisions": [
            [d.subject, d.value, d.why, d.source] for d in plan.decisions
            if d.subject not in ("mount", "variable", "kept out", "device", "not used")
        ],
    }  # fmt: skip


def stack_facts(plan: Plan, host: Host) -> dict[str, Any]:
    """Return what a repeated run is compared by: engine, image, stack, GPUs, driver and kernel."""
    driver = host.driver(plan.gpus[0].vendor) if plan.gpus else None
    fact = host.engine(plan.engine)
    version = sys.version.split()[0] if plan.engine == NATIVE else fact and fact.version
    return {
        "engine": plan.engine, "engine_version": version, "image": plan.image,
        "digest": plan.digest, "stack": plan.stack,
        "gpus": [f"{gpu.product} ({gpu.arch}) at {gpu.pci}" for gpu in plan.gpus],
        "driver": driver.version if driver else None, "kernel": host.kernel,
    }  # fmt: skip
