"""Descriptions of devices for container engines: the Container Device Interface (CDI).

`nvidia-ctk cdi generate` and `amd-ctk cdi generate` write a description in YAML or JSON that gives
each device a name (nvidia.com/gpu=0, amd.com/gpu=all) with the nodes, mounts and variables that a
container needs. podman and docker add a device by that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from aam.contract import yaml_document
from aam.contract.errors import ConfigurationError
from launcher.host.facts import CdiDevice
from launcher.host.tree import HostTree

FOLDERS = ("/etc/cdi", "/var/run/cdi")
ENDINGS = (".json", ".yaml")
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
LARGEST = 1 << 20  # characters; a description of eight GPUs has 60 thousand


def devices(tree: HostTree) -> tuple[CdiDevice, ...]:
    """Return the described devices of a host; a damaged description counts as absent.

    A device of /var/run/cdi replaces one of the same name in /etc/cdi, as in engines.
    """
    found: dict[str, CdiDevice] = {}
    for folder in FOLDERS:
        for name in tree.names(folder):
            text = tree.read(f"{folder}/{name}") if name.endswith(ENDINGS) else None
            if text and len(text) <= LARGEST:
                try:
                    found |= {str(d): d for d in _devices(text, f"{folder}/{name}")}
                except (ConfigurationError, *MALFORMED):
                    continue
    return tuple(found.values())


def _devices(text: str, source: str) -> Iterator[CdiDevice]:
    is_json = text.startswith("{")
    content = json.loads(text) if is_json else yaml_document.foreign(text, source)
    for device in content["devices"] if "kind" in content else ():
        edits = device.get("containerEdits") or {}
        mounts = bool(edits.get("mounts") or (content.get("containerEdits") or {}).get("mounts"))
        kind, name = str(content["kind"]), str(device["name"])
        version = str(content.get("cdiVersion", ""))
        yield CdiDevice(kind, name, _nodes(edits), mounts, source, version)


def _nodes(edits: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(node["path"]) for node in edits.get("deviceNodes") or ())
