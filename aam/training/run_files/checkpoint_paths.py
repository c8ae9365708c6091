"""Checkpoints of a run folder by name, and the one from which a run resumes; none is read here."""

from __future__ import annotations

from pathlib import Path

from aam.contract.errors import MissingInput, UsageError
from aam.contract.options.training import RunOptions
from aam.contract.preflight import target_folders


def find(path: Path, name: str) -> Path:
    """Return the checkpoint at `path`: the file itself, or the file `name` of a run folder.

    Raises:
        MissingInput: there is no such file.
    """
    file = path / "checkpoints" / name if path.is_dir() else path
    if file.is_file():
        return file
    if file == path:
        raise MissingInput("No checkpoint", f"'{file}' does not exist", "name a file or run folder")
    if targets := target_folders(path):
        raise MissingInput(
            "A run of several targets",
            f"'{path}' has {', '.join(folder.name for folder in targets)}",
            "name the folder of one target",
        )
    absent = f"the folder '{path}' has no checkpoints/{name}"
    raise MissingInput("No checkpoint", absent, "name the --output-dir of a run")


def _resumed_source(run: RunOptions) -> Path | None:
    """Return the run folder or checkpoint of --resume-from; None without the option."""
    return run.output_dir if run.resume_from == "auto" else run.resume_from


def checkpoint_to_resume(run: RunOptions, folder: Path) -> Path | None:
    """Return the checkpoint that the fit of `folder` resumes from; None if it begins.

    `folder` is the run folder or that of a fold in it.
    """
    source = _resumed_source(run)
    if source is None or (source.exists() and not source.is_dir()):
        return source
    file = source / folder.relative_to(run.output_dir) / "checkpoints" / "last.ckpt"
    return file if file.exists() else None


def resumed_checkpoint(run: RunOptions) -> Path | None:
    """Return a checkpoint of the run that is resumed, of any of its folds; None if a run begins.

    Raises:
        MissingInput: the run of --resume-from has none.
    """
    source = _resumed_source(run)
    if source is None:
        return None
    last = Path("checkpoints") / "last.ckpt"
    folders = (source, *sorted(source.glob("fold-*"))) if source.is_dir() else ()
    found = next((folder / last for folder in folders if (folder / last).exists()), None)
    return found if found or run.resume_from == "auto" else find(source, "last.ckpt")


def check_folds(run: RunOptions) -> None:
    """Refuse to resume several folds from one checkpoint.

    Raises:
        UsageError: --resume-from names a checkpoint.
    """
    if isinstance(run.resume_from, Path) and not run.resume_from.is_dir():
        raise UsageError(
            "A cross-validation resumes from its run folder",
            f"--resume-from '{run.resume_from}' is one checkpoint",
            "name the run folder that contains the folds",
        )


def run_folder_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint."""
    folder = checkpoint.parent.parent
    of_fold = folder.name.startswith("fold-") and (folder.parent / "run.json").exists()
    return folder.parent if of_fold else folder
