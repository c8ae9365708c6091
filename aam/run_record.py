"""Run records: command, options, host, versions and input checksums, beside the output of a run.

A run folder has `run.json` from the start of its run. Other commands write a record at their end:
`FILE.run.json` beside an output file, or `COMMAND.run.json` in an output folder, because other
commands may write there too. --config reads all of them.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aam.contract import run_files
from aam.contract.errors import AamError, DataError, MissingInput
from aam.contract.files import require, sha256, write_json
from aam.contract.options import fits, flat, numbered, specs, to_plain, values_of
from aam.contract.options.command_line import OF_A_STUDY
from aam.contract.options.commands import find
from aam.contract.records import EDITED, RecordEntries, read_json_object
from aam.contract.version import __version__

_LIBRARIES = ("torch", "safetensors", "numpy", "scipy", "pandas", "scikit-bio", "biom-format",
              "scikit-learn")  # fmt: skip


def describe(command: str, options: Any) -> dict[str, Any]:
    """Describe a run: versions, host, command line, options, inputs' SHA-256, launch."""
    # Importing it takes 14 ms, so not for `aam --help`.
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if "torch" in sys.modules:
        # The package's metadata may lack the build, such as 2.5.1+cu124.
        versions["torch"] = str(sys.modules["torch"].__version__)
    return {
        "aam": __version__,
        "command": command,
        "argv": sys.argv,
        "started": now(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "job": os.environ.get("SLURM_JOB_ID"),
        },
        "versions": versions,
        "options": to_plain(options),
        "inputs": input_files(options),
        "launch": launched_by(os.environ),
    }


def read(path: Path) -> dict[str, Any]:
    """Read a run record, and check the types of its options."""
    content = read_json_object(path, RecordEntries, "run record")
    command, wrong = find(content["command"]), f"command is '{content['command']}'"
    if command is not None:
        # None: the option was not given, or belongs to another version.
        values = flat(content["options"])
        fields = (spec.field for spec in specs(command)
                  if values.get(spec.field) is not None
                  and not fits(spec.type, values[spec.field]))  # fmt: skip
        if (field := next(fields, None)) is None:
            return content
        wrong = f"'{field}' has another type than the option"
    raise DataError("The run record is damaged", f"'{path}', {wrong}", EDITED)


DROP_EMPTY = "--drop-empty-samples"


def study_files(options: Any) -> dict[str, str]:
    """Return the files of the study in options, by flag; --drop-empty-samples has the value ""."""
    values = values_of(options)
    files = {flag: str(values[flag]) for flag in OF_A_STUDY if values[flag] is not None}
    return files | ({DROP_EMPTY: ""} if values[DROP_EMPTY] else {})


def recorded_study_files(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the study of a run record, by flag; absolute paths."""
    inputs = record.get("inputs", {})
    return {flag: str(inputs[flag]["path"]) for flag in OF_A_STUDY if flag in inputs}


def joinable(model: Path, study_files: Mapping[str, str]) -> dict[str, str]:
    """Return the training files of a model, if `aam prepare` can join them with a study.

    `aam prepare` joins different tables, and no stores.
    """
    files: dict[str, str] = {}
    with suppress(AamError):  # a model without a run folder, or an edited record
        files = recorded_study_files(read(model / run_files.RECORD))
    stores = [path for path in (*files.values(), *study_files.values()) if os.path.isdir(path)]
    alike = files.get("--table") == os.path.abspath(study_files.get("--table", ""))
    return {} if stores or alike else files


class Record:
    """Run record of a command without a run folder: created before the command, written after."""

    def __init__(self, command: str, options: Any) -> None:
        self.command, self.options = command, options
        self.started, self.began = now(), time.monotonic()

    def leave(self, facts: Mapping[str, Any]) -> None:
        """Write the run record with `facts`, if the command wrote an output."""
        if hasattr(self.options, "run"):
            return  # aam.pipeline.run_folder writes the record
        values = values_of(self.options)
        flags = [spec.flag for spec in specs(type(self.options)) if spec.role == "output"]
        flag = next((flag for flag in flags if values[flag]), None)
        if flag is None:
            return
        output = values[flag]
        if flag == "--output" and (output / run_files.RECORD).is_file():
            return  # `aam evaluate --model` has written a run folder
        path = output.with_name(f"{output.name}.run.json")
        if flag.endswith("dir"):
            path = output / f"{self.command.replace(' ', '-')}.run.json"
        content = describe(self.command, self.options) | {
            "started": self.started,
            "finished": now(),
            "seconds": round(time.monotonic() - self.began, 1),
            **facts,
        }
        write_json(path, content)
        run_files.add(path.parent, output.name, path.name)


def launched_by(variables: Mapping[str, str]) -> dict[str, Any] | None:
    """Read the plan of `aam-launch` (image, engine, visible devices); None without a launcher."""
    try:
        plan = json.loads(variables.get("AAM_PLAN", "null"))
    except ValueError:
        return None
    return plan if isinstance(plan, dict) else None


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def input_files(options: Any) -> dict[str, dict[str, Any]]:
    """Describe every input file by flag: path, size and SHA-256."""
    paths: dict[str, Any] = {}
    values = values_of(options)
    for spec in specs(type(options)):
        if spec.role == "input":
            value = values[spec.flag]
            paths |= numbered(spec.flag, value if isinstance(value, tuple) else (value,))
    # A value may also be None, or a literal such as `auto`.
    read = {flag: path for flag, path in paths.items() if isinstance(path, Path)}
    return {flag: file for flag, path in read.items() if (file := input_file(path)) is not None}


def _is_regular(path: Path) -> bool:
    try:
        require(path, "file")
    except MissingInput:
        return False
    return True


def input_file(path: Path) -> dict[str, Any] | None:
    """Describe an input by path, size and SHA-256; None if it is no regular file.

    For a model the SHA-256 of `model.json`, for a store of `aam prepare` the SHA-256 of its header:
    both files contain the checksums of the other files.
    """
    size, content = 0, path
    if (path / "store.json").is_file():
        size, content = sum(f.stat().st_size for f in path.iterdir()), path / "store.json"
    elif path.is_dir():
        path = path if (path / "model.json").is_file() else path / "model"
        content = path / "model.json"
        if not _is_regular(content):
            return None
        size = sum(f.stat().st_size for f in path.iterdir())
    if not _is_regular(content):
        return None
    return {
        "path": str(path.resolve()),
        "bytes": size or content.stat().st_size,
        "sha256": sha256(content),
    }
