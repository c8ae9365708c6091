"""Preflight of a job: files, columns, space, image on the login node; memory on the first."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from aam.contract import preflight
from aam.contract.errors import (
    AamError,
    CannotCreate,
    MissingInput,
    Problem,
    Unavailable,
    UsageError,
)
from aam.contract.files import sha256
from aam.contract.options.command_line import arguments
from aam.contract.options.commands import wrapped_options
from launcher import system
from launcher.findings import warning
from launcher.host.facts import Host
from launcher.launch import nearest_folder, require_inputs, require_outputs
from launcher.plan.assembly import Plan
from launcher.plan.inputs import JSON, Request
from launcher.plan.mounts import PathFact
from launcher.plan.settings import LAUNCHER_OPTIONS
from launcher.slurm import log
from launcher.slurm.site import Site

PROBE = 1 << 20
"""Bytes that are written to see whether a quota has room; statvfs(2) reports the disk alone."""
TIMEOUT = 600
"""Seconds that the prediction of memory may take, the start of a container included; it takes some
seconds, and longer for a large study or on a busy login node."""


def files(request: Request, paths: Sequence[PathFact], site: Site) -> list[AamError]:
    """Look at the inputs and outputs of a request, as the nodes and as `aam` will."""
    output: Path | None = request.given.get("--output-dir")
    overwrite, resumes = (bool(request.value(f"--{name}")) for name in ("overwrite", "resume-from"))
    errors: list[AamError] = []

    def outputs() -> None:
        require_outputs(paths)
        if output is not None and request.option("--resume-from") is not None:
            preflight.check_run_folder(output, overwrite, resumes)

    of_aam: tuple[Callable[[], None], ...] = (
        lambda: require_inputs(request), lambda: preflight.require_inputs(request),
        lambda: preflight.require_columns(request), outputs,
    )  # fmt: skip
    for check in of_aam:
        try:
            check()
        except AamError as error:
            errors.append(error)
    for fact in paths:
        if hidden := unseen(fact.real, site):
            is_input = fact.role == "input"
            kind = MissingInput if is_input else CannotCreate
            remedy = f"{'copy it to' if is_input else 'choose'} a folder that they see"
            cause = f"The nodes do not see the {fact.role} of {fact.flag}"
            errors.append(kind(cause, hidden, remedy))
        elif fact.role == "output":
            # Write 1 MiB into the folder of the output: only that shows a quota.
            folder = nearest_folder(fact.real if fact.folder else os.path.dirname(fact.real))
            try:
                with tempfile.NamedTemporaryFile(dir=folder, prefix=".aam-room-") as stream:
                    stream.write(bytes(PROBE))
                    stream.flush()
                    # A network file system may report a quota only when data is flushed (close(2)).
                    os.fsync(stream.fileno())
            except OSError as error:
                if not os.access(folder, os.W_OK | os.X_OK):
                    continue  # as require_outputs has stated
                why = {errno.EDQUOT: "your quota is reached", errno.ENOSPC: "the disk is full"}
                evidence = f"'{folder}', {why.get(error.errno or 0, error.strerror)}"
                cause = f"No room for {fact.flag}"
                errors.append(CannotCreate(cause, evidence, "free some space"))
            if not fact.folder and os.path.exists(fact.real) and not (overwrite or resumes):
                evidence, remedy = f"'{fact.absolute}'", "--overwrite replaces it"
                errors.append(CannotCreate("The output exists already", evidence, remedy))
    return list({str(error): error for error in errors}.values())


def unseen(path: str, site: Site) -> str:
    """Return why the nodes do not see a path; nothing if they do, or if it is unknown."""
    shared = [os.path.realpath(folder) for folder in site.values.shared]
    if shared and not any(_below(path, folder) for folder in shared):
        return f"'{path}' is not below {' or '.join(shared)}"
    for folder in site.values.unshared:
        if _below(path, os.path.realpath(folder)):
            return f"'{path}' is below {folder}: each host has its own"
    return ""


def image(plan: Plan, site: Site, force: bool) -> list[AamError]:
    """Check that the nodes see the image of a plan, and that it is the recorded one."""
    if plan.place is None:
        return []
    if hidden := unseen(os.path.realpath(plan.place), site):
        return [MissingInput("The nodes do not see the image", hidden, "set image_dir")]
    if force or not os.path.isfile(plan.place):  # in an engine's storage, by its digest
        return []
    if plan.digest is None or not plan.digest.startswith("sha256:"):
        evidence = f"no SHA-256 of '{plan.place}' is recorded"
        command = f"aam-launch images build {plan.image} --from FILE.sif"
        remedy = f"record it with `{command}`, or --force"
        return [Unavailable(f"Image {plan.image} is not recorded", evidence, remedy)]
    if plan.digest != f"sha256:{sha256(Path(plan.place))}":
        cause = f"Image {plan.image} is not the recorded one"
        return [Unavailable(cause, f"'{plan.place}' is not {plan.digest}", "build it again")]
    return []


def advice(
    paths: Sequence[PathFact], launcher: Sequence[str], site: Site, host: Host
) -> list[Problem]:
    """Return warnings about what works but should be otherwise."""
    findings = []
    if site.values.machine not in ("", host.machine):
        evidence = f"{site.values.machine}, this host has {host.machine}; they run '{launcher[0]}'"
        remedy = "submit with a Python that is installed for their processor"
        findings.append(warning("The nodes have a different processor", evidence, remedy))
    home = site.values.home
    for fact in paths:
        if home and fact.role == "output" and _below(fact.real, home):
            remedy = "home folders are small, for code; write runs to scratch"
            cause = f"{fact.flag} is in the home file system"
            findings.append(warning(cause, f"'{fact.real}'", remedy))
    if hidden := next(filter(None, (unseen(path, site) for path in launcher)), ""):
        remedy = "install the launcher, with its Python, in a folder that they see"
        findings.append(warning("The nodes may not see the launcher", hidden, remedy))
    return findings


def require_memory(request: Request, ranks: int, site: Site, program: Sequence[str]) -> None:
    """Refuse a training that does not fit into the memory of a GPU of the site.

    `aam-launch memory` predicts it on the node. Whatever keeps it from ending is a line of the log.
    """
    most = site.values.gpu_memory_gb
    trains = request.command in ("pretrain", "train") and request.computes_on_gpu
    # A size of `auto` fits a run into memory.
    if not most or not trains or "auto" in map(request.value, ("--batch-size", "--asv-chunk")):
        return
    # The values of --env reach the launcher by its environment, and its command line has the names.
    pairs = [text.partition("=") for text in request.launcher_options.get("--env", ())]
    variables = {**os.environ, **{name: value for name, equals, value in pairs if equals}}
    names = {"--env": tuple(name for name, _, _ in pairs), "--force": True}
    launch = arguments(LAUNCHER_OPTIONS.values(), {**request.launcher_options, **names})
    flags = {spec.flag for spec in wrapped_options("memory", request.command)}
    values = {flag: value for flag, value in request.given.items() if flag in flags}
    values |= {JSON: True} | ({"--processes": ranks} if ranks > 1 else {})
    argv = [*program, *launch, *Request("memory", values, wrapped=request.command).argv]
    try:
        done = system.run(argv, TIMEOUT, variables)
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise ValueError(lines[-1] if lines else f"it ended with status {done.returncode}")
        needed = int(json.loads(done.stdout.splitlines()[-1])["needed"])
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        unread = isinstance(error, (IndexError, KeyError, TypeError))
        reason = "it printed no prediction" if unread else str(error).rstrip(".")
        log(f"the memory of the job is not predicted: {reason}; `aam-launch memory "
            f"{request.command}` with the same options shows why")  # fmt: skip
        return
    if needed <= most * 10**9:
        return
    evidence = f"{needed / 10**9:.1f} GB predicted for each rank, {site.values.gpu} has {most} GB"
    remedy = f"`aam-launch memory {request.command}` shows what saves memory; --no-memory-check"
    raise UsageError("The job does not fit into the memory of a GPU", evidence, remedy)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
