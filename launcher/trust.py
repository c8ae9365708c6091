"""Trust in project settings: which aam-launch.yaml files a user has accepted, by digest.

A cloned repository may bring an aam-launch.yaml, and the launcher reads that of the current folder.
Until the user accepts the file with `aam-launch trust`, only harmless settings of it apply: the
choice of an image by its name and of a container engine. All others could mount folders, pass
variables, preload libraries or name another image.

An accepted file is an empty file in ~/.local/state/aam/trusted, named by the SHA-256 of the path
and the content, so that a changed or moved file has to be accepted again (as with direnv and mise).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from aam.contract.errors import CannotCreate
from aam.contract.yaml_document import Entry
from launcher.documents import user_folder
from launcher.findings import Finding

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
"""A name of the catalog; a path or a reference of an image has a slash, a colon or a dot."""


def digest(path: Path, content: bytes) -> str:
    """Return the SHA-256 of a file's real path and its content."""
    import hashlib  # with OpenSSL; a start without project settings saves 3 ms

    return hashlib.sha256(os.fsencode(os.path.realpath(path)) + b"\0" + content).hexdigest()


def is_trusted(file_digest: str, variables: Mapping[str, str]) -> bool:
    """Return whether the user has accepted the file with this digest."""
    try:
        return (
            os.lstat(user_folder("XDG_STATE_HOME", variables) / "trusted" / file_digest).st_uid
            == os.geteuid()
        )
    except OSError:
        return False


def accept(file_digest: str, variables: Mapping[str, str]) -> None:
    """Record that the user accepts the file with this digest.

    Raises:
        CannotCreate: the record cannot be written.
    """
    record = user_folder("XDG_STATE_HOME", variables) / "trusted" / file_digest
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.touch(mode=0o600)
    except OSError as error:
        evidence = f"'{record}', {error.strerror}"
        raise CannotCreate("The trust cannot be recorded", evidence, "set XDG_STATE_HOME") from None


def revoke(file_digest: str, variables: Mapping[str, str]) -> bool:
    """Remove the record of a file; return whether there was one."""
    record = user_folder("XDG_STATE_HOME", variables) / "trusted" / file_digest
    existed = record.exists()
    record.unlink(missing_ok=True)
    return existed


def harmless(entries: Mapping[str, Entry]) -> tuple[dict[str, Entry], tuple[Finding, ...]]:
    """Return the settings of an untrusted file that apply, and a warning that lists the others."""
    kept = {key: entry for key, entry in entries.items() if _is_harmless(key, entry.value)}
    ignored = [f"'{key}' ({entry.where})" for key, entry in entries.items() if key not in kept]
    if not ignored:
        return kept, ()
    remedy = "read that file; `aam-launch trust` accepts it as it is now"
    cause = "Settings of the current folder are ignored, because you have not accepted them"
    return kept, (Finding("warning", cause, ", ".join(ignored), remedy),)


def _is_harmless(key: str, value: object) -> bool:
    if key == "image":
        return isinstance(value, str) and PLAIN_NAME.match(value) is not None
    return key == "runtime" and value != "native"  # natively no container confines the program
