"""Settings of the launcher, merged from layers, and its own options on the command line.

Layers, lowest first: defaults, /etc/aam/launch.yaml, the site file, ~/.config/aam/launch.yaml,
AAM_LAUNCH_* variables, the command line. A later layer replaces a single value and adds to a list
or a mapping. Every value keeps its source.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aam.contract.dataclass import dataclass
from aam.contract.errors import ConfigurationError, nearest
from aam.contract.options import ONE_OR_MORE, OptionSpec, basic_option, flag_of, option, specs
from aam.contract.records import Sourced
from launcher.gpus import VENDORS
from launcher.plan.visible_devices import visible_devices_variables

PREFIX = "AAM_LAUNCH_"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
"""A name that `env` takes for a variable; a name that begins with a dash would be an option."""
PATTERN = re.compile(r"(?=.)([A-Za-z_][A-Za-z0-9_]*)?\*?\Z")
"""A name of a variable, or its beginning and a `*`."""
SWITCH = {**dict.fromkeys(("1", "true", "yes", "on"), True),
          **dict.fromkeys(("0", "false", "no", "off"), False)}  # fmt: skip
"""Values of a switch in a variable."""


@dataclass(frozen=True)
class SettingOptions:
    """Image, engine and container."""

    image: str = basic_option(
        "Image to run in: a name of `aam-launch images`, a SIF file, or a reference in the "
        "storage of a container engine. 'auto': the one that fits this host.",
        default="auto",
        metavar="NAME",
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
        "Set a variable in the container; NAME alone passes the variable of the shell.",
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
    dry_run: bool = basic_option(
        "Print what would run, and stop: a command line, or the script of a job.", default=False
    )
    gpus: int | None = basic_option(
        "Number of GPUs; pretrain and train start a process for each, and they share every batch.",
        takes=ONE_OR_MORE,
    )
    force: bool = option(
        "Run in an image that does not fit this host; the run record notes it.", default=False
    )
    json: bool = option("Print JSON.", default=False)
    host: Path | None = option("Decide for another host, captured in a tar or a folder.")


LIBRARY_SETTINGS = {
    name: OptionSpec(flag_of(name), name, bool, f"Give {vendor.library_flags[0]} to the engine: "
                     "the host's libraries replace the image's.", default=False)
    for vendor in VENDORS.values() if vendor.library_flags and (name := vendor.libraries_setting)
}  # fmt: skip
"""Settings that bring the host's libraries of a GPU vendor into the container."""
ACTIONS = ("dry_run", "gpus", "force", "json", "host")
"""Options of a command line that no file and no variable sets."""
_SPECS = {**{spec.field: spec for spec in specs(SettingOptions)}, **LIBRARY_SETTINGS}
SETTING_SPECS = {key: spec for key, spec in _SPECS.items() if key not in ACTIONS}
"""Every setting by its name in YAML; AAM_LAUNCH_<NAME> as a variable."""
FILES_ONLY = ("pass_env", "images", "tuned")  # settings that the command line does not have
LAUNCHER_OPTIONS = {spec.flag: spec for key, spec in (*SETTING_SPECS.items(), *_SPECS.items())
                    if key not in FILES_ONLY}  # fmt: skip
"""The launcher's own options by flag; no option of `aam` has one of these names but --json."""
TUNABLE = ("batch-size", "asv-chunk", "mixed-precision", "gradient-checkpointing",
           "attn-implementation", "compile-model", "num-workers", "prefetch-factor",
           "cpu-threads")  # fmt: skip
