"""The file acceptance.json: measurements of a host, one run for each image and number of nodes.

The file is read by others than the person who made it, so it holds no names of hosts, users or
folders, and it is read as untrusted input: within bounds, against a schema, with a checksum.
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

from aam import __version__
from aam.contract import schema
from aam.contract.errors import DataError, MissingInput, printable
from aam.contract.files import require, write_text
from aam.contract.json_files import parse_json

SCHEMA = 1
FILE = "acceptance.json"
LARGEST = 1 << 20
"""Bytes of a file; one with three images has about 60 kB."""
LONGEST = 2000
"""Characters of a text in a file."""
MOST_RUNS = 100

Outcome = Literal["as predicted", "faster", "slower", "wrong", "not possible here", "failed"]

Values = Mapping[str, Any]
"""Measured or expected values as JSON."""


@dataclass(frozen=True)
class PartResult:
    """Result of a part.

    Attributes:
        summary: one sentence.
        measured, expected: figures of the part, which its module documents; `rates` of `measured`,
            name -> speed (higher is faster), are compared with those of another file.
        busy: how others used the device when the command began; "" if they did not.
    """

    verdict: Outcome
    summary: str
    seconds: float
    measured: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)
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
    """Content of the file.

    Attributes:
        host: measured values of the part `host` (`aam.acceptance.host`).
    """

    aam: str
    host: dict[str, Any]
    runs: tuple[ImageRun, ...]

    def with_run(self, run: ImageRun) -> AcceptanceFile:
        """Return the content with a run added, or in the place of that with the same key."""
        keys = [one.key for one in self.runs]
        runs = [run if one.key == run.key else one for one in self.runs]
        return dataclasses.replace(
            self, aam=__version__, runs=tuple(runs if run.key in keys else [*runs, run])
        )


def write(path: Path, content: AcceptanceFile) -> None:
    """Write the file atomically, without names of this host, its users and folders.

    Args:
        path: file to write; an existing one is replaced.
        content: host and runs; their texts are made anonymous, numbers have six digits.

    Raises:
        CannotCreate: it cannot be written.
    """
    plain = _anonymous({"schema": SCHEMA, **dataclasses.asdict(content)}, _names())
    write_text(path, json.dumps(plain | {"sha256": checksum(plain)}, indent=1) + "\n")


def read(path: Path) -> AcceptanceFile:
    """Read and validate a file, which is untrusted input.

    Args:
        path: acceptance.json of this or another host.

    Raises:
        MissingInput: there is no such file.
        DataError: it is too large, of another schema, was edited, or holds what no file has.
    """
    remedy = "take the file as `aam acceptance` wrote it"
    try:
        with require(path, "acceptance file").open("rb") as stream:
            # One byte more than allowed shows that a file is too large without reading it.
            text = stream.read(LARGEST + 1)
    except OSError as error:
        raise MissingInput(
            "The acceptance file may not be read", f"'{path}', {error.strerror}", "check the path"
        ) from error
    if len(text) > LARGEST:
        reason = f"'{path}' has more than {LARGEST >> 20} MiB"
        raise DataError("The acceptance file is damaged", reason, remedy)
    plain: dict[str, Any] = parse_json(
        text, {"schema": int}, "acceptance file", f"'{path}'", remedy
    )
    if (found := plain.pop("schema")) != SCHEMA:
        reason = f"'{path}' has schema {found}, aam {__version__} reads {SCHEMA}"
        raise DataError("The acceptance file is of another schema", reason, "measure again")
    # The checksum shows an accidental edit. It is no signature: anybody can compute it again.
    if plain.pop("sha256", None) != checksum({"schema": SCHEMA, **plain}):
        reason = f"'{path}', its checksum is not that of its content"
        raise DataError("The acceptance file was edited", reason, remedy)
    try:
        _check(plain)
        content: AcceptanceFile = schema.parse(AcceptanceFile, plain, "the content")
        if len(content.runs) > MOST_RUNS or len({run.key for run in content.runs}) < len(
            content.runs
        ):
            raise schema.Mismatch(f"it has {len(content.runs)} runs, or one of them twice")
    except ValueError as error:
        raise DataError("The acceptance file is damaged", f"'{path}', {error}", remedy) from error
    return content


def checksum(plain: Mapping[str, Any]) -> str:
    """Return the checksum of a file's content, without the checksum itself.

    It does not depend on the order of the keys.

    >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
    True
    """
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check(value: Any) -> None:
    """Refuse texts that cannot be printed on one line.

    Raises:
        ValueError: a text is too long, or has control characters.
    """
    if isinstance(value, str) and printable(value, LONGEST) != value:
        raise ValueError("a text has control characters or is too long")
    for item in (
        value.items() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        _check(list(item) if isinstance(item, tuple) else item)


_FOLDERS = re.compile(r"(?<![\w.])~?/(?:[^\s/'\",:;()]+/)+")
"""Folders of a path; its last part stays."""


_COMMON = ("root", "cpu", "cuda", "gpu", "host", "none")
"""Names of users and hosts that are general, or are values of the file; they are kept."""


def _names() -> list[str]:
    """Return names of this host and user, longest first."""
    node = platform.node()
    names = {node, node.partition(".")[0], os.environ.get("SLURMD_NODENAME", "")}
    with contextlib.suppress(OSError, KeyError, RuntimeError):  # no entry in /etc/passwd
        names |= {getpass.getuser(), Path.home().name}
    # The longest first, so that a name is replaced before a part of it. Names of two letters would
    # also replace words of a sentence.
    return sorted((name for name in names if len(name) > 2 and name not in _COMMON), key=len)[::-1]


def _anonymous(value: Any, names: list[str]) -> Any:
    """Return JSON without paths, names and numbers that JSON does not have."""
    if isinstance(value, str):
        text = _FOLDERS.sub("", value)
        for name in names:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "NAME", text)
        return printable(text, LONGEST)
    if isinstance(value, float):
        # JSON has neither NaN nor infinity.
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_anonymous(str(k), names): _anonymous(v, names) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_anonymous(item, names) for item in value]
    return value
