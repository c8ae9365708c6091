"""Check reports of GPUs: stored in the user's cache by key, and measured if none is stored.

A report decides what a run computes with, so a file that another user could have written is not
used: neither one of another owner, nor one that others may write, nor a link.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam import __version__
from aam.contract.attention import computes
from aam.contract.check_report import CheckReport, StackKey, from_json, to_json
from aam.contract.errors import CannotCreate, DataError, Unavailable
from aam.contract.files import atomic_write
from launcher import documents, processes
from launcher.engines import command
from launcher.engines.folders import make_private
from launcher.findings import Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Host
from launcher.plan.assembly import assemble_plan
from launcher.plan.attention import ATTENTION, KnownReport
from launcher.plan.catalog import Catalog
from launcher.plan.inputs import BuiltImage, LaunchInputs, NativeStack
from launcher.plan.plan import Plan
from launcher.plan.request import Request
from launcher.plan.selection import NATIVE, Choice

TIMEOUT = 900
"""Seconds that a check may take, the start of a container included; one that hangs ends itself."""


class NotComputing(Unavailable):
    """`aam check` ends without a result, because the GPU does not compute with the stack."""


def report_for(inputs: LaunchInputs, choice: Choice, starting: bool) -> KnownReport | None:
    """Return the report on the stack that was chosen; None where no GPU computes attention.

    Args:
        starting: the plan will run, so a missing report is measured; `explain` runs nothing.

    Raises:
        Unavailable: the check does not end.
    """
    request, host = inputs.request, inputs.host
    if not choice.gpus or request.option(ATTENTION) is None:
        return None
    if not request.value("--check"):
        return KnownReport(absent="--no-check")
    key = key_of(host, choice, inputs.native)
    if key is None:
        measures = "the image has no digest, so aam measures before each run"
        return KnownReport(absent=measures if host.live else "nothing is measured on a capture")
    cache = folder(os.environ)
    found = stored(key, cache)
    repeat = request.launcher_options.get("--recheck")
    if not starting or request.dry_run or (found.report is not None and not repeat):
        return found
    if host.slurm is not None and host.slurm.local_id:
        absent = "the first rank of a node measures for the launcher, the others before they run"
        return dataclasses.replace(found, absent=absent)
    try:
        check = dataclasses.replace(inputs, request=check_command(choice.gpus[0].vendor), paths=())
        report = measure(assemble_plan(check, choice), key)
    except NotComputing as error:
        return KnownReport(absent="the check failed", failure=error.evidence)
    except ValueError as error:
        remedy = "aam measures by itself before it runs"
        failed = Finding("warning", "The stack could not be measured", str(error), remedy)
        return KnownReport(absent="the check failed", findings=(*found.findings, failed))
    problem = store(report, key, cache)
    findings = (*found.findings, problem) if problem else found.findings
    known = KnownReport(report, str(place(key, cache)), findings=findings)
    return dataclasses.replace(known, failure=_failure(report))


def _failure(report: CheckReport) -> str:
    return "" if computes(report) else f"no correct attention backend, measured {report.made}"


def with_reports(catalog: Catalog, host: Host, built: Sequence[BuiltImage], cache: Path) -> Catalog:
    """Return the catalog with the stored results of `aam check` on the GPUs of this host."""
    for gpu in {gpu.arch: gpu for gpu in host.gpus if gpu.driven}.values():
        for found in built:
            key = _key(host, gpu, _identity(found))
            report = stored(key, cache).report if key else None
            if report is None:
                continue
            if reason := _failure(report):
                catalog = with_failure(catalog, found.image, gpu, reason)
            else:
                images = tuple(
                    dataclasses.replace(i, measured=(*i.measured, report.key.arch))
                    if i.name == found.image and report.key else i
                    for i in catalog.images
                )  # fmt: skip
                catalog = dataclasses.replace(catalog, images=images)
    return catalog


def with_failure(catalog: Catalog, name: str, gpu: Gpu, reason: str) -> Catalog:
    """Return the catalog in which an image is known to fail on the arch of a GPU."""
    images = tuple(
        dataclasses.replace(i, failed={**i.failed, gpu.arch or "unknown": reason})
        if i.name == name else i
        for i in catalog.images
    )  # fmt: skip
    return dataclasses.replace(catalog, images=images)


def check_command(vendor: str) -> Request:
    """Return the command that measures the GPUs of a vendor."""
    return Request("check", {"--json": True, "--device": VENDORS[vendor].device_type})


def folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of the reports."""
    return documents.user_folder("XDG_CACHE_HOME", variables) / "check-reports"


def key_of(host: Host, choice: Choice, native: NativeStack) -> StackKey | None:
    """Return the key of the reports for a choice; None if nothing identifies the image."""
    stack = f"native:{native.torch}" if choice.engine == NATIVE else _identity(choice.built)
    return _key(host, choice.gpus[0], stack)


