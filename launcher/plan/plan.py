"""Plan of a launch: program, mounts, devices and variables, natively or in a container. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aam.contract.errors import ConfigurationError
from aam.contract.gpus import CHECK_REPORTS
from launcher.findings import REQUESTED, Decision, Finding
from launcher.gpus import VENDORS, device_nodes, host_libraries
from launcher.gpus.base import Vendor
from launcher.host.facts import EngineTraits, Gpu, Host
from launcher.plan import environment
from launcher.plan.decision import Candidate
from launcher.plan.environment import CACHES
from launcher.plan.inputs import NATIVE, LaunchInputs
from launcher.plan.mounts import Mount, fold, of_paths, require_passable
from launcher.plan.settings import LaunchSettings
from launcher.plan.visible_devices import value_for, visible_devices_variables

ENGINES_OWN = ("HOME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "PS1")
REPORTS_WHY = "aam measures a stack once on a GPU and keeps the report there"


@dataclass(frozen=True)
class Plan:
    """A program to execute, with its environment, mounts and devices.

    Attributes:
        engine: name of the engine.
        program: absolute path of the engine, or of the Python interpreter.
        argv: the command of `aam` and its options.
        variables: variables of `aam`, literally.
        unset: variables to remove from the environment of the program.
        unseen: those of `variables` that stand in no command line, because they may be secrets.
        inside: see `EngineTraits`.
        image: name of the image, None for native.
        place: file or reference of the image.
        digest: of the image, where it is known.
        mounts: mounts of the container.
        devices: device nodes in the container.
        groups: numeric groups that own devices.
        gpus: the GPUs of the launch.
        folders: private folders to make first, readable by the user alone.
        outputs: output folders to make first.
        workdir: current folder inside.
        host_libraries: the vendor whose libraries of the host the engine binds; empty: none.
        host_devices: the container sees the host's /dev: ranks share its /dev/shm, or a mount
            lies below it.
        cdi: names by which the engine brings in GPUs that a CDI description has.
        user: numeric user and group.
        terminal: standard input and output are a terminal.
        stack: vendor and version of PyTorch, for the record.
        forced: misfits that --force overrode.
    """

    engine: str
    program: str
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    inside: str = ""
    image: str | None = None
    place: str | None = None
    digest: str | None = None
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    folders: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    workdir: str = "/"
    host_libraries: str = ""
    host_devices: bool = False
    cdi: tuple[str, ...] = ()
    user: tuple[int, int] = (0, 0)
    terminal: bool = False
    stack: str = ""
    forced: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()

    def environment(self, present: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program, given the `present` one."""
        kept = {name: value for name, value in present.items() if name not in self.unset}
        return {**kept, **self.own_environment}

    @property
    def own_environment(self) -> dict[str, str]:
        """Variables that the program gets beside those that are present.

        Most of a container's are set inside of it, so that no engine interprets them.
        """
        if self.image is None:
            return dict(self.variables)
        return {f"{self.inside}{n}": value for n, value in self.variables if n in self.unseen}


def native_plan(inputs: LaunchInputs, choice: Candidate, argv: tuple[str, ...]) -> Plan:
    """Return the plan of a command in the launcher's own Python environment."""
    host, native, context = inputs.host, inputs.native, inputs.context
    # Modules in the current folder must not replace those of the environment (Python >= 3.11).
    isolation = ("PYTHONSAFEPATH", *(() if native.in_user_site else ("PYTHONNOUSERSITE",)))
    variables = dict.fromkeys(isolation, "1")
    unset: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    decisions = [
        Decision("variable", f"{name}=1", "keeps other packages out", "default")
        for name in isolation
    ]
    selection = choice.selection
    present = [name for name in visible_devices_variables() if name in host.environment]
    if selection and (choice.gpus != selection.ours or present):
        selected, decision = _selected(choice, selection.ours)
        variables |= selected
        decisions.append(decision)
        unset = tuple(name for name in visible_devices_variables() if name not in selected)
    # Jobs of one user share a home, and MIOpen and Triton damage caches that two of them write.
    if choice.gpus and host.slurm:
        caches = {name: folder for name, folder in CACHES.items() if name not in host.environment}
        folders = context.private_folders(caches.values())
        for name, folder in caches.items():
            variables[name] = value = f"{context.private}/{folder}"
            why = "a cache of this job alone"
            decisions.append(Decision("variable", f"{name}={value}", why, "default"))
    reports = _reports(inputs, choice)
    variables |= reports
    decisions += [Decision("aam check", f, REPORTS_WHY, "default") for f in reports.values()]
    for name, (given, where) in inputs.settings.env.items():
        if given is not None:
            variables[name] = given
            value = environment.shown(name, given)
            decisions.append(Decision("variable", f"{name}={value}", REQUESTED, where))
    return Plan(
        engine=NATIVE,
        program=native.python,
        argv=argv,
        variables=tuple(variables.items()),
        unset=unset,
        folders=folders,
        outputs=tuple(reports.values()),
        workdir=context.folder,
        terminal=context.terminal,
        decisions=tuple(decisions),
    )


