"""Preflight checks of the paths and metadata columns of a command, before libraries are imported.

The launcher makes the same checks before it submits a job.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import os
import re
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from aam.contract import run_files
from aam.contract.errors import CannotCreate, DataError, MissingInput, UsageError, nearest
from aam.contract.files import names_beside
from aam.contract.options import OptionSpec
from aam.contract.options.command_line import ParsedCommand

_STUDY = ("--table", "--metadata")
_STUDY_FILES = (*_STUDY, "--sequences", "--tree", "--taxonomy", "--unifrac-matrix")
_COLUMNS = ("--metadata-column", "--group-column", "--categorical-columns", "--numeric-columns",
            "--color-by", "--categories", "--by")  # fmt: skip
_PASSWORD = re.compile("pass(?!file)|pwd|secret|token", re.IGNORECASE)
_ID_HEADERS = ("#sampleid", "#sample id", "#otuid", "#otu id")
"""First headers, in lower case, that look like a comment."""


def require_inputs(command: ParsedCommand) -> None:
    """Check that the inputs of a command exist and no output replaces an input."""
    for spec, path in (*command.paths("input"), *command.paths("output")):
        if (name := str(path).encode(errors="replace").decode()) != str(path):
            evidence, remedy = f"{spec.flag} '{name}'", "rename it: run records are in UTF-8"
            raise UsageError("A path that is not UTF-8", evidence, remedy)
    outputs: dict[str, OptionSpec] = {}
    for spec, path in command.paths("output"):
        real = os.path.realpath(path)
        if (earlier := outputs.setdefault(real, spec)) is not spec:
            evidence = f"{earlier.flag} and {spec.flag} are '{path}'"
            raise UsageError("Two outputs are one file", evidence, "give each a path of its own")
        if owner := _owner(Path(real), command.command):
            evidence = f"{spec.flag} '{path}' is part of {owner}"
            cause = "The output would replace a file of a run, a model or a study"
            raise UsageError(cause, evidence, "choose another output")
    study = {spec.flag: path for spec, path in command.paths("input") if spec.flag in _STUDY}
    if [_is_of_samples(path) for path in study.values() if os.path.isfile(path)] == [True, False]:
        raise UsageError(
            "Table and metadata are swapped",
            ", ".join(f"{flag} '{path}'" for flag, path in study.items()),
            "swap the two",
        )
    for spec, path in command.paths("input"):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            remedy = nearest(path.name, names_beside(path), "check the path")
            paths = [Path(item.strip()) for item in str(path).split(",")]
            if len(paths) > 1 and all(item.exists() for item in paths):
                remedy = "separate files by blanks, or repeat the option for each"
            evidence = f"'{path}' does not exist"
            raise MissingInput(f"No file for {spec.flag}", evidence, remedy) from None
        except (OSError, ValueError):
            pass  # its reader gives the reason
        real = os.path.realpath(path)
        output = outputs.get(real)
        if output and spec.flag != "--resume-from":  # a run is continued in its own folder
            evidence = f"{spec.flag} and {output.flag} are '{path}'"
            raise UsageError("The output would replace an input", evidence, "choose another output")
        for folder, of_folder in outputs.items():
            if spec.flag != "--resume-from" and Path(folder) in Path(real).parents:
                _check_in_folder(command, of_folder, Path(folder), spec, Path(real))


def _check_in_folder(
    command: ParsedCommand, output: OptionSpec, folder: Path, spec: OptionSpec, path: Path
) -> None:
    """Refuse an input in an output folder that replaces it or mixes with its study."""
    name = path.relative_to(folder).as_posix()
    mixed = output.field == "output_dir" and spec.flag in _STUDY_FILES and path.parent == folder
    writes_run = command.command == "evaluate" or command.option("--resume-from") is not None
    run_names = run_files.files_of(folder) if writes_run else []
    of_run = not run_files.not_listed([name], run_names)
    # `aam prepare` replaces the whole folder, a run the files in its list.
    replaced = command.value("--overwrite") and (of_run or command.command == "prepare")
    if mixed or replaced:
        evidence = f"{output.flag} has {spec.flag} '{path}'"
        remedy = "choose another folder" + (f", such as '{folder / 'run'}'" if mixed else "")
        raise UsageError("The output folder holds an input", evidence, remedy)


def _owner(path: Path, command: str) -> str:
    """Return the run, model or study that contains a path, or "".

    A command may replace the file of its own name, such as importance.tsv, in a run folder.
    """
    if os.path.isfile(path / run_files.RECORD):
        return ""  # a run of its own, such as the run of one target
    for folder in path.parents:
        for header, kind in (("model.json", "model"), ("store.json", "study")):
            if os.path.isfile(folder / header):
                return f"the {kind} in '{folder}'"
        if os.path.isfile(folder / run_files.RECORD):
            name = path.relative_to(folder).as_posix()
            names = (run_files.RECORD, *run_files.files_of(folder))
            is_log = path.parent == folder and path.stem == command
            return "" if is_log or run_files.not_listed([name], names) else f"the run in '{folder}'"
    return ""


def require_no_password(command: ParsedCommand) -> None:
    """Refuse a database password: run records, job scripts and `ps` would show it."""
    try:
        url = urlsplit(str(command.value("--storage") or ""))
    except ValueError:  # no URL: Optuna gives the reason
        return
    # Drivers take it as a parameter too: password (libpq), passwd (MySQL), sslpassword.
    names = [name for name, _ in parse_qsl(url.query, keep_blank_values=True)]
    secret = next((name for name in names if _PASSWORD.search(name)), "")
    if url.password is not None or secret:
        user = f"{url.username}:..." if url.password is not None else url.username or ""
        evidence = f"{url.scheme}://{user}{'@' * bool(user)}{url.hostname}"
        evidence += f"?{secret}=..." if secret else ""
        remedy = "leave it out of the URL: PostgreSQL reads PGPASSWORD or ~/.pgpass, MySQL a file "
        raise UsageError("A password in --storage", evidence,
                         f"{remedy}that ?read_default_file=... names")  # fmt: skip


def require_columns(command: ParsedCommand) -> None:
    """Check that the header of the metadata has the columns of a command."""
    metadata = command.value("--metadata")
    if command.value("--relabel") or command.value("--relabel-file"):
        return  # the file lacks the new names
    if not isinstance(metadata, Path) or (columns := metadata_columns(metadata)) is None:
        return
    for flag in _COLUMNS:
        value = command.value(flag) or ()
        for text in (value,) if isinstance(value, str) else value:
            names = [text] if text in columns else [name.strip() for name in text.split(",")]
            for column in filter(None, names):
                if column not in columns:
                    listing = ", ".join(columns[:50] + ["..."] * (len(columns) > 50))
                    raise DataError(
                        f"The metadata has no column '{column}'",
                        f"{flag} for '{metadata}'; it has {len(columns)}: {listing}",
                        nearest(column, columns, "name one of them", most=3),
                    )


def metadata_columns(path: Path) -> list[str] | None:
    """Read the columns of a metadata TSV, gzipped or not; None if it has none."""
    return [name for name in _header(path)[1:] if name] or None


def _header(path: Path) -> list[str]:
    """Read the header cells of a TSV, gzipped or not."""
    try:
        opened: Any = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as lines:
            for row in itertools.islice(csv.reader(lines, dialect="excel-tab", strict=True), 1000):
                cells = [cell.strip() for cell in row] or [""]
                is_comment = cells[0].startswith("#") and cells[0].lower() not in _ID_HEADERS
                if any(cells) and not is_comment:
                    return cells if cells[0] else []
    except (OSError, EOFError, ValueError, csv.Error, zlib.error):
        pass
    return []


def _is_of_samples(path: Path) -> bool:
    first = re.sub(r"[# _-]", "", "".join(_header(path)[:1]).lower())
    return first in ("sampleid", "samplename", "sample", "samples")


def check_run_folder(
    folder: Path, overwrite: bool = False, resumes: bool = False, resumable: bool = True
) -> None:
    """Refuse a folder that cannot be written, or whose files a run would replace or mix with."""
    try:
        existing, files = run_files.recognized(folder), run_files.listed(folder)
        has_record = (folder / run_files.RECORD).exists()
    except OSError as error:
        reason = f"'{folder}', {error.strerror}"
        raise CannotCreate(
            "The run folder cannot be read", reason, "choose another --output-dir"
        ) from error
    has_run = has_record or any(name.endswith("checkpoints") for name in existing)
    evidence = f"'{folder}' has {', '.join([run_files.RECORD] * has_record + existing)}"
    if has_run and not (overwrite or resumes):
        raise CannotCreate(
            "The folder already holds a run",
            evidence,
            "continue it with --resume-from auto, " * resumable
            + "replace it with --overwrite, or choose another",
        )
    if has_run and overwrite and files is None:
        raise CannotCreate(
            "The run in the folder does not list its files",
            evidence,
            "remove old files, or choose another --output-dir",
        )
    # A resumed run without a list owns all files.
    foreign = [] if has_run and files is None else run_files.not_listed(existing, files or ())
    if foreign:
        raise CannotCreate(
            "The folder has files that are named like files of a run but belong to no run",
            f"'{folder}' has {', '.join(foreign)}",
            "move them, or choose another --output-dir",
        )
    path = folder.absolute()
    parent = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "is not writable" if parent.is_dir() else "is not a folder"
        raise CannotCreate(
            "The run folder cannot be made or written to",
            f"'{folder}', '{parent}' {reason}",
            "choose another --output-dir",
        )
