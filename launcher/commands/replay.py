"""`aam-launch replay`: repeat the run of a run.json; further options replace recorded ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aam import __version__
from aam.contract.errors import MissingInput, Unavailable, UsageError
from aam.contract.files import sha256
from aam.contract.options import options_of, parse_command
from aam.contract.options.command_line import require_all
from launcher import documents
from launcher.commands.start import start
from launcher.findings import Finding
from launcher.host.facts import Host
from launcher.plan.launch_record import FORMER_KEYS, engine_version
from launcher.plan.plan import Plan
from launcher.plan.request import Request, parse
from launcher.planning import plan_launch

LARGEST = 64 << 20
REMEDY = "name the run.json of a run folder, or the .run.json beside an output"


@dataclass(frozen=True)
class RecordedCommand:
    """The command line that a run.json records, and where and on which GPUs it ran."""

    command: str
    arguments: tuple[str, ...]
    launcher_options: Mapping[str, tuple[str, ...]]
    folder: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class RecordedInput:
    """An input file of a recorded run."""

    path: str
    sha256: str


@dataclass(frozen=True)
class RecordedRun:
    """The launch that a run.json records; `launch` is its JSON as it stands there."""

    request: Request
    folder: str
    gpus: tuple[str, ...]
    launch: Mapping[str, Any]
    inputs: Mapping[str, RecordedInput]
    version: str


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Compare inputs and plan with the record, then start the run."""
    if not argv:
        raise UsageError("Nothing to replay", "no run.json is named", "name one, or a run folder")
    recorded = read(Path(argv[0]))
    before = recorded.request
    changed = parse_command(before.command, argv[1:], program="aam-launch", incomplete=True)
    try:
        os.chdir(recorded.folder)
    except OSError as error:
        evidence = f"'{recorded.folder}', {error.strerror}"
        remedy = "make it, or run the command of the record elsewhere"
        raise MissingInput("The folder of the run is gone", evidence, remedy) from error
    options = {**before.launcher_options, **launcher_options}
    request = replace(before, given={**before.given, **changed}, launcher_options=options)
    require_all(options_of(request.command), request.given, request.command)
    differs = _input_differences(recorded)
    plan = None
    if not any("is gone" in finding.cause for finding in differs):
        host, plan = plan_launch(request, starting=True)
        differs += _plan_differences(recorded, host, plan)
    grave = [finding for finding in differs if finding.severity == "error"]
    if plan is None or (grave and "--force" not in launcher_options):
        evidence = "; ".join(str(finding).rstrip(".") for finding in differs)
        remedy = "--force runs what can be run"
        raise Unavailable("This run cannot be repeated as it was", evidence, remedy)
    for finding in differs:
        print(f"aam-launch: warning: {finding}", file=sys.stderr)
    return start(plan, request.dry_run)


def read(path: Path) -> RecordedRun:
    """Read a run.json, or that of a run folder.

    Raises:
        MissingInput: it is not there, is none, is damaged, or the run was not started by the
            launcher.
        UsageError: an option of it no longer exists.
    """
    file = _record_in(path) if path.is_dir() else path
    try:
        content = documents.parsed(documents.regular(file, LARGEST))
        launch, version = content["launch"], str(content["aam"])
        if launch is None:
            remedy = "its argv stands in the file"
            raise MissingInput("A run that aam-launch did not start", f"'{file}'", remedy)
        launch = {FORMER_KEYS.get(key, key): value for key, value in launch.items()}
        line: RecordedCommand = documents.typed(RecordedCommand, launch, "launch")
        inputs = documents.typed(
            Mapping[str, RecordedInput], content.get("inputs", {}), "inputs"
        )  # fmt: skip
    except OSError as error:
        evidence = f"'{file}', {error.strerror}"
        raise MissingInput("No record of a run", evidence, REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        evidence = f"'{file}', {type(error).__name__}: {error}"
        raise MissingInput("Not the record of a run", evidence, REMEDY) from error
    flags = [f"{flag}={value}" if value is not None else flag
             for flag, values in line.launcher_options.items()
             for value in values or [None]]  # fmt: skip
    request = parse([*flags, *line.command.split(), *line.arguments], incomplete=True)
    return RecordedRun(request, line.folder, line.gpus, launch, inputs, version)


def _record_in(folder: Path) -> Path:
    """Return the record in a folder: its run.json, else the only one of another command."""
    others = sorted(folder.glob("*.run.json"))
    if (folder / "run.json").is_file() or not others:
        return folder / "run.json"
    if len(others) > 1:
        names = ", ".join(other.name for other in others)
        raise MissingInput("Several runs left a record", f"'{folder}' has {names}", "name one")
    return others[0]


def _input_differences(recorded: RecordedRun) -> list[Finding]:
    """Compare every input with the SHA-256 of the record."""
    found = []
    for flag, entry in recorded.inputs.items():
        # Of a store of `aam prepare` the header is compared; it holds the checksums of its files.
        store = os.path.isdir(entry.path)
        file = os.path.join(entry.path, "store.json") if store else entry.path
        if not os.path.isfile(file):
            found.append(Finding("error", f"The input of {flag} is gone", f"'{entry.path}'"))
        elif sha256(Path(file)) != entry.sha256:
            evidence = f"'{entry.path}' has another SHA-256 than then"
            found.append(Finding("error", f"The input of {flag} has changed", evidence))
    return found


def _plan_differences(recorded: RecordedRun, host: Host, plan: Plan) -> list[Finding]:
    """Compare the plan with that of the record.

    Another image, PyTorch or kind of GPU may give other numbers: errors. Another kernel, driver or
    version of the engine is a warning.
    """
    now: dict[str, Any] = {
        "engine": plan.engine,
        "image": plan.image,
        "digest": plan.digest,
        "stack": plan.stack,
        "gpus": [f"{gpu.product} ({gpu.arch})" for gpu in plan.gpus],
    }
    then = {**recorded.launch, "gpus": [gpu.partition(" at ")[0] for gpu in recorded.gpus]}
    found = [
        Finding("error", f"Another {name}", f"{then.get(name)} then, {value} now")
        for name, value in now.items()
        if then.get(name) != value
    ]
    driver = host.driver(plan.gpus[0].vendor) if plan.gpus else None
    around = {
        "kernel": host.kernel,
        "driver": driver.version if driver else None,
        "engine_version": engine_version(plan, host),
    }
    found += [
        Finding("warning", f"Another {name.replace('_', ' ')}", f"{then[name]} then, {value} now")
        for name, value in around.items()
        if name in then and then[name] != value
    ]
    if recorded.version != __version__:
        evidence = f"{recorded.version} then, {__version__} now"
        found.append(Finding("error", "Another version of aam", evidence))
    return found