def container_plan(inputs: LaunchInputs, choice: Candidate, argv: tuple[str, ...]) -> Plan:
    """Return the plan of a command in a container; `argv` are those of `aam`."""
    assert choice.image is not None
    host, settings, context = inputs.host, inputs.settings, inputs.context
    private = context.private
    engine, traits = host.engine(choice.engine), host.traits(choice.engine)
    variables, decisions = environment.container_variables(
        host.environment, settings.pass_env, settings.env, private
    )
    reports = _reports(inputs, choice)
    variables |= reports
    decisions += [Decision("aam check", f, REPORTS_WHY, "default") for f in reports.values()]
    mounts = _mounts(inputs, traits, reports.values())
    names = [path for mount in mounts for path in (mount.source, mount.target)]
    require_passable(mounts, [*argv, *names, *(variables.get(name, "") for name in settings.env)])
    for mount in mounts:
        access = "rw" if mount.writable else "ro"
        source = f" from {mount.source}" if mount.source != mount.target else ""
        value = f"{mount.target} {access}{source}"
        decisions.append(Decision("mount", value, mount.why, mount.origin))
    vendor = VENDORS[choice.gpus[0].vendor] if choice.gpus else None
    libraries, library_decisions = _libraries(vendor, settings, traits)
    user = host.user
    # An engine cannot mount what does not exist.
    outputs = [
        fact.absolute if fact.folder else os.path.dirname(fact.absolute)
        for fact in inputs.paths
        if fact.role == "output" and fact.file_type != "file"
    ]
    plan = Plan(
        engine=choice.engine,
        program=engine.path if engine else choice.engine,
        argv=argv,
        variables=tuple(variables.items()),
        unset=environment.unset(host.environment, traits),
        unseen=tuple(
            name for name, value in variables.items() if _is_unseen(name, value, settings, traits)
        ),
        inside=traits.inside,
        image=choice.image.name,
        place=choice.built.place if choice.built else None,
        digest=choice.built.digest if choice.built else None,
        mounts=mounts,
        folders=context.private_folders(("home", "tmp", *CACHES.values())),
        outputs=tuple(dict.fromkeys([*outputs, *reports.values()])),
        workdir=f"{private}/home",
        host_libraries=libraries,
        host_devices=traits.own_shm and (context.shares_memory or _below_dev(mounts)),
        # Where the engine maps the user to root of the container, that root owns the user's files.
        user=(user.uid, user.gid) if user and not (engine and engine.maps_root) else (0, 0),
        terminal=context.terminal,
        decisions=(*decisions, *library_decisions),
    )
    return _with_devices(plan, host, choice, traits)


def _is_unseen(name: str, value: str, settings: LaunchSettings, traits: EngineTraits) -> bool:
    """Return whether a variable reaches a container by the environment of the engine.

    Those do that may be secrets, unless the engine would lose the value on the way.
    """
    if name in ENGINES_OWN:  # an engine has a meaning of its own for these
        return False
    secret = environment.SECRET.search(name) is not None
    if not traits.ends_value or traits.ends_value not in value:
        asked = name in settings.env or environment.matches(name, settings.pass_env)
        return secret or asked
    if secret:
        cause, evidence = (
            "A secret that the engine cannot take",
            f"{name} has U+{ord(traits.ends_value):04X}",
        )
        raise ConfigurationError(cause, evidence, "remove that character, or use another --runtime")
    return False


def _below_dev(mounts: Iterable[Mount]) -> bool:
    """Return whether a mount lies below /dev, such as one of /dev/shm, the host's own.

    An engine that gives a container a /dev of its own has no place there to mount anything.
    """
    below = [mount for mount in mounts if mount.target.startswith("/dev/")]
    for mount in below:
        if mount.source != mount.target:
            cause = "A folder that cannot be mounted"
            evidence = f"'{mount.source}' at '{mount.target}' ({mount.origin})"
            raise ConfigurationError(cause, evidence, "use a path outside of /dev")
    return bool(below)


