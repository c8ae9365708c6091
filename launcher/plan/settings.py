"""Settings of the launcher, merged from layers, and its own options on the command line.

Four layers: defaults (with /etc/aam/launch.yaml and the site file) < ~/.config/aam/launch.yaml
< AAM_LAUNCH_* variables < command line. A later layer replaces a single value and adds to a list or
a mapping. Every value keeps its source.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.contract.errors import ConfigurationError
from aam.contract.options import OptionSpec, specs
from aam.contract.options.field import ONE_OR_MORE, flag_of, option
from aam.contract.records import Entry
from aam.contract.suggestions import nearest
from launcher.gpus import VENDORS

PREFIX = "AAM_LAUNCH_"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
"""A name that `env` takes for a variable; a name that begins with a dash would be an option."""
PATTERN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)?\*?\Z")
"""A name of a variable, or its beginning and a `*`."""
VALUE_TYPES: dict[str, tuple[Any, str]] = {
    "text": ((str, int, float), "a string"),
    "number": (int, "a whole number"),
    "switch": (bool, "true or false"),
    "list": (list, "a list of strings"),
    "mapping": (Mapping, "`name: value` pairs"),
}
"""Kind of a value in a file -> its Python types, and their name for messages."""
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class SettingOptions:
    """Image, engine and container."""

    image: str = option(
        "Image to run in: a name of `aam-launch images`, a SIF file, or a reference in the "
        "storage of a container engine. 'auto': the one that fits this host.",
        default="auto",
        metavar="NAME",
        basic=True,
    )
    runtime: str = option(
        "Container engine, or 'native' for no container. 'auto': the first that can run the image.",
        default="auto",
        metavar="NAME",
    )
    image_dir: str = option("Folder of images.", default="", metavar="FOLDER")
    scratch: str = option(
        "Folder for the private home and the caches of a job.", default="", metavar="FOLDER"
    )
    site: str = option(
        "Site file with the facts about a cluster: its name, or a path.", default="", metavar="NAME"
    )
    bind: tuple[str, ...] = option(
        "Mount one more folder in the container: PATH, or PATH:TARGET; add :rw to write there.",
        default=(),
        metavar="PATH",
        repeated=True,
    )
    env: tuple[str, ...] = option(
        "Set a variable in the container; NAME alone passes that of the shell.",
        default=(),
        metavar="NAME=VALUE",
        repeated=True,
    )
    mount_home: bool = option("Mount the home folder too.", default=False)
    pass_env: tuple[str, ...] = option(
        "Variables that enter the container; a final * matches any ending.", default=()
    )
    images: tuple[str, ...] = option("Images to change or to add.", default=())
    tuned: tuple[str, ...] = option("Options and variables by GPU architecture.", default=())


LIBRARY_SETTINGS: dict[str, OptionSpec] = {
    name: OptionSpec(flag_of(name), name, bool, vendor.libraries_help, default=False)
    for vendor in VENDORS.values()
    if (name := vendor.libraries_setting)
}
"""Settings that bring the host's libraries of a GPU vendor into the container."""
SETTING_SPECS = {**{spec.field: spec for spec in specs(SettingOptions)}, **LIBRARY_SETTINGS}
"""Every setting by its name in YAML; AAM_LAUNCH_<NAME> as a variable."""
FILES_ONLY = ("pass_env", "images", "tuned")
"""Settings that the command line does not have."""
FOLDERS = ("image_dir", "scratch", "bind")
"""Settings that are paths."""
MAPPINGS = ("env", "images", "tuned")
"""Settings that are `name: value` pairs in YAML."""


@dataclass(frozen=True)
class LaunchOptions:
    """Options of the launcher."""

    dry_run: bool = option(
        "Print what would run, and stop: a command line, or the script of a job.",
        default=False,
        basic=True,
    )
    gpus: int | None = option(
        "Number of GPUs; pretrain and train start a process for each, and they share every batch.",
        default=None,
        takes=ONE_OR_MORE,
        basic=True,
    )
    force: bool = option(
        "Run in an image that does not fit this host; the run record notes it.", default=False
    )
    json: bool = option("Print JSON.", default=False)
    host: Path | None = option(
        "Decide for another host, captured in a tar or a folder.", default=None, role="input"
    )


LAUNCHER_OPTIONS: dict[str, OptionSpec] = {
    spec.flag: spec
    for spec in (
        *(spec for key, spec in SETTING_SPECS.items() if key not in FILES_ONLY),
        *specs(LaunchOptions),
    )
}
"""The launcher's own options by flag; no option of `aam` has one of these names but --json."""


@dataclass(frozen=True)
class TextSetting:
    """A text and its source: "default", a file and line, a variable, an option."""

    value: str
    source: str


@dataclass(frozen=True)
class SwitchSetting:
    """A switch and its source."""

    value: bool
    source: str


