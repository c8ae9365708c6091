"""Inputs of image builds: definitions, locks, build arguments and the build context.

The folder `containers` lies beside the launcher, or in share/aam/containers of an installation.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import aam
from aam.contract.errors import MissingInput, UsageError, nearest
from aam.contract.installation import DISTRIBUTION
from launcher import system
from launcher.plan.catalog import Image

PACKAGE = Path(aam.__file__).parent
INSTALL = "install.sh"
_NO_CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")


def containers() -> Path:
    """Return the folder of definitions."""
    beside = PACKAGE.parent / "containers"
    if (beside / INSTALL).is_file():
        return beside
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(DISTRIBUTION) or []:
            if file.parts[-3:] == ("aam", "containers", INSTALL):
                return Path(str(file.locate())).resolve().parent
    remedy = "install it again, or run the launcher of a checkout"
    raise MissingInput("The definitions of images are not here", f"no '{beside}'", remedy)


def arguments(image: Image, given: Sequence[str] | None) -> dict[str, str]:
    """Return the build arguments of an image, with those `given` as NAME=VALUE."""
    known = dict(image.arguments)
    if not known:
        evidence = f"the catalog has no arguments for {image.name}"
        raise UsageError("This image cannot be built here", evidence, "build it where it is from")
    changed: dict[str, str] = {}
    for argument in given or ():
        name, equals, value = argument.partition("=")
        if name not in known:
            remedy = nearest(name, tuple(known), f"known are {', '.join(known)}")
            raise UsageError("No such build argument", f"'{name}' of {image.name}", remedy)
        if not equals or not value or any(mark.isspace() for mark in value):
            raise UsageError("A build argument without its value", f"'{argument}'",
                             f"write --build-arg {name}=VALUE, without spaces")  # fmt: skip
        if name in changed:
            raise UsageError("A build argument twice", f"'{name}'", "give it once")
        changed[name] = value
    return {**known, **changed}


def require_locked(name: str, arguments: Mapping[str, str]) -> None:
    """Check that the base is named by its digest, and that the lock has the hash of PyTorch."""
    lock = containers() / "locks" / f"{name}.txt"
    if not lock.is_file():
        remedy = "choose one of `aam-launch images`"
        raise MissingInput("This image has no lock", f"'{lock}'", remedy)
    base, torch = arguments["BASE"], arguments["TORCH"]
    if "@sha256:" not in base:
        raise UsageError("A base without its digest", f"'{base}'", "name it as NAME@sha256:...")
    if f"torch=={torch}" not in lock.read_text().split():
        evidence = f"PyTorch {torch} has no hash in '{lock}'"
        remedy = "leave TORCH out, or add an image of this PyTorch to the catalog"
        raise UsageError(f"The lock of {name} has another PyTorch", evidence, remedy)


def stage(folder: Path) -> str:
    """Put together the folder to build from, and return one digest of all that is in it."""
    shutil.copytree(PACKAGE, folder / "aam", ignore=_NO_CACHES)
    shutil.copytree(containers(), folder / "containers", ignore=_NO_CACHES)
    (folder / "containers/revision").write_text(revision(PACKAGE.parent) + "\n")
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    # All users may read an image, whatever the umask of the build.
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return total.hexdigest()


def revision(checkout: Path) -> str:
    """Return the commit that is built, marked if files were changed; "" if it is unknown."""
    if not (checkout / ".git").exists():
        with suppress(metadata.PackageNotFoundError, ValueError):
            text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
            return str(json.loads(text or "{}").get("vcs_info", {}).get("commit_id", ""))
        return ""
    git = ["git", "-C", str(checkout)]
    try:
        head = system.run([*git, "rev-parse", "HEAD"])
        changed = system.run([*git, "status", "--porcelain", "aam", "containers"])
    except OSError:
        return ""
    if head.returncode or changed.returncode:
        return ""
    return head.stdout.strip() + ("-changed" if changed.stdout.strip() else "")
