"""Launch: gather facts, settings and files, decide, assemble, and check inputs and outputs."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from aam.contract.errors import AamError, CannotCreate, MissingInput, Problem
from aam.contract.files import try_lock
from aam.contract.records import RecordEntries, read_json
from launcher import config, system
from launcher.detect import detect, with_versions
from launcher.engines import ENGINES, make_private, native
from launcher.engines.sif import SIF, sif_id
from launcher.findings import warning
from launcher.host.facts import Host
from launcher.images import index
from launcher.plan.assembly import Plan, assemble_plan
from launcher.plan.decision import decide
from launcher.plan.inputs import LaunchInputs, Request
from launcher.plan.mounts import Mount, PathFact, parse_bind

MIN_FREE = 64 << 20  # bytes that a checkpoint and its copy take, or the caches of compiled kernels
MAX_DEPTH, MAX_ENTRIES = 3, 2000  # of the search for links below an input


def gather(
    request: Request,
    host_root: Path = Path("/"),
    mounts: Sequence[Mount] = (),
    usual_site: str = "",
) -> LaunchInputs:
    """Return everything that a launch of `request` on the host below `host_root` is decided from.

    For a capture every image of the catalog counts as built; `mounts` are further ones.
    """
    folder = os.getcwd()
    settings = config.read(request.launcher_options, os.environ, usual_site)
    catalog = config.catalog(settings)
    host = detect(host_root)
    if host.live:
        built = index.built(settings, catalog)
        catalog = index.measured(catalog, built, settings.runtime.value)
    else:
        built = index.assumed(settings, catalog)
    # Mounts of --bind, whose folders must exist, and of configurations.
    requested = [parse_bind(bind.value, os.path.exists, bind.source) for bind in settings.bind]
    binds = request.launcher_options.get("--bind", ()) if host.live else ()
    for bind, mount in zip(settings.bind, requested, strict=True):
        if bind.value in binds and not os.path.exists(mount.source):
            evidence = f"'{mount.source}' does not exist ({mount.origin})"
            raise MissingInput("A folder to mount is missing", evidence, "check the path")
    user, job = host.user.uid if host.user else 0, host.slurm.job if host.slurm else None
    return LaunchInputs(
        request, host, catalog, settings, built, host.native or native.detect_stack(), folder,
        private=config.private_folder(settings, user, host.name, job),
        home=os.path.expanduser("~"), terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        paths=path_facts(request, folder, host.live), requested_mounts=(*requested, *mounts),
        reports=str(system.user_folder("XDG_CACHE_HOME", os.environ) / "check-reports"),
    )  # fmt: skip


def plan_launch(inputs: LaunchInputs, starting: bool = False) -> tuple[Host, Plan]:
    """Decide a launch and return its host, with versions of engines, and its plan.

    `starting`: the plan will run, and an engine whose version is not cached is started for it.
    """
    inputs = replace(inputs, started=time.time() if starting else None)
    host, choice = inputs.host, decide(inputs)
    if host.live:
        host = with_versions(host, (choice.engine,) if starting else ())
        inputs = replace(inputs, host=host)
        built = choice.built
        if built is not None and ENGINES[choice.engine].traits.image_format == SIF:
            if sif_id(built.place) is None:
                raise MissingInput(
                    "Not a complete SIF", f"'{built.place}'", "build or copy it again"
                )
            if built.mismatch:
                evidence, remedy = f"'{built.place}', {built.mismatch[0]}", built.mismatch[1]
                raise MissingInput("The image is not the recorded one", evidence, remedy)
        require_outputs(inputs.paths)
    if starting and choice.image and host.slurm is None:
        inputs = replace(inputs, private=claimed(inputs.private))
    plan = assemble_plan(inputs, choice)
    if host.live and plan.folders:
        folder = nearest_folder(plan.folders[0])
        require_space(folder, "No room for caches and temporary files", "give another --scratch")
        if exposed := exposure(plan.folders[0]):
            plan = replace(plan, findings=(*plan.findings, exposed))
    return host, plan


def claimed(private: str) -> str:
    """Return the private folder of a direct launch, or the first beside it that no other has.

    Two programs that write one cache (MIOpen's database, compiled kernels) damage it. The program
    that replaces this process inherits the lock and holds it to its end.
    """
    make_private([os.path.dirname(private)])
    folder, number = private, 1
    while not _held(f"{folder}.lock"):
        number += 1
        folder = f"{private}-{number}"
    return folder


def _held(lock: str) -> bool:
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        evidence, remedy = f"'{lock}', {error.strerror}", "give another --scratch"
        raise CannotCreate("No private folder can be made", evidence, remedy) from error
    if try_lock(handle) == "taken":
        os.close(handle)
        return False
    os.set_inheritable(handle, True)
    return True


# --- input and output files


def require_inputs(request: Request) -> None:
    """Check that every input is there and may be read."""
    for spec, path in request.paths("input"):
        if not os.path.exists(path):
            evidence = f"'{path}' does not exist"
            raise MissingInput(f"No file for {spec.flag}", evidence, "check the path")
        if not os.access(path, os.R_OK):
            remedy = "ask its owner for permission to read it"
            raise MissingInput(f"No access for {spec.flag}", f"'{path}' may not be read", remedy)


def require_outputs(facts: Sequence[PathFact]) -> None:
    """Check that every output can be written: permission of the nearest folder, and space."""
    for fact in facts:
        if fact.role != "output":
            continue
        folder = nearest_folder(fact.real if fact.folder else os.path.dirname(fact.real))
        if not os.path.isdir(folder):
            remedy = "choose another place"
            raise CannotCreate(f"No folder for {fact.flag}", f"'{folder}' is a file", remedy)
        if not os.access(folder, os.W_OK | os.X_OK):
            evidence = f"'{folder}' may not be written to"
            raise CannotCreate(f"No access for {fact.flag}", evidence, "choose another folder")
        require_space(folder, f"No room for {fact.flag}", "free space, or choose another folder")


def require_space(folder: str, cause: str, remedy: str) -> None:
    """Check that the disk of an existing folder has room (quotas show only on writing)."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    if free < MIN_FREE:
        free, needed = free >> 20, MIN_FREE >> 20
        evidence = f"the disk of '{folder}' has {free} MiB left of the {needed} it takes"
        raise CannotCreate(cause, evidence, remedy)
    if facts.f_files and facts.f_favail == 0:  # file systems without a table of files say 0 of 0
        raise CannotCreate(cause, f"the disk of '{folder}' can hold no more files", remedy)


def nearest_folder(path: str) -> str:
    """Return `path`, or the nearest above it that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def path_facts(request: Request, folder: str, live: bool = True) -> tuple[PathFact, ...]:
    """Return the facts of every path of a command line, and of files named by run folders."""
    facts = []
    for spec, path in (*request.paths("input"), *request.paths("output")):
        joined, is_folder = os.path.join(folder, path), spec.field.endswith("dir")
        absolute = os.path.normpath(joined)
        if not live:
            facts.append(PathFact(spec.flag, spec.role, absolute, absolute, "nothing", is_folder))
            continue
        # Without --output, `report` writes its page into the run folder.
        within = request.command == "report" and request.value("--output") is None
        role = "output" if within and spec.flag == "--run-dir" else spec.role
        # ".." after a link leads elsewhere than it reads, so only the kernel's answer will do.
        absolute = os.path.realpath(joined) if ".." in path.parts else absolute
        fact = _fact(spec.flag, role, absolute, is_folder)
        facts.append(fact)
        if fact.file_type == "folder" and spec.role == "input":
            # The inputs that the run.json of a run folder names; `aam report` reads them again.
            with suppress(AamError):
                record = read_json(Path(fact.real) / "run.json", RecordEntries, "run record")
                inputs = [entry.path for entry in record.inputs.values()]
                facts += [_fact(f"run.json of {spec.flag}", "input", path, False, links=False)
                          for path in inputs if path.startswith("/") and os.path.exists(path)
                          ]  # fmt: skip
    return tuple(facts)


def _fact(flag: str, role: str, absolute: str, folder: bool, links: bool = True) -> PathFact:
    real = os.path.realpath(absolute)
    is_folder = os.path.isdir(real)
    file_type: Literal["file", "folder", "nothing"]
    file_type = "folder" if is_folder else "file" if os.path.exists(real) else "nothing"
    # An output that is renamed into place, such as a store, needs its parent folder to be writable.
    taken = folder if role == "output" else is_folder or (file_type == "nothing" and folder)
    # Targets, outside of an input, of the symbolic links inside it.
    targets, entries_left = [], MAX_ENTRIES
    for inner, folders, files in os.walk(real) if links and is_folder and role == "input" else ():
        if inner.count("/") - real.count("/") >= MAX_DEPTH:
            folders.clear()
        for name in (*folders, *files):
            entries_left -= 1
            path = os.path.join(inner, name)
            if os.path.islink(path) and os.path.exists(path):
                target = os.path.realpath(path)
                if not target.startswith(real + "/"):
                    targets.append(target)
        if entries_left < 0:
            break
    return PathFact(flag, role, absolute, real, file_type, taken, tuple(targets))


def exposure(folder: str) -> Problem | None:
    """Return a warning if another user may rename what lies around a private folder."""
    me, scratch = os.geteuid(), Path(os.path.realpath(os.path.dirname(folder)))
    for path in (scratch, *scratch.parents):
        try:
            facts = path.stat()
        except FileNotFoundError:  # it will be made, by this user
            continue
        writable = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if writable == stat.S_IWGRP and facts.st_uid == me:
            # Many systems give each user a group of the same name.
            with suppress(KeyError):
                if grp.getgrgid(facts.st_gid).gr_name == pwd.getpwuid(me).pw_name:
                    continue
        evidence = "" if facts.st_uid in (0, me) else f"another user owns '{path}'"
        if not evidence and writable and not facts.st_mode & stat.S_ISVTX:
            evidence = f"'{path}' has mode {stat.S_IMODE(facts.st_mode):o}, without a sticky bit"
        if evidence:
            cause = f"Others may rename folders around '{folder}'"
            return warning(cause, evidence, "choose another --scratch if they might")
    return None
