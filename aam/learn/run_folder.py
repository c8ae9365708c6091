"""The run folder: what may be in it before a run, and `run.json`, which says who ran what."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aam import __version__
from aam.errors import CannotCreate
from aam.files import sha256, written_aside
from aam.options import specs, to_plain

_OURS = ("run.json", "checkpoints", "metrics.csv", "tensorboard", "splits.tsv",
         "predictions.tsv", "embeddings.tsv", "report.html")  # fmt: skip
_LIBRARIES = ("torch", "lightning", "numpy", "scipy", "pandas", "scikit-bio", "biom-format",
              "scikit-learn")  # fmt: skip


def prepare(folder: Path, overwrite: bool, resuming: bool) -> None:
    """Make the run folder ready.

    Raises:
        CannotCreate: it holds a run and neither --overwrite nor --resume-from was given, or it
            cannot be made or written to.
    """
    held = [name for name in _OURS if (folder / name).exists()]
    held += [path.name for path in folder.glob("fold-*")] if folder.is_dir() else []
    if held and not (overwrite or resuming):
        raise CannotCreate(
            "The folder already holds a run",
            f"'{folder}' has {', '.join(held)}",
            "continue it with --resume-from, replace it with --overwrite, or choose another",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CannotCreate(
            "The run folder cannot be written to",
            f"'{folder}', {error.strerror}",
            "choose another --output-dir",
        ) from error
    if overwrite and not resuming:
        for name in held:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass
class RunRecord:
    """What `run.json` says; written at the start, and again at the end with the results."""

    folder: Path
    content: dict[str, Any]
    began: float

    def finish(self, **results: Any) -> None:
        """Add results and the time taken, and write the file."""
        self.content |= results
        self.content["finished"] = _now()
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        self.write()

    def write(self) -> None:
        """Write the file whole."""
        with written_aside(self.folder / "run.json") as aside:
            aside.write_text(json.dumps(self.content, indent=2, default=str) + "\n")


def begin(command: str, options: Any, folder: Path) -> RunRecord:
    """Start the record of a run: versions, host, command line, options and inputs' SHA-256."""
    content = {
        "aam": __version__,
        "command": command,
        "argv": sys.argv,
        "started": _now(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "devices": _devices(),
        },
        "versions": {"python": platform.python_version()} | _versions(),
        "options": to_plain(options),
        "inputs": _inputs(options),
    }
    record = RunRecord(folder, content, time.monotonic())
    record.write()
    return record


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _devices() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _inputs(options: Any) -> dict[str, dict[str, Any]]:
    """Path, size and SHA-256 of every input file that was given."""
    files = {}
    for spec in specs(type(options)):
        if spec.role != "input":
            continue
        path = value_of(options, spec.field)
        if path is not None and path.is_file():
            files[spec.flag] = {
                "path": str(path.resolve()),
                "bytes": path.stat().st_size,
                "sha256": sha256(path),
            }
    return files


def value_of(options: Any, field: str) -> Any:
    """Return the value of the option `field`, in the options or in one of their groups."""
    if hasattr(options, field) and not hasattr(getattr(options, field), "__dataclass_fields__"):
        return getattr(options, field)
    for group in vars(options).values():
        if hasattr(group, "__dataclass_fields__") and hasattr(group, field):
            return getattr(group, field)
    raise AttributeError(field)
