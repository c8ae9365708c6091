"""Replay of a run.json: its command line, and differences of inputs and plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam import __version__
from aam.contract.errors import MissingInput
from aam.contract.files import sha256
from launcher import documents
from launcher.findings import Finding
from launcher.host.facts import Host
from launcher.plan.launch_record import engine_version
from launcher.plan.plan import Plan
from launcher.plan.request import Request, parse

LARGEST = 64 << 20
REMEDY = "name the run.json of a run folder, or the .run.json beside an output"


@dataclass(frozen=True)
class RecordedRun:
    """The launch that a run.json records."""

    request: Request
    folder: str
    launch: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, Any]]
    version: str


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
        launch = content["launch"]
        inputs, version = content.get("inputs", {}), str(content["aam"])
    except OSError as error:
        evidence = f"'{file}', {error.strerror}"
        raise MissingInput("No record of a run", evidence, REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        evidence = f"'{file}', {type(error).__name__}: {error}"
        raise MissingInput("Not the record of a run", evidence, REMEDY) from error
    if not isinstance(launch, dict):
        remedy = "its argv stands in the file"
        raise MissingInput("A run that aam-launch did not start", f"'{file}'", remedy)
    damaged = _damaged(launch, inputs)
    if damaged:
        raise MissingInput("Not the record of a run", f"'{file}', {damaged}", REMEDY)
    flags = [f"{flag}={value}" if value is not None else flag
             for flag, values in launch["own"].items() for value in values or [None]]  # fmt: skip
    argv = [*flags, *launch["command"].split(), *launch["words"]]
    request = parse(argv, incomplete=True)
    return RecordedRun(request, launch["folder"], launch, inputs, version)


def _damaged(launch: Mapping[str, Any], inputs: object) -> str | None:
    """Return the defect of a record's parts that a replay reads, or None."""
    launcher_options = launch.get("own")
    for name in ("command", "folder"):
        if not isinstance(launch.get(name), str):
            return f"launch.{name} is not text"
    for name in ("words", "gpus"):
        if not documents.strings(launch.get(name)):
            return f"launch.{name} is not a list of texts"
    if not isinstance(launcher_options, dict) or not all(
        documents.strings(given) for given in launcher_options.values()
    ):
        return "launch.own is not a mapping of lists"
    if not isinstance(inputs, dict):
        return "inputs is not a mapping"
    for flag, entry in inputs.items():
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(key), str) for key in ("path", "sha256")
        ):
            return f"inputs.{flag} lacks a path or a sha256"
    return None


def _record_in(folder: Path) -> Path:
    """Return the record in a folder: its run.json, else the only one of another command."""
    others = sorted(folder.glob("*.run.json"))
    if (folder / "run.json").is_file() or not others:
        return folder / "run.json"
    if len(others) > 1:
        names = ", ".join(other.name for other in others)
        raise MissingInput("Several runs left a record", f"'{folder}' has {names}", "name one")
    return others[0]


def inputs_differ(recorded: RecordedRun) -> list[Finding]:
    """Compare every input with the SHA-256 of the record."""
    found = []
    for flag, entry in recorded.inputs.items():
        path = str(entry["path"])
        # Of a store of `aam prepare` the header is compared; it holds the checksums of its files.
        file = os.path.join(path, "store.json") if os.path.isdir(path) else path
        if not os.path.isfile(file):
            found.append(Finding("error", f"The input of {flag} is gone", f"'{path}'", ""))
        elif sha256(Path(file)) != entry["sha256"]:
            evidence = f"'{path}' has another SHA-256 than then"
            found.append(Finding("error", f"The input of {flag} has changed", evidence, ""))
    return found


def plan_differs(recorded: RecordedRun, host: Host, plan: Plan) -> list[Finding]:
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
    then = {**recorded.launch, "gpus": [g.partition(" at ")[0] for g in recorded.launch["gpus"]]}
    found = [
        Finding("error", f"Another {name}", f"{then.get(name)} then, {value} now", "")
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
        found.append(Finding("error", "Another version of aam", evidence, ""))
    return found
