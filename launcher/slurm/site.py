"""Sites: facts about a cluster with their sources, read from YAML. Pure.

A value stands alone, or as a fact with its source and confirmation:

    partition: cluster
    partition: {value: cluster, source: user guide, confirmed: no, confirm: sinfo --summarize}

A site file may hold the launcher's settings too (`runtime`, `image_dir`, ...), in either form.
`$USER` and `$HOME` are expanded in every value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aam.contract.errors import ConfigurationError
from aam.contract.suggestions import nearest
from aam.contract.yaml_document import Entry
from launcher.gpus import VENDORS
from launcher.plan.settings import SETTING_SPECS, VARIABLE, require_type

FACT = ("value", "source", "confirmed", "confirm")


@dataclass(frozen=True)
class SiteKey:
    """Type (a key of VALUE_TYPES), default and help of a fact."""

    kind: str
    default: Any
    help: str


SITE_KEYS: dict[str, SiteKey] = {
    "sources": SiteKey("mapping", {}, "What the letters of sources stand for."),
    "title": SiteKey("text", "", "What it is called."),
    "partition": SiteKey("text", "", "Partition of the jobs; none: Slurm's default."),
    "account": SiteKey("text", "", "Account that is charged; none: Slurm's default."),
    "nodes": SiteKey("number", 0, "Nodes there are; 0: unknown."),
    "max_nodes": SiteKey("number", 0, "Most nodes of one job; 0: no limit."),
    "max_time": SiteKey("text", "", "Longest time of one job; none: no limit."),
    "whole_nodes": SiteKey("switch", False, "A job gets nodes for itself."),
    "vendor": SiteKey("text", "", f"Whose GPUs: {' or '.join(VENDORS)}; none: no GPU."),
    "gpu": SiteKey("text", "GPU", "What the GPUs are called."),
    "arch": SiteKey("text", "", "Their arch: gfx942, sm_90."),
    "gpus_per_node": SiteKey("number", 1, "GPUs (or ranks, without a GPU) of a node."),
    "gpu_memory_gb": SiteKey(
        "number", 0, "Memory of a GPU in GB (10^9 bytes) that a job can use; 0: unknown, and no "
        "prediction is compared with it."
    ),
    "gpu_request": SiteKey(
        "text", "", "Option that requests GPUs, as --gpus-per-node=mi300a:{gpus}; none: "
        "they come with the node."
    ),
    "cpus_per_node": SiteKey(
        "number", 0, "Processors of a node, as Slurm counts; a job on a part of a node gets the "
        "share of its GPUs. 0: Slurm's default."
    ),
    "modules": SiteKey("list", [], "Environment modules to load in a job."),
    "shared": SiteKey("list", [], "Folders that the nodes see; none: all but `unshared`."),
    "unshared": SiteKey("list", [], "Folders that the nodes do not see."),
    "home": SiteKey("text", "", "Where homes are; runs do not belong there."),
    "local": SiteKey("text", "", "Folder on a node's own disk; variables are those of the job."),
    "stage_most_gb": SiteKey("number", 0, "Most that is copied to a node's disk; 0: nothing."),
    "warn_seconds": SiteKey("number", 600, "How long before its limit a job stops."),
    "sync_seconds": SiteKey("number", 10, "How often a run is copied off a node's disk."),
    "sync_patience": SiteKey("number", 300, "How long a full disk is given when a job ends."),
    "interfaces": SiteKey("list", [], "Network interfaces of the nodes, as patterns."),
    "plugin": SiteKey("list", [], "Folders of network plugins on the nodes."),
    "network": SiteKey("mapping", {}, "Variables for jobs of several nodes."),
}  # fmt: skip
"""Facts of a site file, which may hold the launcher's settings too."""


@dataclass(frozen=True)
class Fact:
    """A value with its place, source and confirmation.

    Attributes:
        value: with `$USER` and `$HOME` expanded.
        where: file and line.
        source: document or person it is from.
        confirmed: seen on the machine; None where the file does not state it.
        confirm: the command that settles it.
    """

    value: Any
    where: str
    source: str = ""
    confirmed: bool | None = None
    confirm: str = ""


