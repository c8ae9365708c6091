"""Record a SIF that was copied or pulled: `aam-launch images add`."""

from __future__ import annotations

import shutil
from pathlib import Path

from aam.contract.errors import MissingInput, UsageError
from aam.contract.files import atomic_write, sha256
from launcher.engines.sif import SIF, record_of
from launcher.engines.sif_file import check_sif, labels_of
from launcher.images import index

NAME = "org.aam.name"


def add(name: str, file: Path, expected: str | None, folder: Path) -> Path:
    """Copy a SIF into the image folder, unless it lies there, and record it; return its place.

    Args:
        name: image of the catalog that the label of the SIF names.
        expected: SHA-256 of the file in hexadecimal digits. Without it a SIF in its place that has
            a record must be the recorded one.
        folder: the image folder.

    Raises:
        UsageError: `expected` is no SHA-256.
        MissingInput: there is no such file, or it is incomplete, another image or another file.
    """
    if expected is not None and (len(expected) != 64 or set(expected) - set("0123456789abcdef")):
        raise UsageError("Not a SHA-256", f"--sha256 {expected}", "give 64 hexadecimal digits")
    if not file.is_file():
        raise MissingInput("No such file", f"'{file}'", "check the path")
    place = folder / f"{name}.sif"
    with index.locked_image(folder, name):
        recorded = index.entry(index.read(folder), name, SIF)
        in_place = place.exists() and file.samefile(place)
        _require(name, file, expected or (recorded.get("sha256") if in_place else None))
        if not in_place:
            recorded = {}
            with atomic_write(place) as temporary:
                shutil.copyfile(file, temporary)
                _require(name, temporary, expected or sha256(file))
                temporary.chmod(0o755)
        facts = record_of(place)
        index.write(folder, name, SIF, {**(recorded or {"from": str(file)}), **facts})
    return place


def _require(name: str, file: Path, expected: str | None) -> None:
    """Check that a SIF is complete, has the expected SHA-256, and is labelled with its name."""
    check_sif(str(file))
    if expected is not None and (found := sha256(file)) != expected:
        evidence = f"'{file}' is sha256:{found}, expected was sha256:{expected}"
        remedy = "copy or pull it again, or give the SHA-256 that its publisher states"
        raise MissingInput("The SIF is another one", evidence, remedy)
    label = labels_of(file).get(NAME)
    if label != name:
        evidence = f"'{file}' is labelled {label}" if label else f"'{file}' has no label {NAME}"
        remedy = f"add it as {label}" if label else "start it by its path: --image FILE.sif"
        raise MissingInput(f"The SIF is not the image {name}", evidence, remedy)