def _key(host: Host, gpu: Gpu, stack: str | None) -> StackKey | None:
    if stack is None:
        return None
    return StackKey(stack, gpu.arch or "unknown", _driver(host, gpu), __version__)


def _identity(built: BuiltImage | None) -> str | None:
    """Return what identifies an image in reports: its digest, or size and time of its file."""
    if built is None:
        return None
    if built.digest:
        return built.digest
    try:
        facts = os.stat(built.place)
    except OSError:  # the name of an image that an engine keeps
        return None
    return f"file:{facts.st_size:x}-{facts.st_mtime_ns:x}"


def _driver(host: Host, gpu: Gpu) -> str:
    """Return the version of a GPU's kernel driver as reports name it."""
    driver = host.driver(gpu.vendor)
    return driver.version if driver and driver.version else f"kernel {host.kernel}"


def place(key: StackKey, cache: Path) -> Path:
    """Return the file of a key."""
    import hashlib  # with OpenSSL; a start without a GPU saves 3 ms

    content = json.dumps(dataclasses.asdict(key), sort_keys=True)
    return cache / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"


def stored(key: StackKey, cache: Path) -> KnownReport:
    """Return the report that is stored for a key, or the reason why none is used."""
    file = place(key, cache)
    absent = f"nothing is stored for {key}"
    try:
        report = _read(file)
        if report.key != key:
            raise ValueError("it is for another key")
    except FileNotFoundError:
        return KnownReport(absent=absent)
    except (OSError, ValueError, DataError) as error:
        evidence = f"'{file}', {str(error).rstrip('.')}"
        unused = Finding("warning", "A stored check report is not used", evidence, "remove it")
        return KnownReport(absent=absent, findings=(unused,))
    return KnownReport(report, str(file))


def of_host(host: Host, cache: Path) -> list[CheckReport]:
    """Return the reports that are stored for the GPUs and driver of a host, the latest first."""
    present = {(gpu.arch or "unknown", _driver(host, gpu)) for gpu in host.gpus}
    found = []
    for file in sorted(cache.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, DataError):
            found.append(_read(file))
    fitting = [r for r in found if r.key and (r.key.arch, r.key.driver) in present]
    return sorted(fitting, key=lambda report: report.made, reverse=True)


def store(report: CheckReport, key: StackKey, cache: Path) -> Finding | None:
    """Store a report; return a warning if it cannot be stored, which does not stop a run."""
    file = place(key, cache)
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(file) as temporary:
            # Private and new: another user may neither read it nor have put a link there.
            temporary.touch(mode=0o600, exist_ok=False)
            temporary.write_text(to_json(report))
    except (OSError, CannotCreate) as error:
        evidence = f"'{file}', {error.strerror if isinstance(error, OSError) else error.cause}"
        return Finding("warning", "The check report cannot be stored", evidence, "make room for it")
    return None


def measure(plan: Plan, key: StackKey) -> CheckReport:
    """Run the check of `plan`, which is one of `check_command`, and return its report with the key.

    Raises:
        NotComputing: the GPU cannot compute.
        Unavailable: the check hangs.
        ValueError: there is no report.
    """
    print(f"aam-launch: measuring attention once for {key}", file=sys.stderr, flush=True)
    make_private(plan.folders)
    argv = command(plan)
    try:
        done = processes.run(argv, TIMEOUT, plan.environment(os.environ))
    except TimeoutError as error:
        raise Unavailable(*not_computing(str(error))) from error
    except OSError as error:
        raise ValueError(f"'{argv[0]}', {error.strerror}") from error
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else f"exit status {done.returncode}"
    if done.returncode == Unavailable.status:
        raise NotComputing(*not_computing(last.removeprefix("aam: ")))
    if done.returncode not in (0, 1):
        raise ValueError(last)
    try:
        report = from_json(done.stdout)
    except DataError as error:
        raise ValueError(f"{last}: {error}") from error
    return dataclasses.replace(report, key=key)


def not_computing(evidence: str) -> tuple[str, str, str]:
    """Return cause, evidence and remedy of the error for a GPU that does not compute."""
    remedy = "use another node or image; --no-check starts all the same"
    return "The GPU does not compute", evidence.rstrip("."), remedy


def _read(file: Path) -> CheckReport:
    """Return the report in a file.

    Raises:
        OSError, ValueError, DataError: why it is not used.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        own = os.fstat(handle)
        for facts in (own, os.stat(file.parent)):
            if facts.st_uid != os.geteuid():
                raise ValueError("it belongs to another user")
            if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("others may write it")
        if not stat.S_ISREG(own.st_mode):
            raise ValueError("it is not a regular file")
        return from_json(stream.read(documents.LARGEST).decode(errors="replace"))
