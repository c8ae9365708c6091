"""Plan of one engine: program, mounts, devices and variables, natively or in a container. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.gpus import VENDORS, device_nodes, host_libraries, visible_devices_variables
from launcher.host.facts import EngineTraits, Gpu, Host
from launcher.plan import environment, visible_devices
from launcher.plan.choice import Choice, NativeStack
from launcher.plan.decision import Decision
from launcher.plan.environment import CACHES
from launcher.plan.mounts import HOME, Mount, PathFact, fold, of_paths, require_passable
from launcher.plan.plan import Plan
from launcher.plan.settings import LaunchSettings


@dataclass(frozen=True)
class LaunchContext:
    """Facts about the launcher's own process.

    Attributes:
        folder: the current folder.
        private: folder of this user, job and node.
        home: the user's home folder.
        terminal: standard input and output are a terminal.
        requested_mounts: mounts of --bind and of settings.
    """

    folder: str
    private: str
    home: str
    terminal: bool
    requested_mounts: tuple[Mount, ...] = ()


def native_plan(
    host: Host,
    choice: Choice,
    settings: LaunchSettings,
    paths: Sequence[PathFact],
    native: NativeStack,
    context: LaunchContext,
    argv: tuple[str, ...],
) -> Plan:
    """Return the plan of a command in the launcher's own Python environment."""
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
        caches = {
            n: f"{context.private}/{f}" for n, f in CACHES.items() if n not in host.environment
        }
        variables |= caches
        folders = (
            os.path.dirname(context.private),
            context.private,
            *dict.fromkeys(caches.values()),
        )
    requested, _ = environment.container_variables({}, (), _requested(settings), context.private)
    given = {name: requested[name] for name in _requested(settings) if name in requested}
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
        argv=argv,
        variables=tuple((variables | given).items()),
        unset=unset,
        folders=folders,
        outputs=(),
        workdir=context.folder,
        terminal=context.terminal,
        decisions=tuple(decisions),
    )


def container_plan(
    host: Host,
    choice: Choice,
    settings: LaunchSettings,
    paths: Sequence[PathFact],
    native: NativeStack,
    context: LaunchContext,
    argv: tuple[str, ...],
) -> Plan:
    """Return the plan of a command in a container; `argv` are those of `aam`."""
    assert choice.image is not None
    private = context.private
    engine, traits = host.engine(choice.engine), host.traits(choice.engine)
    visible = tuple(sorted(choice.gpus, key=lambda gpu: gpu.index))
    variables, decisions = environment.container_variables(
        host.environment,
        [name for entry in settings.given("pass_env") for name in entry.value],
        _requested(settings),
        private,
    )
    vendor = VENDORS[choice.gpus[0].vendor] if choice.gpus else None
    devices: tuple[str, ...] = ()
    if vendor and choice.selection:
        # An engine's own support binds every device; else only the chosen ones.
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
    folded = _mounts(traits, settings, paths, context)
    names = [path for mount in folded for path in (mount.source, mount.target)]
    require_passable(
        folded, [*argv, *names, *(variables.get(name, "") for name in _requested(settings))]
    )
    decisions += [
        Decision("mount", f"{m.target} {'rw' if m.writable else 'ro'}"
                 + (f" from {m.source}" if m.source != m.target else ""), m.why, m.origin)
        for m in folded
    ]  # fmt: skip
    requested = settings.on("host_rocm") and traits.host_libraries
    libraries = host_libraries(vendor.name if vendor else "", requested)
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
               for f in paths if f.role == "output" and f.file_type != "file"]  # fmt: skip
    return Plan(
        engine=choice.engine,
        program=engine.path if engine else choice.engine,
        argv=argv,
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
        terminal=context.terminal,
        decisions=tuple(decisions),
    )  # fmt: skip


def _mounts(
    traits: EngineTraits,
    settings: LaunchSettings,
    paths: Sequence[PathFact],
    context: LaunchContext,
) -> tuple[Mount, ...]:
    """Return the mounts: private folders, paths of the command line, requested mounts."""
    private = context.private
    mounts = [
        Mount(f"{private}", private, True, "private home and caches", "default"),
        Mount(f"{private}/tmp", "/tmp", True, "temporary files of this job", "default"),
    ]
    if not traits.own_shm:
        why = "shared memory of loaders and ranks"
        mounts.append(Mount("/dev/shm", "/dev/shm", True, why, "default"))
    mounts += [*of_paths(paths), *context.requested_mounts]
    if settings.on("mount_home"):
        mounts.append(Mount(context.home, context.home, True, HOME, settings.source("mount_home")))
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


def _requested(settings: LaunchSettings) -> dict[str, tuple[str | None, str]]:
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
