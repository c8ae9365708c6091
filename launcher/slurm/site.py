"""Sites: facts about a cluster with their sources, read from YAML.

A value stands alone, or as a fact with its source and confirmation:

    partition: cluster
    partition: {value: cluster, source: user guide, confirmed: no, confirm: sinfo --summarize}

A site file may hold the launcher's settings too (`runtime`, `image_dir`, ...), in either form.
`$USER` and `$HOME` are expanded in every value, all variables in `scratch`, a folder of a job.
"""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from aam.contract.errors import ConfigurationError, UsageError
from aam.contract.records import Count, Sourced
from launcher.plan.settings import SETTING_SPECS, VARIABLE
from launcher.slurm.queue import seconds

# What stands in a job script, where other text would become a line or a word of its own.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@+-]*\Z")]
GpuRequest = Annotated[str, Meta(pattern=r"^(--[a-z-]+(=[A-Za-z0-9_.:,*={}-]+)?)?\Z")]
Module = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.+][A-Za-z0-9_./+-]*\Z")]
PLAIN_SITE = "slurm"  # the site of a job that names none


class SiteValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts of a site file, with their types and defaults."""

    sources: dict[str, str] = {}  # what the letters of sources stand for
    title: str = ""  # what it is called
    partition: Name = ""  # of the jobs; none: Slurm's default
    cpu_partition: Name = ""  # of jobs that use no GPU; none: as other jobs
    account: Name = ""  # that is charged; none: Slurm's default
    nodes: Count = 0  # there are; 0: unknown
    max_nodes: Count = 0  # of one job at most; 0: no limit
    max_time: str = ""  # of one job at most; none: no limit
    whole_nodes: bool = False  # a job gets nodes for itself
    vendor: str = ""  # of the GPUs, a name of `launcher.gpus.VENDORS`; none: unknown
    gpu: str = "GPU"  # what the GPUs are called
    arch: str = ""  # of the GPUs: gfx942, sm_90
    gpus_per_node: Count = 1  # GPUs (or ranks, without a GPU) of a node
    gpu_memory_gb: Count = 0  # of a GPU, in 10^9 bytes that a job can use; 0: not compared
    # option that requests GPUs, as --gpus-per-node=mi300a:{gpus}; none: they come with the node
    gpu_request: GpuRequest = ""
    machine: str = ""  # processor as `uname -m` shows it; "": as the host that submits
    # processors of a node, as Slurm counts; a job gets the share of its GPUs; 0: as sinfo shows
    cpus_per_node: Count = 0
    # memory of a node; a job without a GPU gets the share of its processors; 0: Slurm's default
    memory_gb: Count = 0
    modules: tuple[Module, ...] = ()  # environment modules to load in a job
    shared: tuple[str, ...] = ()  # folders that the nodes see; none: all but `unshared`
    unshared: tuple[str, ...] = ()  # folders that the nodes do not see
    home: str = ""  # where homes are; runs do not belong there
    stage_most_gb: Count = 0  # most that is copied to a node's disk (`scratch`); 0: nothing
    warn_seconds: Count = 600  # how long before its limit a job stops
    interfaces: tuple[str, ...] = ()  # network interfaces of the nodes, as patterns
    plugin: tuple[str, ...] = ()  # folders of network plugins on the nodes
    network: dict[str, str] = {}  # variables for jobs of several nodes


TYPES = typing.get_type_hints(SiteValues, include_extras=True)  # key of a fact -> its type
_MAPPINGS = ("sources", "network")


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value with its source, its confirmation and its place."""

    value: Any  # with `$USER` and `$HOME` expanded
    source: str = ""  # document or person it is from
    confirmed: bool | None = None  # seen on the machine; None if the file does not state it
    confirm: str = ""  # the command that settles it
    where: str = ""  # file and line


class Site(msgspec.Struct, frozen=True):
    """A site: its name, its facts by key ("network.NAME" in a mapping), their values."""

    name: str
    facts: Mapping[str, Fact]
    values: SiteValues

    @property
    def title(self) -> str:
        """The title on one line, or else the name."""
        return " ".join(self.values.title.split()) or self.name

    def where(self, key: str) -> str:
        """Return the file and line of a fact, for messages."""
        places = (fact.where for name, fact in self.facts.items() if name.partition(".")[0] == key)
        return next(places, f"the defaults of {key}")

    def settings(self) -> dict[str, Sourced[Any]]:
        """Return the launcher's settings in the file."""
        settings = {key: Sourced(fact.value, fact.where) for key, fact in self.facts.items()
                 if key in SETTING_SPECS}  # fmt: skip
        # The folder of a job is there in the job alone; elsewhere the default serves.
        scratch = settings["scratch"].value if "scratch" in settings else None
        if isinstance(scratch, str):
            folder = os.path.expandvars(scratch)
            if os.path.isdir(folder) and os.access(folder, os.W_OK):
                settings["scratch"] = Sourced(folder, settings["scratch"].source)
            elif "$" in scratch:
                del settings["scratch"]
        return settings


def site_of(name: str, entries: Mapping[str, Sourced[Any]], variables: Mapping[str, str]) -> Site:
    """Return the site that the entries of a file describe; `variables` has `$USER` and `$HOME`."""
    facts: dict[str, Fact] = {}
    values: dict[str, Any] = {}

    def add(key: str, raw: Any, where: str, expected: Any) -> Any:
        stated = isinstance(raw, Mapping) and "value" in raw
        form = dict(raw) if stated else {"value": raw}
        fact = Sourced({**form, "where": where}, where).decoded(Fact, key).value
        value = Sourced(filled(fact.value, variables), where).decoded(expected, key).value
        facts[key] = msgspec.structs.replace(fact, value=value)
        return value

    for key, entry in entries.items():
        if key in _MAPPINGS and isinstance(entry.value, Mapping):
            values[key] = {}
            for subkey, value in entry.value.items():
                if not VARIABLE.match(str(subkey)):
                    evidence = f"'{subkey}' in {entry.source}"
                    raise ConfigurationError("Not a variable's name", evidence, "correct it")
                values[key][subkey] = add(f"{key}.{subkey}", value, entry.source, str)
        elif key in TYPES:
            values[key] = add(key, entry.value, entry.source, TYPES[key])
        else:
            add(key, entry.value, entry.source, Any)
    stated_values = SiteValues(**values)
    if stated_values.max_time:
        try:
            seconds(stated_values.max_time)
        except UsageError as error:
            evidence = f"'{stated_values.max_time}' of max_time in {facts['max_time'].where}"
            remedy = "write it as 24:00:00, 1-12, 90 (minutes) or UNLIMITED"
            raise ConfigurationError("Not a time", evidence, remedy) from error
    return Site(name, facts, stated_values)


def filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Fill `$USER` and `$HOME` in the texts of a value; other variables belong to a job.

    >>> filled("/scratch/$USER/job_$SLURM_JOB_ID", {"USER": "ada"})
    '/scratch/ada/job_$SLURM_JOB_ID'
    """
    if isinstance(value, Mapping):
        return {key: filled(member, variables) for key, member in value.items()}
    if isinstance(value, list):
        return [filled(member, variables) for member in value]
    if not isinstance(value, str):
        return value
    for name in ("USER", "HOME"):
        if name in variables:
            value = re.sub(rf"\${name}\b|\${{{name}}}", lambda _: variables[name], value)  # noqa: B023
    return value
