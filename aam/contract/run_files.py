"""Files of a run folder: names, and the list `files` in `run.json`.

The list has paths relative to the folder: at the start of a run all files that it may write, at its
end the existing ones. Only listed files are replaced, copied or shown. A run folder inside
(`target-COLUMN`) has its own list.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from aam.contract.files import write_json

RECORD, CRATE = "run.json", "ro-crate-metadata.json"

MODEL = "model"  # folder of the model in a run folder

COUNTS_ALONE = "counts-alone"
"""Subfolder of the transformer trained on counts alone, if the run reads metadata too."""

PREDICTIONS, REPEATS = "predictions.tsv", "predictions-repeats.tsv"
"""Predictions of the held-out samples: one row per sample, and one per sample and repeat."""

UNIFRAC = "unifrac.tsv"  # distances that `aam unifrac` adds to a run, for the report

FILES = {
    PREDICTIONS: "true and predicted values of the held-out samples",
    REPEATS: "the same in each repeat of the cross-validation; the scores are means over repeats",
    "splits.tsv": "training, validation and test samples",
    "scores.json": "metrics of the models, with intervals",
    "importance.tsv": "ASVs by importance for the predictions",
    "associations.tsv": "ASVs and taxa by association within studies",
    "explanations.tsv": "effects behind the predictions of the worst and of typical samples",
    "embeddings.tsv": "embedding of each sample",
    "ordination.txt": "principal coordinates of the samples by the sequence kernel",
    "unifrac.tsv": "UniFrac distances",
    "metrics.csv": "losses and metrics of each epoch",
    CRATE: "the run as a research object (RO-Crate), for archives",
    RECORD: "options, versions, host, SHA-256 of inputs",
}
"""Descriptions of files of a run folder, for readers."""

_OF_RUN = (MODEL, "splits.tsv", PREDICTIONS, REPEATS, "scores.json", "importance.tsv",
           "associations.tsv", "explanations.tsv", "ordination.txt", "report.html",
           CRATE)  # fmt: skip
_OF_NETWORK = ("progress.json", "embeddings.tsv", "mlflow.db", "wandb")
_OF_FIT = ("checkpoints", "metrics.csv", "tensorboard")
_FOLD = re.compile(r"fold-\d+")


def planned(folds: int = 1) -> list[str]:
    """Return the files and folders that a run with these folds may write, besides run.json."""
    fits = [""] if folds == 1 else [f"fold-{fold}/" for fold in range(1, folds + 1)]
    return [*_OF_RUN, *_of_networks(fits)]


def _of_networks(fits: Sequence[str]) -> list[str]:
    return [
        network + name
        for network in ("", f"{COUNTS_ALONE}/")
        for name in (*_OF_NETWORK, *(fit + name for fit in fits for name in _OF_FIT))
    ]


def recognized(folder: Path) -> list[str]:
    """Return the existing names in a folder that are names of run files."""
    if not folder.is_dir():
        return []
    fits = ["", *(f"{path.name}/" for path in fold_folders(folder))]
    names = (*_OF_RUN, *_of_networks(fits), UNIFRAC)
    return [name for name in names if os.path.lexists(folder / name)]


def fold_folders(run: Path) -> list[Path]:
    """Return the fold folders of a run, in order."""
    if not run.is_dir():
        return []
    folders = (path for path in run.iterdir() if _FOLD.fullmatch(path.name) and path.is_dir())
    return sorted(folders, key=lambda path: (len(path.name), path.name))


def listed(run: Path) -> list[str] | None:
    """Return the files that a run lists; None without a record or list."""
    files = _record(run).get("files")
    if not isinstance(files, list) or not all(map(_is_inside, files)):
        return None
    return files


def files_of(run: Path) -> list[str]:
    """Return the existing files that a run lists."""
    return [name for name in listed(run) or () if os.path.lexists(run / name)]


def small_files(run: Path) -> dict[str, bytes]:
    """Read the files of a run that a report needs, by name."""
    paths = map(PurePosixPath, files_of(run))
    names = [str(path) for path in paths if path.name in FILES and COUNTS_ALONE not in path.parts]
    return {name: (run / name).read_bytes() for name in (RECORD, *names)}


def not_listed(names: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return the `names` that are neither listed files nor in a listed folder."""
    listed_paths = set(map(PurePosixPath, files))
    paths = {name: PurePosixPath(name) for name in names}
    return [name for name, path in paths.items() if not listed_paths & {path, *path.parents}]


def add(run: Path, *names: str) -> None:
    """Add files of another command to the list of a run."""
    if (files := listed(run)) is None or names[0] not in (*_OF_RUN, *_OF_NETWORK, UNIFRAC):
        return
    if new := not_listed(names, files):
        write_json(run / RECORD, {**_record(run), "files": [*files, *new]})


def remove(run: Path) -> None:
    """Remove the listed files of a run and the emptied folders.

    The record stays, so that an interrupted removal can be repeated.
    """
    files = listed(run) or []
    for name in files:
        path = run / name
        if (path / RECORD).is_file():
            remove(path)
            for file in (path / RECORD, path / ".lock"):
                file.unlink(missing_ok=True)
            with suppress(OSError):  # it has files of the user
                path.rmdir()
        elif path.is_dir() and not path.is_symlink():
            import shutil  # 2 ms; the launcher removes no run

            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    parents = {parent for name in files for parent in PurePosixPath(name).parents}
    for parent in sorted(parents - {PurePosixPath()}, key=lambda path: -len(path.parts)):
        with suppress(OSError):
            (run / parent).rmdir()


def target_folder(run: Path, column: str) -> Path:
    """Return the folder of a target of a run with several targets."""
    return run / ("target-" + quote(column, safe=" "))


def target_folders(run: Path) -> list[Path]:
    """Return the target folders of a run; none for a single target."""
    targets = _record(run).get("targets")
    names = targets.values() if isinstance(targets, dict) else ()
    return sorted(run / name for name in names if _is_inside(name) and (run / name).is_dir())


def _record(run: Path) -> dict[str, Any]:
    """Read run.json without checks; empty if it is missing or damaged."""
    try:
        content = json.loads((run / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_inside(name: object) -> bool:
    """Return whether a name of an edited record stays in the folder."""
    if not isinstance(name, str) or "\0" in name:
        return False
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
