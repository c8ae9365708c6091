"""Manifest of a capture: facts that no file of sysfs or procfs holds.

Who made the capture, the variables that matter, the device nodes, the engines, and the answers of
libraries of drivers. `aam-launch doctor --capture` writes it, `detect` reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aam.contract.errors import MissingInput
from launcher import documents
from launcher.host.facts import DeviceNode, EngineFact, User

FILE = "aam-capture.json"
KNOWN = ("machine", "user", "environment", "nodes", "engines")


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
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, DeviceNode] = dataclasses.field(default_factory=dict)
    engines: tuple[EngineFact, ...] = ()
    library_facts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        nodes = {path: dataclasses.asdict(node) for path, node in self.nodes.items()}
        for node in nodes.values():
            del node["path"]
        return {
            "machine": self.machine,
            "user": dataclasses.asdict(self.user) if self.user else None,
            "environment": dict(self.environment),
            "nodes": nodes,
            "engines": [
                {
                    name: value
                    for name, value in dataclasses.asdict(engine).items()
                    if name != "traits"
                }
                for engine in self.engines
            ],
            **{name: dict(facts) for name, facts in self.library_facts.items()},
        }


def parse(text: str) -> Manifest:
    """Read a manifest.

    Raises:
        MissingInput: it is damaged, naming the field.
    """
    try:
        content = documents.parsed(text)
    except ValueError as error:
        raise _damaged(f"it is not JSON: {error}") from error
    fields = _mapping(content, "the whole")
    user = fields.get("user")
    return Manifest(
        complete=True,
        machine=_text(fields.get("machine", "x86_64"), "machine"),
        user=_user(user) if user is not None else None,
        environment={
            name: _text(value, f"environment.{name}")
            for name, value in _mapping(fields.get("environment", {}), "environment").items()
        },
        nodes={
            path: _node(path, value)
            for path, value in _mapping(fields.get("nodes", {}), "nodes").items()
        },
        engines=tuple(_engine(value) for value in _list(fields.get("engines", []), "engines")),
        library_facts={
            name: {
                key: _mapping(value, f"{name}.{key}")
                for key, value in _mapping(facts, name).items()
            }
            for name, facts in fields.items()
            if name not in KNOWN
        },
    )


def _user(value: object) -> User:
    fields = _mapping(value, "user")
    groups = tuple(_number(g, "user.groups") for g in _list(fields.get("groups"), "user.groups"))
    return User(
        _number(fields.get("uid"), "user.uid"), _number(fields.get("gid"), "user.gid"), groups
    )


def _node(path: str, value: object) -> DeviceNode:
    fields = _mapping(value, f"nodes.{path}")
    gid, group = fields.get("gid"), fields.get("group")
    mode, access = fields.get("mode"), fields.get("access")
    if access not in (True, False, None):
        raise _damaged(f"nodes.{path}.access is {access!r:.40}")
    return DeviceNode(
        path,
        None if gid is None else _number(gid, f"nodes.{path}.gid"),
        None if group is None else _text(group, f"nodes.{path}.group"),
        None if mode is None else _number(mode, f"nodes.{path}.mode"),
        access,
    )


def _engine(value: object) -> EngineFact:
    fields = _mapping(value, "engines")
    obstacle, version = fields.get("obstacle"), fields.get("version")
    conf = [tuple(_list(pair, "engines.conf")) for pair in _list(fields.get("conf", []), "conf")]
    if any(len(pair) != 2 or not all(isinstance(s, str) for s in pair) for pair in conf):
        raise _damaged("engines.conf is not a list of pairs")
    return EngineFact(
        name=_text(fields.get("name"), "engines.name"),
        path=_text(fields.get("path"), "engines.path"),
        conf=tuple((key, remark) for key, remark in conf),
        obstacle=None if obstacle is None else _text(obstacle, "engines.obstacle"),
        version=None if version is None else _text(version, "engines.version"),
    )


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _damaged(f"{where} is not a mapping")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _damaged(f"{where} is not a list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _damaged(f"{where} is not text")
    return value


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _damaged(f"{where} is not a number")
    return value


def _damaged(evidence: str) -> MissingInput:
    remedy = "make it again with `aam-launch doctor --capture`"
    return MissingInput("A damaged capture", f"{FILE}, {evidence}", remedy)
