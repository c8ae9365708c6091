"""Checks of the input and output files of a command line, before a start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from aam.contract.errors import CannotCreate, MissingInput
from launcher import documents
from launcher.plan.mounts import PathFact
from launcher.plan.request import Request

LEAST = 64 << 20  # bytes that a checkpoint and its copy take, or the caches of compiled kernels
RECORD = 64 << 20  # bytes of the record of a run
DEEPEST, MOST = 3, 2000  # folders below an input that are searched for links, and entries looked at


def require_inputs(request: Request) -> None:
    """Check that every input is there and may be read."""
    for spec, path in request.paths("input"):
        if not os.path.exists(path):
            evidence = f"'{path}' does not exist"
            raise MissingInput(f"No file for {spec.flag}", evidence, "check the path")
        if not os.access(path, os.R_OK):
            remedy = "ask its owner for permission to read it"
            raise MissingInput(f"No access for {spec.flag}", f"'{path}' may not be read", remedy)


def require_outputs(facts: tuple[PathFact, ...]) -> None:
    """Check that every output can be written: permission of the nearest folder, and space."""
    for fact in facts:
        if fact.role != "output":
            continue
        place = nearest_folder(fact.real if fact.folder else os.path.dirname(fact.real))
        if not os.path.isdir(place):
            remedy = "choose another place"
            raise CannotCreate(f"No folder for {fact.flag}", f"'{place}' is a file", remedy)
        if not os.access(place, os.W_OK | os.X_OK):
            evidence = f"'{place}' may not be written to"
            raise CannotCreate(f"No room for {fact.flag}", evidence, "choose another folder")
        require_space(
            place, f"No room for {fact.flag}", "free some space, or choose another folder"
        )


def require_space(place: str, cause: str, remedy: str) -> None:
    """Check that the disk of an existing folder has space left, and room for more files.

    Quotas are not checked: file systems report them only on writing.
    """
    facts = os.statvfs(place)
    free = facts.f_bavail * facts.f_frsize
    if free < LEAST:
        evidence = f"the disk of '{place}' has {free >> 20} MiB left of the {LEAST >> 20} it takes"
        raise CannotCreate(cause, evidence, remedy)
    if facts.f_files and facts.f_favail == 0:  # file systems without a table of files say 0 of 0
        raise CannotCreate(cause, f"the disk of '{place}' can hold no more files", remedy)


def nearest_folder(path: str) -> str:
    """Return `path`, or the nearest above it that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def path_facts(request: Request, folder: str) -> tuple[PathFact, ...]:
    """Return the facts of every path of a command line, and of files named by run folders."""
    facts = []
    for spec, path in (*request.paths("input"), *request.paths("output")):
        # Without --output, `report` writes its page into the run folder.
        within = request.command == "report" and request.value("--output") is None
        role = "output" if within and spec.flag == "--run-dir" else spec.role
        joined = os.path.join(folder, path)
        # ".." after a link leads elsewhere than it reads, so only the kernel's answer will do.
        absolute = os.path.realpath(joined) if ".." in path.parts else os.path.normpath(joined)
        fact = _fact(spec.flag, role, absolute, spec.field.endswith("dir"))
        facts.append(fact)
        if fact.file_type == "folder" and spec.role == "input":
            named = f"run.json of {spec.flag}"
            facts += [_fact(named, "input", path, False, links=False)
                      for path in _named_by_run(fact.real)]  # fmt: skip
    return tuple(facts)


def lexical_path_facts(request: Request, folder: str) -> tuple[PathFact, ...]:
    """Return the facts of every path without reading the disk, for a captured host."""
    return tuple(
        PathFact(spec.flag, spec.role, absolute, absolute, "nothing", spec.field.endswith("dir"))
        for spec, path in (*request.paths("input"), *request.paths("output"))
        if (absolute := os.path.normpath(os.path.join(folder, path)))
    )


def _fact(flag: str, role: str, absolute: str, folder: bool, links: bool = True) -> PathFact:
    real = os.path.realpath(absolute)
    is_folder = os.path.isdir(real)
    file_type: Literal["file", "folder", "nothing"] = "folder" if is_folder else "nothing"
    if not is_folder and os.path.exists(real):
        file_type = "file"
    # What is renamed into place, a store of `aam prepare` for one, needs the folder around it.
    taken = folder if role == "output" else is_folder or (file_type == "nothing" and folder)
    found = tuple(_links(real)) if links and is_folder and role == "input" else ()
    return PathFact(flag, role, absolute, real, file_type, taken, found)


def _links(root: str) -> Iterator[str]:
    """Yield the targets outside a folder of links inside it."""
    left = MOST
    for folder, folders, files in os.walk(root):
        if folder.count("/") - root.count("/") >= DEEPEST:
            folders.clear()
        for name in (*folders, *files):
            left -= 1
            path = os.path.join(folder, name)
            if os.path.islink(path) and os.path.exists(path):
                target = os.path.realpath(path)
                if not target.startswith(root + "/"):
                    yield target
        if left < 0:
            return


def _named_by_run(folder: str) -> list[str]:
    """Return the inputs that the run.json of a run folder names; `aam report` reads them again."""
    try:
        record = documents.parsed(documents.regular(os.path.join(folder, "run.json"), RECORD))
        inputs = record["inputs"].values()
        paths = [str(entry["path"]) for entry in inputs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [path for path in paths if path.startswith("/") and os.path.exists(path)]
