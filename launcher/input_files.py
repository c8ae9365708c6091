"""Checks of the input and output files of a command line, before a start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from aam.contract.errors import CannotCreate, MissingInput
from launcher import documents
from launcher.plan.mounts import PathFact
from launcher.plan.request import PathArgument, Request

LEAST = 64 << 20  # bytes that a checkpoint and its copy take, or the caches of compiled kernels
RECORD = 64 << 20  # bytes of the record of a run
DEEPEST, MOST = 3, 2000  # folders below an input that are searched for links, and entries looked at


def require_inputs(request: Request) -> None:
    """Check that every input is there and may be read.

    Raises:
        MissingInput: naming the option and the path.
    """
    for flag, path in request.inputs:
        if not os.path.exists(path):
            raise MissingInput(f"No file for {flag}", f"'{path}' does not exist", "check the path")
        if not os.access(path, os.R_OK):
            remedy = "ask its owner for permission to read it"
            raise MissingInput(f"No access for {flag}", f"'{path}' may not be read", remedy)


def require_outputs(facts: tuple[PathFact, ...]) -> None:
    """Check that every output can be written: permission of the nearest folder, space on its disk.

    Raises:
        CannotCreate: naming the option and the folder.
    """
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

    Raises:
        CannotCreate: with `cause` and `remedy`.
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
    for argument in request.paths:
        # Without --output, `report` writes its page into the run folder.
        within = request.command == "report" and "--output" not in request.values
        role = "output" if within and argument.flag == "--run-dir" else argument.role
        fact = _fact(argument, role, folder)
        facts.append(fact)
        if fact.file_type == "folder" and argument.role == "input":
            facts += [_plain_input(fact.flag, path) for path in _named_by_run(fact.real)]
    return tuple(facts)


def lexical_path_facts(request: Request, folder: str) -> tuple[PathFact, ...]:
    """Return the facts of every path without reading the disk, for a captured host."""
    return tuple(
        PathFact(w.flag, w.role, w.place, absolute, absolute, "nothing", w.folder)
        for w in request.paths
        if (absolute := os.path.normpath(os.path.join(folder, w.path)))
    )


def _fact(argument: PathArgument, role: str, folder: str) -> PathFact:
    joined = os.path.join(folder, argument.path)
    # ".." after a link leads elsewhere than it reads, so only the kernel's answer will do.
    absolute = os.path.realpath(joined) if ".." in argument.path.parts else os.path.normpath(joined)
    real = os.path.realpath(joined)
    is_folder = os.path.isdir(real)
    file_type = "folder" if is_folder else "file" if os.path.exists(real) else "nothing"
    links = tuple(_links(real)) if is_folder and role == "input" else ()
    return PathFact(
        argument.flag,
        role,
        argument.place,
        absolute,
        real,
        file_type,  # type: ignore[arg-type]
        # What is renamed into place, a store of `aam prepare` for one, needs the folder around it.
        argument.folder
        if role == "output"
        else is_folder or (file_type == "nothing" and argument.folder),
        links,
    )


def _plain_input(flag: str, path: str) -> PathFact:
    real = os.path.realpath(path)
    is_folder = os.path.isdir(real)  # A store of `aam prepare`.
    file_type: Literal["file", "folder"] = "folder" if is_folder else "file"
    return PathFact(f"run.json of {flag}", "input", -1, path, real, file_type, is_folder)


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
