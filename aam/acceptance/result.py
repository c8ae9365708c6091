"""The file acceptance.json: measurements of a host, one run for each image and number of nodes.

The file is read by others than the person who made it, so it holds no names of hosts, users or
folders, and it is read as untrusted input: within bounds, by type, with a checksum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from aam import __version__
from aam.contract.errors import DataError, MissingInput, printable, reason_of
from aam.contract.files import require, write_text

SCHEMA = 1
FILE = "acceptance.json"
MAX_BYTES = 1 << 20
"""Size of a file; one with three images has about 60 kB."""
MAX_TEXT = 2000
"""Characters of a text in a file."""
MAX_RUNS = 100

Outcome = Literal["as predicted", "faster", "slower", "wrong", "not possible here", "failed"]


@dataclass(frozen=True)
class PartResult:
    """Result of a part.

    Attributes:
        summary: one sentence.
        measured: figures of the part; `rates`, name -> speed (higher is faster), are compared with
            those of another file.
        busy: how others used the device when the command began; "" if they did not.
    """

    verdict: Outcome
    summary: str
    seconds: float
    measured: dict[str, Any] = field(default_factory=dict)
    busy: str = ""


@dataclass(frozen=True)
class ImageRun:
    """Parts that were measured with an image on a number of nodes.

    Attributes:
        image, digest: name and digest of the image; "" without one.
        torch, engine: version of PyTorch and name of the container engine, "native" without one.
        date: time of the last part, in UTC.
    """

    image: str
    digest: str
    torch: str
    engine: str
    nodes: int
    date: str
    parts: dict[str, PartResult] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Key of a run, unique in a file."""
        return self.image, self.digest, self.torch, self.nodes

    @property
    def title(self) -> str:
        """Image, or PyTorch without one, and nodes."""
        name = self.image or f"native, torch {self.torch}"
        return name if self.nodes == 1 else f"{name}, {self.nodes} nodes"


@dataclass(frozen=True)
class AcceptanceFile:
    """Content of the file; `host` has the measured values of the part `host`."""

    aam: str
    host: dict[str, Any]
    runs: tuple[ImageRun, ...]

    def with_run(self, run: ImageRun) -> AcceptanceFile:
        """Return the content with a run added, or in the place of that with the same key."""
        runs = {one.key: one for one in self.runs} | {run.key: run}
        return dataclasses.replace(self, aam=__version__, runs=tuple(runs.values()))


def write(path: Path, content: AcceptanceFile) -> None:
    """Write the file atomically, without names of this host, its users and folders."""
    node = platform.node()
    names = {node, node.partition(".")[0], os.environ.get("SLURMD_NODENAME", "")}
    with contextlib.suppress(OSError, KeyError, RuntimeError):  # no entry in /etc/passwd
        names |= {getpass.getuser(), Path.home().name}
    # General names of users and hosts, and those of two letters, would replace words of a sentence.
    names -= {"root", "cpu", "cuda", "gpu", "host", "none"}
    # The longest first, so that a name is replaced before a part of it.
    listed = sorted((name for name in names if len(name) > 2), key=len)[::-1]
    plain = _anonymous({"schema": SCHEMA, **dataclasses.asdict(content)}, listed)
    write_text(path, json.dumps(plain | {"sha256": checksum(plain)}, indent=1) + "\n")


def _anonymous(value: Any, names: list[str]) -> Any:
    """Return JSON without folders, names and numbers that JSON does not have."""
    if isinstance(value, str):
        # The last part of a path stays.
        text = re.sub(r"(?<![\w.])~?/(?:[^\s/'\",:;()]+/)+", "", value)
        for name in names:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "NAME", text)
        return printable(text, MAX_TEXT)
    if isinstance(value, float):
        # JSON has neither NaN nor infinity.
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_anonymous(str(k), names): _anonymous(v, names) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_anonymous(item, names) for item in value]
    return value


def checksum(plain: Mapping[str, Any]) -> str:
    """Return the checksum of a file's content, whatever the order of its keys.

    >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
    True
    """
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> AcceptanceFile:
    """Read the acceptance.json of this or another host, which is untrusted input."""
    remedy = "take the file as `aam acceptance` wrote it"
    try:
        with require(path, "acceptance file").open("rb") as stream:
            # One byte more than allowed shows that a file is too large without reading it.
            text = stream.read(MAX_BYTES + 1)
    except OSError as error:
        evidence = f"'{path}', {error.strerror}"
        raise MissingInput(
            "The acceptance file may not be read", evidence, "check the path"
        ) from error
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
        plain = json.loads(text)
        _check(plain)
        found = plain.pop("schema", None) if isinstance(plain, dict) else None
        if found is None:
            raise ValueError("it has no 'schema'")
        if found == SCHEMA:
            # The checksum shows an accidental edit. It is no signature: anybody can compute it
            # again.
            if plain.pop("sha256", None) != checksum({"schema": SCHEMA, **plain}):
                reason = f"'{path}', its checksum is not that of its content"
                raise DataError("The acceptance file was edited", reason, remedy)
            content = msgspec.convert(plain, AcceptanceFile)
            if len(content.runs) > MAX_RUNS or len({one.key for one in content.runs}) < len(
                content.runs
            ):
                raise ValueError(f"it has {len(content.runs)} runs, or one of them twice")
            return content
    except (ValueError, RecursionError) as error:
        evidence = f"'{path}', {reason_of(error)}"
        raise DataError("The acceptance file is damaged", evidence, remedy) from error
    reason = f"'{path}' has schema {found}, aam {__version__} reads {SCHEMA}"
    raise DataError("The acceptance file is of another schema", reason, "measure again")


def _check(value: Any) -> None:
    """Refuse what cannot be printed on one line or computed with."""
    if isinstance(value, str):
        halves = any("\ud800" <= character <= "\udfff" for character in value)
        if halves or printable(value, MAX_TEXT) != value:
            raise ValueError("a text has control characters or is too long")
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("a number has more than 63 bits")
    elif isinstance(value, dict):
        _check([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            _check(item)