"""Options of `aam` that change time and memory alone; those that `aam tune` tries."""
Scalar = str | int | float | bool


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options and variables that were measured as good on a GPU architecture.

        tuned:
          gfx942: {options: {batch-size: 64}, env: {PYTORCH_HIP_ALLOC_CONF: "..."}}

    They are defaults: the command line, --config or a fault of the stack has precedence.
    """

    options: dict[str, Any] = {}  # of TUNABLE
    env: dict[str, Scalar] = {}


TYPES: dict[str, Any] = {
    **{key: bool if spec.type is bool else str for key, spec in SETTING_SPECS.items()},
    "bind": tuple[str, ...], "pass_env": tuple[str, ...], "env": dict[str, Scalar | None],
    "images": dict[str, dict[str, Any]], "tuned": dict[str, Tuned],
}  # fmt: skip
"""Type of each setting in a file."""
AUTO = Sourced("auto", "default")


class LaunchSettings(msgspec.Struct, frozen=True):
    """Settings of a launch, with their sources; `SettingOptions` describes them."""

    image: Sourced[str]
    runtime: Sourced[str]
    image_dir: Sourced[str]
    scratch: Sourced[str]
    site: Sourced[str]
    mount_home: Sourced[bool]
    # whether the host's libraries of a GPU vendor are requested, by the setting
    libraries: dict[str, Sourced[bool]]
    bind: tuple[Sourced[str], ...]  # paths of all layers, as --bind takes them
    pass_env: tuple[str, ...]  # names and patterns of all layers
    env: dict[str, Sourced[str | None]]  # value of each variable; None: the launcher's
    images: tuple[Sourced[dict[str, dict[str, Any]]], ...]  # changes of the catalog by all layers
    # options and variables by architecture, of all layers
    tuned: tuple[Sourced[dict[str, Tuned]], ...] = ()


Layer = Mapping[str, Sourced[Any]]


def merge(layers: Sequence[Layer]) -> LaunchSettings:
    """Put layers together, lowest first, every value in its type."""
    typed: dict[str, list[Sourced[Any]]] = {
        key: [layer[key].decoded(TYPES[key], key) for layer in layers if key in layer]
        for key in SETTING_SPECS
    }
    names = [("env", VARIABLE, layer.source, layer.value) for layer in typed["env"]]
    names += [("pass_env", PATTERN, layer.source, layer.value) for layer in typed["pass_env"]]
    names += [(f"tuned.{arch}.env", VARIABLE, layer.source, tuned.env)
              for layer in typed["tuned"] for arch, tuned in layer.value.items()]  # fmt: skip
    for key, pattern, source, raw in names:
        for name in raw:
            if not pattern.match(name):
                evidence, remedy = f"{name!r} of {key} in {source}", "use letters, digits and _"
                remedy += ", and * at the end alone" if pattern is PATTERN else ""
                raise ConfigurationError("Not the name of a variable", evidence, remedy)
            if key.startswith("tuned.") and name in visible_devices_variables():
                evidence, remedy = f"{name} of {key} in {source}", "give it by --env or env"
                raise ConfigurationError("A variable that selects GPUs", evidence, remedy)
    chosen = ((f"tuned.{arch}.options' in {layer.source}", name) for layer in typed["tuned"]
              for arch, tuned in layer.value.items() for name in tuned.options)  # fmt: skip
    for where, name in chosen:
        if name not in TUNABLE:
            remedy = nearest(name, TUNABLE, f"known are {', '.join(TUNABLE)}")
            evidence = f"unknown key '{name}' in '{where}"
            raise ConfigurationError("An unknown key", evidence, remedy)
    single = {key: values[-1] if values else Sourced(SETTING_SPECS[key].default, "default")
              for key, values in typed.items()}  # fmt: skip
    single_valued = ("image", "runtime", "image_dir", "scratch", "site", "mount_home")
    return LaunchSettings(
        **{key: single[key] for key in single_valued},
        libraries={key: single[key] for key in LIBRARY_SETTINGS},
        bind=tuple(Sourced(path, layer.source) for layer in typed["bind"] for path in layer.value),
        pass_env=tuple(name for layer in typed["pass_env"] for name in layer.value),
        env={name: Sourced(None if value is None else str(value), layer.source)
             for layer in typed["env"] for name, value in layer.value.items()},
        images=tuple(typed["images"]), tuned=tuple(typed["tuned"]),
    )  # fmt: skip


def from_variables(variables: Mapping[str, str]) -> dict[str, Sourced[Any]]:
    """Read the layer of AAM_LAUNCH_* variables; items of a list by newlines or `;`."""
    layer: dict[str, Sourced[Any]] = {}
    keys = {PREFIX + key.upper(): key for key in SETTING_SPECS
             if key not in ("env", "images", "tuned")}  # fmt: skip
    for name in sorted(name for name in variables if name.startswith(PREFIX)):
        if name not in keys:
            remedy = nearest(name, keys, f"known are {', '.join(keys)}")
            raise ConfigurationError("An unknown variable", name, remedy)
        value: Any = variables[name]
        if TYPES[keys[name]] is bool:
            value = SWITCH.get(value.lower(), value)
        elif TYPES[keys[name]] is not str:
            value = [item for item in re.split("[\n;]", value) if item.strip()]
        layer[keys[name]] = Sourced(value, name)
    if "image_dir" not in layer and variables.get("AAM_IMAGE_DIR"):
        layer["image_dir"] = Sourced(variables["AAM_IMAGE_DIR"], "AAM_IMAGE_DIR")
    return layer


def from_flags(flags: Mapping[str, Any]) -> dict[str, Sourced[Any]]:
    """Return the layer of the command line from the launcher's options, flag -> value."""
    layer = {key: Sourced(flags[spec.flag], f"command line, {spec.flag}")
             for key, spec in SETTING_SPECS.items() if spec.flag in flags}  # fmt: skip
    if "env" in layer:
        pairs = (item.partition("=") for item in layer["env"].value)
        values = {name: value if equals else None for name, equals, value in pairs}
        layer["env"] = Sourced(values, layer["env"].source)
    return layer
