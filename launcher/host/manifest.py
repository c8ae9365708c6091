"""Manifest of a capture: facts that no file of sysfs or procfs holds.

The user who made the capture, the variables that matter, the device nodes, the engines, and facts
from libraries of drivers. `aam-launch doctor --capture` writes it, `detect` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from json import JSONDecodeError
from typing import Any

from aam.contract import schema
from aam.contract.errors import MissingInput
from launcher import documents
from launcher.host.facts import DeviceNode, EngineFact, User

FILE = "aam-capture.json"


@dataclass(frozen=True)
class Manifest:
    """Facts of a capture beside its files.

    Attributes:
        complete: the capture has a manifest.
        machine: of the processor, as `uname -m` prints it.
        user: the user who made the capture, or None.
        environment: the variables that decisions read.
        nodes: device nodes by path.
        engines: container engines on PATH.
        library_facts: facts from a GPU vendor's library, by the vendor's key and PCI address.
    """

    complete: bool = False
    machine: str = "x86_64"
    user: User | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, DeviceNode] = field(default_factory=dict)
    engines: tuple[EngineFact, ...] = ()
    library_facts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        content = asdict(self)
        del content["complete"]
        for engine in content["engines"]:
            del engine["traits"]
        return {**content, **content.pop("library_facts")}


def parse(text: str) -> Manifest:
    """Read a manifest.

    Raises:
        MissingInput: it is damaged, naming the field.
    """
    try:
        content = schema.parse(
            {"nodes?": {str: dict[str, Any]}}, documents.parsed(text), "the content"
        )
        unknown = dict.fromkeys(("gid", "group", "mode", "access"))
        nodes = {path: {**unknown, **node, "path": path}
                 for path, node in content.get("nodes", {}).items()}  # fmt: skip
        known = {one.name for one in fields(Manifest)}
        own = {name: facts for name, facts in content.items() if name in known}
        more = {name: facts for name, facts in content.items() if name not in known}
        own |= {"complete": True, "nodes": nodes, "library_facts": more}
        manifest: Manifest = schema.parse(Manifest, own, "the content")
    except ValueError as error:
        evidence = f"it is not JSON: {error}" if isinstance(error, JSONDecodeError) else str(error)
        remedy = "make it again with `aam-launch doctor --capture`"
        raise MissingInput("A damaged capture", f"{FILE}, {evidence}", remedy) from error
    return manifest