def _with_devices(plan: Plan, host: Host, choice: Candidate, traits: EngineTraits) -> Plan:
    """Add the devices of a container, the groups that own them, and the variable that selects GPUs.

    The libraries of a driver of the host come in with all GPUs of the vendor, by the engine's own
    option or by the name of a CDI description; else the nodes of the chosen GPUs alone go in.
    """
    if not choice.gpus or not choice.selection:
        return plan
    vendor = VENDORS[choice.gpus[0].vendor]
    visible = tuple(sorted(choice.gpus, key=lambda gpu: gpu.index))
    nodes = () if vendor.host_libraries else tuple(device_nodes(visible))
    cdi = (f"{vendor.cdi_kind}=all",) if vendor.host_libraries and traits.needs_cdi else ()
    one_by_one = not vendor.host_libraries and not plan.host_devices
    variables, decision = _selected(choice, visible if one_by_one else choice.selection.ours)
    decisions = [decision]
    for device in cdi:
        why = "all GPUs, with the driver's libraries, as the host describes them"
        decisions.append(Decision("device", device, why, "host"))
    for path in nodes:
        shared = path in vendor.shared_nodes
        why = "a node that all GPUs of the vendor share" if shared else "a GPU that is used"
        decisions.append(Decision("device", path, why, "host"))
    owners = {node.gid for path in nodes if (node := host.node(path)) and node.gid is not None}
    fact = host.engine(choice.engine)
    mapped = host.user is None or (fact is not None and fact.maps_root)
    groups = () if mapped or host.user is None else owners.intersection(host.user.groups)
    return replace(
        plan,
        devices=nodes,
        groups=tuple(sorted(groups)),
        cdi=cdi,
        variables=tuple({**dict(plan.variables), **variables}.items()),
        decisions=(*plan.decisions, *decisions),
    )


def _libraries(
    vendor: Vendor | None, settings: LaunchSettings, traits: EngineTraits
) -> tuple[str, list[Decision]]:
    """Return the vendor whose host libraries the engine binds ("": none), and the decision."""
    if vendor is None or vendor.library_flags is None:
        return "", []
    bring, keep_out = vendor.library_flags
    if vendor.host_libraries:
        why = "the driver's libraries have to come from the host"
        return vendor.name, [Decision("engine option", bring, why, "default")]
    key = vendor.libraries_setting
    libraries = host_libraries(vendor.name, settings.libraries[key].value and traits.host_libraries)
    why = REQUESTED if libraries else "it would replace the image's libraries with the host's"
    value = bring if libraries else keep_out
    return libraries, [Decision("engine option", value, why, settings.libraries[key].source)]


def _reports(inputs: LaunchInputs, choice: Candidate) -> dict[str, str]:
    """Return the variable with the folder of the check reports, where a GPU computes."""
    folder = inputs.context.reports
    return {CHECK_REPORTS: folder} if folder and choice.gpus else {}


def _mounts(
    inputs: LaunchInputs, traits: EngineTraits, reports: Iterable[str]
) -> tuple[Mount, ...]:
    """Return the mounts: private folders, reports, paths of the command line, requested mounts."""
    settings, context, private = inputs.settings, inputs.context, inputs.context.private
    mounts = [
        Mount(private, private, True, "private home and caches", "default", "own"),
        Mount(f"{private}/tmp", "/tmp", True, "temporary files of this job", "default", "own"),
    ]
    if not traits.own_shm:
        why = "shared memory of loaders and ranks"
        mounts.append(Mount("/dev/shm", "/dev/shm", True, why, "default", "own"))
    mounts += [Mount(folder, folder, True, "check reports", "default", "own") for folder in reports]
    mounts += [*of_paths(inputs.paths), *context.requested_mounts]
    if settings.mount_home.value:
        source = settings.mount_home.source
        mounts.append(Mount(context.home, context.home, True, "home folder", source, "placed"))
    return fold(mounts)


def _selected(choice: Candidate, visible: Sequence[Gpu]) -> tuple[dict[str, str], Decision]:
    """Return the one variable that selects GPUs with its value, and the decision."""
    assert choice.selection is not None
    name = VENDORS[choice.selection.vendor].visible_devices
    value = value_for(replace(choice.selection, gpus=choice.gpus), visible)
    why = "one variable instead of many; it counts what the program will see"
    decision = Decision("GPU selection", f"{name}={value}", why, choice.selection.source)
    return {name: value}, decision
