"""The manifest of a capture: what stands in no file of sysfs or procfs.

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
    """What a capture records beside files.

    Attributes:
        complete: there is a manifest; without one, nothing is known that files do not tell.
        machine: of the processor, as `uname -m` prints it.
        user: who made it, or None.
        environment: the variables that decisions read.
        nodes: device nodes by path.
        engines: container engines on PATH.
        answers: under a name of the GPU vendor's own, what its library answered by PCI address.
    """

    complete: bool = False
    machine: str = "x86_64"
    user: User | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, DeviceNode] = dataclasses.field(default_factory=dict)
    engines: tuple[EngineFact, ...] = ()
    answers: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
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
            **{name: dict(answer) for name, answer in self.answers.items()},
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
    held = _mapping(content, "the whole")
    user = held.get("user")
    return Manifest(
        complete=True,
        machine=_text(held.get("machine", "x86_64"), "machine"),
        user=_user(user) if user is not None else None,
        environment={
            name: _text(value, f"environment.{name}")
            for name, value in _mapping(held.get("environment", {}), "environment").items()
        },
        nodes={
            path: _node(path, value)
            for path, value in _mapping(held.get("nodes", {}), "nodes").items()
        },
        engines=tuple(_engine(value) for value in _list(held.get("engines", []), "engines")),
        answers={
            name: {
                key: _mapping(value, f"{name}.{key}")
                for key, value in _mapping(answer, name).items()
            }
            for name, answer in held.items()
            if name not in KNOWN
        },
    )


def _user(value: object) -> User:
    held = _mapping(value, "user")
    groups = tuple(_number(g, "user.groups") for g in _list(held.get("groups"), "user.groups"))
    return User(_number(held.get("uid"), "user.uid"), _number(held.get("gid"), "user.gid"), groups)


def _node(path: str, value: object) -> DeviceNode:
    held = _mapping(value, f"nodes.{path}")
    gid, group = held.get("gid"), held.get("group")
    mode, access = held.get("mode"), held.get("access")
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
    held = _mapping(value, "engines")
    obstacle, version = held.get("obstacle"), held.get("version")
    conf = [tuple(_list(pair, "engines.conf")) for pair in _list(held.get("conf", []), "conf")]
    if any(len(pair) != 2 or not all(isinstance(s, str) for s in pair) for pair in conf):
        raise _damaged("engines.conf is not a list of pairs")
    return EngineFact(
        name=_text(held.get("name"), "engines.name"),
        path=_text(held.get("path"), "engines.path"),
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
