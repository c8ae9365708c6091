"""Preflight checks of a job on the login node: files, space, image, memory of the GPUs.

Each check returns the errors it found, so that a dry run can show them all.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from aam.contract.errors import AamError, CannotCreate, MissingInput, Unavailable, UsageError
from aam.contract.files import sha256
from aam.contract.options.commands import wrapped_options
from launcher import processes
from launcher.engines import command
from launcher.engines.folders import make_folders
from launcher.engines.sif import sif_id
from launcher.findings import Finding
from launcher.input_files import require_inputs, require_outputs
from launcher.plan.inputs import BuiltImage
from launcher.plan.mounts import PathFact
from launcher.plan.plan import Plan
from launcher.plan.request import JSON, Request
from launcher.slurm.site import Site

PROBE = 1 << 20
"""Bytes that are written to see whether a quota has room; statvfs(2) reports the disk alone."""
TIMEOUT = 600
"""Seconds that the prediction may take, the start of a container included; it takes some seconds,
and longer for a large study or on a busy login node."""

SIZES = ("--batch-size", "--asv-chunk")
"""Options whose value `auto` fits a run into memory."""


def files(request: Request, paths: Sequence[PathFact], site: Site) -> list[AamError]:
    """Look at the inputs and outputs of a request, as the nodes will."""
    found = [
        *caught(lambda: require_inputs(request)),
        *caught(lambda: require_outputs(tuple(paths))),
    ]
    for fact in paths:
        hidden = unseen(fact.real, site)
        if hidden:
            is_input = fact.role == "input"
            error = MissingInput if is_input else CannotCreate
            remedy = f"{'copy it to' if is_input else 'choose'} a folder that they see"
            cause = f"The nodes do not see the {fact.role} of {fact.flag}"
            found.append(error(cause, hidden, remedy))
        elif fact.role == "output":
            found += room(fact)
    return found


def run_in_the_way(request: Request, paths: Sequence[PathFact]) -> list[AamError]:
    """Return an error for an output that exists already, which `aam` would refuse hours later."""
    if request.value("--overwrite") or request.value("--resume-from"):
        return []
    for fact in paths:
        if fact.role != "output":
            continue
        held = ("run.json", "checkpoints", "metrics.csv") if fact.folder else ("",)
        there = [name for name in held if os.path.exists(os.path.join(fact.real, name).rstrip("/"))]
        if there:
            evidence = f"'{fact.absolute}'" + (f" has {', '.join(there)}" if fact.folder else "")
            more = ", --resume-from continues it" if fact.folder else ""
            remedy = f"--overwrite replaces it{more}"
            return [CannotCreate("The output exists already", evidence, remedy)]
    return []


def unseen(path: str, site: Site) -> str:
    """Return why the nodes do not see a path; nothing if they do, or if it is unknown."""
    shared = [os.path.realpath(place) for place in site.strings("shared")]
    if shared and not any(_below(path, place) for place in shared):
        return f"'{path}' is not below {' or '.join(shared)}"
    for place in site.strings("unshared"):
        if _below(path, os.path.realpath(place)):
            return f"'{path}' is below {place}, which each host has for itself"
    return ""


def room(fact: PathFact) -> list[AamError]:
    """Write 1 MiB where an output will be: only that shows a quota."""
    place = fact.real if fact.folder else os.path.dirname(fact.real)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".aam-room-") as stream:
            stream.write(bytes(PROBE))
            stream.flush()
            # A network file system may report a quota only when data is flushed (close(2)).
            os.fsync(stream.fileno())
    except OSError as error:
        why = {errno.EDQUOT: "your quota is reached", errno.ENOSPC: "the disk is full"}
        evidence = f"'{place}', {why.get(error.errno or 0, error.strerror)}"
        return [CannotCreate(f"No room for {fact.flag}", evidence, "free some space")]
    return []


def image(built: BuiltImage | None, name: str, site: Site, force: bool) -> list[AamError]:
    """Check that the image is complete, seen by the nodes, and the recorded one."""
    if built is None:
        return []
    found: list[AamError] = []
    if sif_id(built.place) is None:
        found.append(MissingInput("Not a SIF", f"'{built.place}'", "build or copy it again"))
    hidden = unseen(os.path.realpath(built.place), site)
    if hidden:
        found.append(MissingInput("The nodes do not see the image", hidden, "set image_dir"))
    if found or force:
        return found
    if built.digest is None or not built.digest.startswith("sha256:"):
        evidence = f"no SHA-256 of '{built.place}' is recorded"
        remedy = f"record it with `aam-launch images build {name} --from FILE.sif`, or --force"
        return [Unavailable(f"Image {name} is not recorded", evidence, remedy)]
    if built.digest != f"sha256:{sha256(Path(built.place))}":
        cause = f"Image {name} is not the recorded one"
        return [Unavailable(cause, f"'{built.place}' is not {built.digest}", "build it again")]
    return []


def advice(paths: Sequence[PathFact], site: Site) -> list[Finding]:
    """Return warnings about what works but should be otherwise."""
    home = site.text("home")
    return [
        Finding("warning", f"{fact.flag} is in the home file system", f"'{fact.real}'",
                "homes are small and for code; scratch is for runs")
        for fact in paths
        if home and fact.role == "output" and _below(fact.real, home)
    ]  # fmt: skip


def launcher_advice(python: str, code: str, site: Site) -> list[Finding]:
    """Return a warning if the nodes may not see the launcher, which starts the ranks there."""
    for path in (python, code):
        if hidden := unseen(path, site):
            remedy = "install the launcher, with its Python, in a folder that they see"
            return [Finding("warning", "The nodes may not see the launcher", hidden, remedy)]
    return []


def predicts_memory(request: Request, site: Site) -> bool:
    """Return whether the memory of a command on the GPUs of a site is to be predicted."""
    trains = request.command in ("pretrain", "train") and request.computes_on_gpu
    fitted = any(request.value(flag) == "auto" for flag in SIZES) if trains else True
    return trains and not fitted and site.number("gpu_memory_gb") > 0


def memory(
    request: Request, ranks: int, site: Site, make: Callable[[Request], Plan]
) -> tuple[list[AamError], list[Finding]]:
    """Return an error if a training does not fit, and a warning if that is not known.

    `aam memory` predicts in the image of the job, without a GPU. It takes some seconds and reads
    the study. Whatever keeps it from ending is a warning, and the job is queued.

    Args:
        ranks: of the whole job.
        make: makes a plan of a command on this host.
    """
    try:
        needed = predicted_memory(request, ranks, make)
    except (AamError, OSError, ValueError) as error:
        reason = str(error).rstrip(".")
        remedy = f"`aam-launch memory {request.command}` with the same options shows why"
        return [], [Finding("warning", "The memory of the job is not predicted", reason, remedy)]
    return misfit(request, needed, site), []


def misfit(request: Request, needed: int, site: Site) -> list[AamError]:
    """Return an error if a training needs more bytes than a GPU of the site has."""
    most = site.number("gpu_memory_gb")
    if needed <= most * 10**9:
        return []
    evidence = f"{needed / 10**9:.1f} GB predicted for each rank, {site.text('gpu')} has {most} GB"
    remedy = f"`aam-launch memory {request.command}` shows what saves memory; --no-memory-check"
    return [UsageError("The job does not fit into the memory of a GPU", evidence, remedy)]


def predicted_memory(request: Request, ranks: int, make: Callable[[Request], Plan]) -> int:
    """Return the memory that each rank of a training needs on its GPU, in bytes.

    Raises:
        AamError: no plan can be made.
        OSError: the program cannot be started, or takes too long.
        ValueError: it prints no prediction.
    """
    kept = {spec.flag for spec in wrapped_options("memory", request.command)}
    given = {flag: value for flag, value in request.given.items() if flag in kept}
    given |= {JSON: True} | ({"--processes": ranks} if ranks > 1 else {})
    plan = make(Request("memory", given, wrapped=request.command))
    make_folders(plan)
    print("aam-launch: predicting the memory of the job", file=sys.stderr, flush=True)
    done = processes.run(command(plan), TIMEOUT, plan.environment(os.environ))
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(lines[-1] if lines else f"it ended with status {done.returncode}")
    try:
        return int(json.loads(done.stdout.splitlines()[-1])["needed"])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("it printed no prediction") from error


def caught(check: Callable[[], None]) -> list[AamError]:
    """Return the error that a check raises, in a list."""
    try:
        check()
    except AamError as error:
        return [error]
    return []


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
