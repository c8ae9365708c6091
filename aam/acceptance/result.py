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
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aam import __version__
from aam.contract.errors import DataError, printable
from aam.contract.files import write_text
from aam.contract.records import Mismatch, convert, read_json

SCHEMA = 1
FILE = "acceptance.json"
MAX_TEXT = 2000
"""Characters of a text in a file."""

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

    def anonymous(text: str) -> str:
        # The last part of a path stays.
        text = re.sub(r"(?<![\w.])~?/(?:[^\s/'\",:;()]+/)+", "", text)
        for name in listed:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "NAME", text)
        return printable(text, MAX_TEXT)

    # JSON has neither NaN nor infinity, and six digits are enough.
    text = json.dumps({"schema": SCHEMA, **dataclasses.asdict(content)})
    rounded = json.loads(
        text, parse_float=lambda n: float(f"{float(n):.6g}"), parse_constant=lambda _: None
    )
    plain = _with_texts(rounded, anonymous)
    write_text(path, json.dumps(plain | {"sha256": checksum(plain)}, indent=1) + "\n")


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON with its texts and keys changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
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
    what, remedy = "acceptance file", "take the file as `aam acceptance` wrote it"
    plain = read_json(path, dict[str, Any], what, remedy)
    if (schema := plain.pop("schema", None)) != SCHEMA:
        reason = f"'{path}' has schema {schema}, aam {__version__} reads {SCHEMA}"
        raise DataError("The acceptance file is of another schema", reason, "measure again")
    # The checksum shows an accidental edit. It is no signature: anybody can compute it again.
    if plain.pop("sha256", None) != checksum({"schema": SCHEMA, **plain}):
        reason = f"'{path}', its checksum is not that of its content"
        raise DataError("The acceptance file was edited", reason, remedy)
    try:
        if _with_texts(plain, lambda text: printable(text, MAX_TEXT)) != plain:
            raise Mismatch("a text has control characters or is too long")
        content = convert(plain, AcceptanceFile)
        if len({run.key for run in content.runs}) < len(content.runs):
            raise Mismatch("it has one of its runs twice")
    except Mismatch as error:
        raise DataError(f"The {what} is damaged", f"'{path}', {error}", remedy) from error
    return content
