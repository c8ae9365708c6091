"""Run the run of a run.json again, or say what differs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam import __version__
from launcher.errors import MissingInput
from launcher.plan.decision import Finding
from launcher.plan.own import names_an_option, spelled
from launcher.plan.plan import Plan


@dataclass(frozen=True)
class Recorded:
    """What a run.json says about its launch."""

    words: tuple[str, ...]
    folder: str
    launch: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, Any]]
    version: str


def read(path: Path) -> Recorded:
    """Read a run.json, or that of a run folder.

    Raises:
        MissingInput: it is not there, is none, or the run was not started by the launcher.
    """
    file = path / "run.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text())
        launch = content["launch"]
        inputs, version = content.get("inputs", {}), str(content["aam"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "name the run.json of a run folder"
        raise MissingInput("Not the record of a run", f"'{file}', {error}", remedy) from error
    if not isinstance(launch, dict):
        remedy = "its argv stands in the file"
        raise MissingInput("A run that aam-launch did not start", f"'{file}'", remedy)
    words = (*spelled(launch["own"]), *launch["command"].split(), *launch["words"])
    return Recorded(tuple(words), launch["folder"], launch, inputs, version)


def changed(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """Return a command line with options replaced by those of `more`.

    >>> changed(["train", "--lr", "1", "--output-dir", "a"], ["--output-dir", "b"])
    ['train', '--lr', '1', '--output-dir', 'b']
    """
    replaced = {word.partition("=")[0] for word in more if names_an_option(word)}
    kept, dropping = [], False
    for word in words:
        if names_an_option(word):
            dropping = word.partition("=")[0] in replaced
        if not dropping:
            kept.append(word)
    return [*kept, *more]


def inputs_differ(recorded: Recorded) -> list[Finding]:
    """Hold every input against the SHA-256 of the record."""
    found = []
    for flag, held in recorded.inputs.items():
        path = str(held["path"])
        if not os.path.isfile(path):
            found.append(Finding("error", f"The input of {flag} is gone", f"'{path}'", ""))
        elif _sha256(path) != held["sha256"]:
            evidence = f"'{path}' has another SHA-256 than then"
            found.append(Finding("error", f"The input of {flag} has changed", evidence, ""))
    return found


def plan_differs(recorded: Recorded, plan: Plan) -> list[Finding]:
    """Hold the plan against that of the record."""
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
    if recorded.version != __version__:
        evidence = f"{recorded.version} then, {__version__} now"
        found.append(Finding("error", "Another version of aam", evidence, ""))
    return found


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
