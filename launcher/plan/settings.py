"""Settings of the launcher, merged from layers.

defaults < /etc/aam/launch.yaml < site file < ~/.config/aam/launch.yaml < ./aam-launch.yaml
< AAM_LAUNCH_* variables < flags. Of ./aam-launch.yaml only harmless settings apply until the user
accepts the file (`launcher.trust`). A later layer replaces a single value and adds to a list or a
mapping. Every value keeps its source.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aam.contract.errors import ConfigurationError
from aam.contract.suggestions import nearest
from launcher.findings import Finding
from launcher.gpus import VENDORS

PREFIX = "AAM_LAUNCH_"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
"""A name that `env` takes for a variable; a name that begins with a dash would be an option."""
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Entry:
    """A value and its source ("/etc/aam/launch.yaml:3")."""

    value: Any
    where: str


@dataclass(frozen=True)
class SettingSpec:
    """One setting: its type, its default and its help; `flag` where the command line has it."""

    value_type: Literal["text", "switch", "list", "mapping"]
    default: Any
    help: str
    metavar: str = ""
    flag: str | None = None


SETTING_SPECS: dict[str, SettingSpec] = {
    "image": SettingSpec(
        "text",
        "auto",
        "Image to run in: a name of `aam-launch images`, a SIF, or a reference "
        "that an engine's own storage knows; 'auto' suits the host.",
        "NAME",
        "--image",
    ),
    "runtime": SettingSpec(
        "text",
        "auto",
        "Engine that starts it; 'auto' takes the first that can.",
        "NAME",
        "--runtime",
    ),
    "image_dir": SettingSpec("text", "", "Folder of images.", "FOLDER", "--image-dir"),
    "scratch": SettingSpec(
        "text", "", "Folder for the private home and the caches of a job.", "FOLDER", "--scratch"
    ),
    "site": SettingSpec("text", "", "Site file: a name, or a path.", "NAME", "--site"),
    "bind": SettingSpec(
        "list", (), "Mount one more: PATH, or PATH:TARGET, with :rw to write.", "PATH", "--bind"
    ),
    "env": SettingSpec(
        "mapping",
        {},
        "Set a variable in the container, literally; NAME alone passes it.",
        "NAME=VALUE",
        "--env",
    ),
    "pass_env": SettingSpec("list", (), "Let these variables in; a final * matches any ending."),
    "mount_home": SettingSpec("switch", False, "Mount the home folder too.", "", "--mount-home"),
    **{
        vendor.libraries_setting: SettingSpec(
            "switch",
            False,
            vendor.libraries_help,
            "",
            "--" + vendor.libraries_setting.replace("_", "-"),
        )
        for vendor in VENDORS.values()
        if vendor.libraries_setting
    },
    "images": SettingSpec("mapping", {}, "Images to change or to add."),
}
"""Every setting by its name in YAML; AAM_LAUNCH_<NAME> as a variable."""


@dataclass(frozen=True)
class LaunchSettings:
    """Merged settings of all layers.

    Attributes:
        entries: for each key its entries, in order of precedence.
        findings: warnings about settings that were ignored.
    """

    entries: Mapping[str, tuple[Entry, ...]]
    findings: tuple[Finding, ...] = ()

    def text(self, key: str) -> str:
        """Return the value of the highest layer."""
        return str(self.entries[key][-1].value)

    def on(self, key: str) -> bool:
        """Return a switch."""
        return bool(self.entries[key][-1].value)

    def source(self, key: str) -> str:
        """Return the source of the value that counts."""
        return self.entries[key][-1].where

    def given(self, key: str) -> tuple[Entry, ...]:
        """Return the entries of the layers above the defaults."""
        return tuple(entry for entry in self.entries[key] if entry.where != "default")


Layer = Mapping[str, Entry | tuple[Entry, ...]]


def merge(layers: Sequence[Layer]) -> LaunchSettings:
    """Put layers together, lowest first, and check every value.

    Raises:
        ConfigurationError: a value of the wrong type.
    """
    merged = {key: [Entry(spec.default, "default")] for key, spec in SETTING_SPECS.items()}
    for layer in layers:
        for key, given in layer.items():
            for entry in given if isinstance(given, tuple) else (given,):
                merged[key].append(_checked(key, entry))
    return LaunchSettings({key: tuple(found) for key, found in merged.items()})


def from_variables(variables: Mapping[str, str]) -> dict[str, Entry]:
    """Read the layer of AAM_LAUNCH_* variables; lists are separated by colons.

    Raises:
        ConfigurationError: a variable that names no setting, with the nearest that does.
    """
    layer = {}
    for name in sorted(variables):
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower()
        if key not in SETTING_SPECS or SETTING_SPECS[key].value_type == "mapping":
            known = [
                PREFIX + k.upper()
                for k, spec in SETTING_SPECS.items()
                if spec.value_type != "mapping"
            ]
            remedy = nearest(name, known, f"known are {', '.join(known)}")
            raise ConfigurationError("An unknown variable", name, remedy)
        text = variables[name]
        value = text.split(":") if SETTING_SPECS[key].value_type == "list" else text
        layer[key] = Entry(value, name)
    if "image_dir" not in layer and variables.get("AAM_IMAGE_DIR"):
        layer["image_dir"] = Entry(variables["AAM_IMAGE_DIR"], "AAM_IMAGE_DIR")
    return layer


def from_flags(flags: Mapping[str, Sequence[str]]) -> dict[str, Entry | tuple[Entry, ...]]:
    """Read the layer of the command line: flag -> its values in order."""
    layer: dict[str, Entry | tuple[Entry, ...]] = {}
    for key, spec in SETTING_SPECS.items():
        if spec.flag is None or spec.flag not in flags:
            continue
        where = f"command line, {spec.flag}"
        values = flags[spec.flag]
        if spec.value_type == "switch":
            layer[key] = Entry(True, where)
        elif spec.value_type == "mapping":
            pairs = (value.partition("=") for value in values)
            layer[key] = tuple(
                Entry({name: value if equals else None}, where) for name, equals, value in pairs
            )
        else:
            layer[key] = Entry(list(values) if spec.value_type == "list" else values[-1], where)
    return layer


def _checked(key: str, entry: Entry) -> Entry:
    """Return the entry with its value in its kind."""
    value_type, value = SETTING_SPECS[key].value_type, entry.value
    if value_type == "switch" and isinstance(value, str) and value.lower() in TRUE + FALSE:
        return Entry(value.lower() in TRUE, entry.where)
    right = {
        "text": isinstance(value, (str, int, float)) and not isinstance(value, bool),
        "switch": isinstance(value, bool),
        "list": isinstance(value, list) and all(isinstance(item, str) for item in value),
        "mapping": isinstance(value, Mapping),
    }[value_type]
    if not right:
        wanted = {"text": "a word", "switch": "true or false", "list": "a list of words",
                  "mapping": "`name: value` pairs"}[value_type]  # fmt: skip
        evidence = f"'{key}' in {entry.where} is {reprlib.repr(value)}"
        raise ConfigurationError("A value of the wrong kind", evidence, f"give {wanted}")
    if key == "env":
        for name in value:
            if not isinstance(name, str) or not VARIABLE.match(name):
                evidence = f"{reprlib.repr(name)} in {entry.where}"
                raise ConfigurationError(
                    "Not the name of a variable", evidence, "use letters, digits and _"
                )
    return entry
