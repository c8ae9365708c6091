"""Checks of the paths of a command, which need neither its libraries nor the content of its input.

They come before the command is imported, so that a wrong path is refused at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from aam.contract.errors import CannotCreate, MissingInput, UsageError
from aam.contract.files import names_beside
from aam.contract.options import ParsedCommand
from aam.contract.options.training import RunOptions
from aam.contract.suggestions import nearest

COUNTS_ALONE = "counts-alone"
"""Folder, in that of a transformer that reads metadata, of the one that reads the counts alone."""

MODEL = "model"
"""Folder of the model in a run folder."""

_RUN_FILES = ("run.json", MODEL, "checkpoints", "metrics.csv", "progress.json", "tensorboard",
              "mlflow.db", "wandb",
              "splits.tsv", "predictions.tsv", "scores.json", "embeddings.tsv",
              "importance.tsv", "ordination.txt", "unifrac.tsv",
              "report.html", COUNTS_ALONE)  # fmt: skip


def require_inputs(command: ParsedCommand) -> None:
    """Check that every input file of a command exists, and that no output would replace one.

    Raises:
        MissingInput: names the option and the path.
        UsageError: a path is both.
    """
    outputs = {os.path.realpath(path): spec.flag for spec, path in command.paths("output")}
    for spec, path in command.paths("input"):
        if _is_absent(path):
            remedy = nearest(path.name, names_beside(path), "check the path")
            evidence = f"'{path}' does not exist"
            raise MissingInput(f"No file for {spec.flag}", evidence, remedy)
        flag = outputs.get(os.path.realpath(path))
        if flag and spec.flag != "--resume-from":  # a run is continued in its own folder
            evidence = f"{spec.flag} and {flag} are '{path}'"
            raise UsageError("The output would replace an input", evidence, "choose another output")


def _is_absent(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # its reader gives the reason
        return False
    return False


def is_usable(run: RunOptions) -> bool:
    """Return whether the options allow a folder that holds a run."""
    return run.overwrite or run.resume_from is not None


def check_run_folder(folder: Path, usable: bool) -> None:
    """Refuse a folder that cannot be written to, or that holds a run and is not `usable`.

    Raises:
        CannotCreate: see the messages.
    """
    try:
        existing = existing_run_files(folder)
    except OSError as error:
        reason = f"'{folder}', {error.strerror}"
        raise CannotCreate(
            "The run folder cannot be read", reason, "choose another --output-dir"
        ) from error
    if existing and not usable:
        raise CannotCreate(
            "The folder already holds a run",
            f"'{folder}' has {', '.join(existing)}",
            "continue it with --resume-from auto, replace it with --overwrite, or choose another",
        )
    path = folder.absolute()
    parent = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "may not be written to" if parent.is_dir() else "is no folder"
        raise CannotCreate(
            "The run folder cannot be made or written to",
            f"'{folder}', '{parent}' {reason}",
            "choose another --output-dir",
        )


def existing_run_files(folder: Path) -> list[str]:
    """Return the names of the files and folders of a run in the folder."""
    if not folder.is_dir():
        return []
    existing = [name for name in _RUN_FILES if (folder / name).exists()]
    existing += sorted(path.name for path in folder.glob("fold-*"))
    return existing + [path.name for path in target_folders(folder)]


def target_folder(run: Path, column: str) -> Path:
    """Return the folder of one of several targets of a run."""
    return run / ("target-" + quote(column, safe=" "))


def target_folders(run: Path) -> list[Path]:
    """Return the folders of the targets of a run; none for a run of one target."""
    return sorted(run.glob("target-*")) if run.is_dir() else []
