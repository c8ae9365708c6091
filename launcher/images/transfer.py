"""SIFs in a registry: `images publish` pushes one, `images pull` fetches one by its SHA-256.

A registry stores a SIF as one blob (ORAS), so its SHA-256 is that of the file, whatever the tag.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from aam.contract.errors import MissingInput, UsageError
from launcher.engines.build_log import BuildLog
from launcher.engines.sif import SIF, record_of
from launcher.engines.sif_file import check_sif
from launcher.images import index
from launcher.images.build import stoppable
from launcher.images.builder import Builder

SCHEME = "oras://"
OFFLINE = "pull it where the registry answers, copy the SIF, then `aam-launch images lock NAME`"


def pull(name: str, source: str, digest: str, builder: Builder, folder: Path) -> Path:
    """Fetch a SIF into the image folder and record it; nothing is left of another or a broken one.

    Args:
        digest: "sha256:..." of the file.

    Raises:
        UsageError: the source or the digest has another form.
        CannotCreate: the registry does not provide it.
        MissingInput: it provides another file.
    """
    _require_oras(source)
    expected = digest.removeprefix("sha256:")
    if len(expected) != 64 or not set(expected) <= set("0123456789abcdef"):
        raise UsageError("Not a digest", f"--digest {digest}", "give sha256: and 64 hex digits")
    place = folder / f"{name}.sif"
    with stoppable(), index.locked_image(folder, name):
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as scratch:
            file = Path(scratch) / place.name
            log = _log(folder, name, "The image was not pulled")
            log.step(f"{source}; log {log.path}")
            log.run([builder.program, "pull", str(file), source], Path(scratch))
            check_sif(str(file))
            facts = record_of(file)
            if facts["sha256"] != expected:
                evidence = f"{source} is sha256:{facts['sha256']}, expected was {digest}"
                remedy = "compare the digest with what its publisher states"
                raise MissingInput("The registry has another image", evidence, remedy)
            file.chmod(0o755)
            file.rename(place)
        index.write(folder, name, SIF, {**facts, "from": source, "built": int(time.time())})
    return place


def publish(name: str, target: str, builder: Builder, folder: Path) -> str:
    """Push the recorded SIF of an image to a registry and return its SHA-256.

    Raises:
        UsageError: the target has another form.
        MissingInput: there is no such SIF, or it is another one than was recorded.
        CannotCreate: the registry refuses it.
    """
    _require_oras(target)
    recorded, place = index.of_image(folder, name, SIF)[SIF], folder / f"{name}.sif"
    with index.locked_image(folder, name):
        builder.engine.verify(builder.program, name, recorded, place)
        log = _log(folder, name, "The image was not published")
        log.step(f"{place} to {target}; log {log.path}")
        log.run([builder.program, "push", "--allow-unsigned", str(place), target], folder)
    return str(recorded["sha256"])


def _require_oras(reference: str) -> None:
    if not reference.startswith(SCHEME) or len(reference) == len(SCHEME):
        raise UsageError("Not a SIF in a registry", f"'{reference}'", f"give {SCHEME}HOST/NAME:TAG")


def _log(folder: Path, name: str, cause: str) -> BuildLog:
    return BuildLog(folder / "logs" / f"{name}-registry.log", cause, OFFLINE)