@dataclass(frozen=True)
class Site:
    """A site: its name and its facts by key; those of mappings as "network.NAME"."""

    name: str
    facts: Mapping[str, Fact]

    def text(self, key: str) -> str:
        """Return a text, the default where the file has none."""
        return str(self._value(key))

    def number(self, key: str) -> int:
        """Return a number."""
        return int(self._value(key))

    def on(self, key: str) -> bool:
        """Return a switch."""
        return bool(self._value(key))

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list."""
        return tuple(map(str, self._value(key)))

    def where(self, key: str) -> str:
        """Return the file and line of a fact, for messages."""
        entries = [fact for name, fact in self.facts.items() if name.partition(".")[0] == key]
        return entries[0].where if entries else f"the defaults of {key}"

    @property
    def title(self) -> str:
        """The title on one line, or else the name."""
        return " ".join(self.text("title").split()) or self.name

    @property
    def network(self) -> dict[str, str]:
        """Variables for jobs of several nodes."""
        start = "network."
        found = {k: fact.value for k, fact in self.facts.items() if k.startswith(start)}
        return {key.removeprefix(start): str(value) for key, value in found.items()}

    def setting(self, key: str) -> Any:
        """Return a setting of the launcher as it stands in the file, or None."""
        return self.facts[key].value if key in self.facts else None

    def settings(self) -> dict[str, Entry]:
        """Return the launcher's settings in the file."""
        return {key: Entry(fact.value, fact.where) for key, fact in self.facts.items()
                if key in SETTING_SPECS}  # fmt: skip

    def _value(self, key: str) -> Any:
        fact = self.facts.get(key)
        return SITE_KEYS[key].default if fact is None else fact.value


def site_of(name: str, entries: Mapping[str, Entry], variables: Mapping[str, str]) -> Site:
    """Return the site that a file describes.

    Args:
        name: of the site.
        entries: top-level entries of the file, with their places.
        variables: values of `$USER` and `$HOME`.

    Raises:
        ConfigurationError: a value of the wrong type, or a key of a fact that does not exist.
    """
    facts: dict[str, Fact] = {}
    for key, entry in entries.items():
        if key not in SITE_KEYS:
            facts[key] = _fact(key, entry, variables)
        elif SITE_KEYS[key].kind == "mapping":
            require_type(key, "mapping", entry.value, entry.where)
            for variable, value in entry.value.items():
                part = f"{key}.{variable}"
                if not VARIABLE.match(str(variable)):
                    evidence = f"'{variable}' in {entry.where}"
                    raise ConfigurationError("Not a variable's name", evidence, "correct it")
                facts[part] = _fact(part, Entry(value, entry.where), variables)
                require_type(part, "text", facts[part].value, entry.where)
        else:
            facts[key] = _fact(key, entry, variables)
            require_type(key, SITE_KEYS[key].kind, facts[key].value, entry.where)
    return Site(name, facts)


def filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Fill `$USER` and `$HOME` in the texts of a value; other variables are those of a job.

    >>> filled("/scratch/$USER/job_$SLURM_JOB_ID", {"USER": "ada"})
    '/scratch/ada/job_$SLURM_JOB_ID'
    """
    if isinstance(value, Mapping):
        return {key: filled(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, variables) for each in value]
    if not isinstance(value, str):
        return value
    for name in ("USER", "HOME"):
        if name in variables:
            value = re.sub(rf"\${name}\b|\${{{name}}}", lambda _: variables[name], value)  # noqa: B023
    return value


def _fact(key: str, entry: Entry, variables: Mapping[str, str]) -> Fact:
    value = entry.value
    if not (isinstance(value, Mapping) and "value" in value):
        return Fact(filled(value, variables), entry.where)
    for name in value:
        if name not in FACT:
            evidence = f"'{name}' of {key} in {entry.where}"
            remedy = nearest(str(name), FACT, f"known are {', '.join(FACT)}")
            raise ConfigurationError("An unknown key", evidence, remedy)
    confirmed = value.get("confirmed")
    if confirmed is not None:
        require_type(f"{key}.confirmed", "switch", confirmed, entry.where)
    source, confirm = str(value.get("source", "")), str(value.get("confirm", ""))
    found = filled(value["value"], variables)
    return Fact(found, entry.where, source, confirmed, confirm)