AUTO = TextSetting("auto", "default")


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of a launch; `SettingOptions` describes them.

    Attributes:
        libraries: whether the host's libraries of a GPU vendor are requested, by the setting.
        bind: paths of all layers, as --bind takes them.
        pass_env: names and patterns of all layers.
        env: value (None: that of the launcher) and source of each variable.
        images: changes of the catalog by all layers.
        tuned: options and variables by architecture, of all layers (`launcher.plan.tuned`).
    """

    image: TextSetting
    runtime: TextSetting
    image_dir: TextSetting
    scratch: TextSetting
    site: TextSetting
    mount_home: SwitchSetting
    libraries: dict[str, SwitchSetting]
    bind: tuple[TextSetting, ...]
    pass_env: tuple[str, ...]
    env: dict[str, tuple[str | None, str]]
    images: tuple[Entry, ...]
    tuned: tuple[Entry, ...] = ()


Layer = Mapping[str, Entry | tuple[Entry, ...]]


def merge(layers: Sequence[Layer]) -> LaunchSettings:
    """Put layers together, lowest first, and check every value."""
    merged: dict[str, list[Entry]] = {key: [] for key in SETTING_SPECS}
    for layer in layers:
        for key, given in layer.items():
            for entry in given if isinstance(given, tuple) else (given,):
                merged[key].append(_checked(key, entry))

    def last(key: str) -> Entry:
        return merged[key][-1] if merged[key] else Entry(SETTING_SPECS[key].default, "default")

    def text(key: str) -> TextSetting:
        return TextSetting(str(last(key).value), last(key).where)

    def switch(key: str) -> SwitchSetting:
        return SwitchSetting(bool(last(key).value), last(key).where)

    return LaunchSettings(
        image=text("image"),
        runtime=text("runtime"),
        image_dir=text("image_dir"),
        scratch=text("scratch"),
        site=text("site"),
        mount_home=switch("mount_home"),
        libraries={key: switch(key) for key in LIBRARY_SETTINGS},
        bind=tuple(TextSetting(path, entry.where) for entry in merged["bind"]
                   for path in entry.value),
        pass_env=tuple(name for entry in merged["pass_env"] for name in entry.value),
        env={name: (None if value is None else str(value), entry.where)
             for entry in merged["env"] for name, value in entry.value.items()},
        images=tuple(merged["images"]),
        tuned=tuple(merged["tuned"]),
    )  # fmt: skip


def of_file(layer: Mapping[str, Entry], home: str) -> dict[str, Entry]:
    """Return the layer of a settings file with `~` as the home folder."""

    def absolute(key: str, text: Any, where: str) -> Any:
        if not isinstance(text, str):  # `merge` reports the type
            return text
        path = home + text[1:] if text == "~" or text.startswith("~/") else text
        if key in FOLDERS and not path.startswith("/"):
            evidence = f"'{text}' of {key} in {where}"
            remedy = "begin it with / or with ~/"
            raise ConfigurationError("Not an absolute path", evidence, remedy)
        return path

    found = dict(layer)
    for key in layer.keys() & {*FOLDERS, "image", "site"}:
        value, where = layer[key].value, layer[key].where
        many = isinstance(value, list)
        given = [absolute(key, text, where) for text in (value if many else [value])]
        found[key] = Entry(given if many else given[0], where)
    return found


def from_variables(variables: Mapping[str, str]) -> dict[str, Entry]:
    """Read the layer of AAM_LAUNCH_* variables; items of a list by newlines or `;`."""
    layer = {}
    for name in sorted(variables):
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower()
        if key not in SETTING_SPECS or key in MAPPINGS:
            known = [PREFIX + k.upper() for k in SETTING_SPECS if k not in MAPPINGS]
            remedy = nearest(name, known, f"known are {', '.join(known)}")
            raise ConfigurationError("An unknown variable", name, remedy)
        text = variables[name]
        items = [item for item in re.split("[\n;]", text) if item.strip()]
        layer[key] = Entry(items if _is_list(key) else text, name)
    if "image_dir" not in layer and variables.get("AAM_IMAGE_DIR"):
        layer["image_dir"] = Entry(variables["AAM_IMAGE_DIR"], "AAM_IMAGE_DIR")
    return layer


def from_flags(flags: Mapping[str, Any]) -> dict[str, Entry | tuple[Entry, ...]]:
    """Return the layer of the command line from the launcher's options, flag -> value."""
    layer: dict[str, Entry | tuple[Entry, ...]] = {}
    for key, spec in SETTING_SPECS.items():
        if spec.flag not in flags:
            continue
        value, where = flags[spec.flag], f"command line, {spec.flag}"
        if key == "env":
            pairs = (item.partition("=") for item in value)
            layer[key] = tuple(Entry({n: v if equals else None}, where) for n, equals, v in pairs)
        else:
            layer[key] = Entry(list(value) if _is_list(key) else value, where)
    return layer


def _is_list(key: str) -> bool:
    return isinstance(SETTING_SPECS[key].default, tuple) and key not in MAPPINGS


def _kind(key: str) -> str:
    if key in MAPPINGS:
        return "mapping"
    if SETTING_SPECS[key].type is bool:
        return "switch"
    return "list" if _is_list(key) else "text"


def require_type(key: str, kind: str, value: Any, where: str) -> None:
    """Check the type of a value of a settings or site file."""
    types, wanted = VALUE_TYPES[kind]
    right = isinstance(value, types) and isinstance(value, bool) == (kind == "switch")
    if kind == "number":
        right = right and value >= 0
    if kind == "list":
        right = right and all(isinstance(item, str) for item in value)
    if not right:
        evidence = f"'{key}' in {where} is {reprlib.repr(value)}"
        raise ConfigurationError("A value of the wrong type", evidence, f"give {wanted}")


def _checked(key: str, entry: Entry) -> Entry:
    """Return the entry with its value in its type."""
    value, kind = entry.value, _kind(key)
    if kind == "switch" and isinstance(value, str) and value.lower() in TRUE + FALSE:
        return Entry(value.lower() in TRUE, entry.where)
    require_type(key, kind, value, entry.where)
    for name in value if key == "pass_env" else ():
        if not name or not PATTERN.match(name):
            evidence = f"{reprlib.repr(name)} of pass_env in {entry.where}"
            remedy = "use letters, digits and _, and * at the end alone"
            raise ConfigurationError("Not the name of a variable", evidence, remedy)
    if key == "env":
        for name in value:
            if not isinstance(name, str) or not VARIABLE.match(name):
                evidence = f"{reprlib.repr(name)} in {entry.where}"
                raise ConfigurationError(
                    "Not the name of a variable", evidence, "use letters, digits and _"
                )
    return entry
