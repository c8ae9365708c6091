"""Read the layers of configuration from their files, the environment and the command line."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aam.contract.errors import ConfigurationError, nearest
from aam.contract.records import Sourced, read_yaml_entries
from launcher.engines import ENGINES
from launcher.plan import settings as layers_of
from launcher.plan.catalog import Catalog, extended, shipped
from launcher.plan.settings import SETTING_SPECS, LaunchSettings
from launcher.system import user_folder

if TYPE_CHECKING:
    from launcher.slurm.site import Site

SYSTEM = Path("/etc/aam/launch.yaml")
SITES = (Path("/etc/aam/sites"), Path(__file__).with_name("sites"))


def read(
    flags: Mapping[str, Any], variables: Mapping[str, str], usual_site: str = ""
) -> LaunchSettings:
    """Return the settings of all layers; `flags` are the launcher's options, by flag."""
    home = who(variables).get("HOME", "/")
    cache = user_folder("XDG_CACHE_HOME", variables)
    scratch = variables.get("SLURM_TMPDIR") or variables.get("TMPDIR") or "/tmp"
    defaults = {"image_dir": str(cache / "images"), "scratch": scratch}
    layers: list[Any] = [
        {key: Sourced(value, "default") for key, value in defaults.items()}, _layer(SYSTEM),
        _layer(user_folder("XDG_CONFIG_HOME", variables) / "launch.yaml"),
        layers_of.from_variables(variables), layers_of.from_flags(flags),
    ]  # fmt: skip
    names = (layer["site"].decoded(str, "site").value for layer in layers[::-1] if "site" in layer)
    if name := expanded(next(names, ""), home) or usual_site:
        layers.insert(2, _require_absolute(site(name, variables).settings()))
    settings = layers_of.merge(layers)
    # `~` of a file, and of an option or a variable that a shell left alone (--image-dir='~/i').
    folders = {key: getattr(settings, key) for key in ("image_dir", "scratch")}
    paths = {key: os.path.abspath(expanded(entry.value, home)) for key, entry in folders.items()}
    image, runtime = settings.image, settings.runtime
    settings = replace(
        settings, image=Sourced(expanded(image.value, home), image.source),
        bind=tuple(Sourced(expanded(bind.value, home), bind.source) for bind in settings.bind),
        **{key: Sourced(path, folders[key].source) for key, path in paths.items()},
    )  # fmt: skip
    if runtime.value not in runtimes():
        evidence = f"'{runtime.value}' from {runtime.source}"
        remedy = nearest(runtime.value, runtimes(), f"known are {', '.join(runtimes())}")
        raise ConfigurationError("No such runtime", evidence, remedy)
    return settings


def expanded(path: str, home: str) -> str:
    """Return a path with `~` as the home folder."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _layer(path: Path) -> dict[str, Sourced[Any]]:
    if not os.path.lexists(path):
        return {}
    return _require_absolute(read_yaml_entries(path, "settings file", SETTING_SPECS))


def _require_absolute(layer: dict[str, Sourced[Any]]) -> dict[str, Sourced[Any]]:
    for key in layer.keys() & {"image_dir", "scratch", "bind"}:
        folders, where = layer[key].value, layer[key].source
        for path in folders if isinstance(folders, list) else [folders]:
            if isinstance(path, str) and path != "~" and not path.startswith(("/", "~/")):
                evidence = f"'{path}' of {key} in {where}"
                raise ConfigurationError("Not an absolute path", evidence, "begin it with / or ~/")
    return layer


def runtimes() -> tuple[str, ...]:
    """Return the values of --runtime."""
    return ("auto", *ENGINES)


def configured(flags: Mapping[str, Any]) -> tuple[LaunchSettings, Catalog]:
    """Return the settings and the catalog of this process."""
    settings = read(flags, os.environ)
    return settings, catalog(settings)


def catalog(settings: LaunchSettings) -> Catalog:
    """Return the catalog of this package, with the images of configurations."""
    return extended(shipped(), settings.images)


def site(name: str, variables: Mapping[str, str] = os.environ) -> Site:
    """Return the facts of a site by the name of its file in SITES, or by a path."""
    from launcher.slurm.site import TYPES, site_of  # with msgspec's types: 4 ms of a start without

    places = [folder / f"{name}.yaml" for folder in SITES]
    if "/" in name or name.endswith(".yaml"):
        places = [Path(name)]
    file = next((candidate for candidate in places if candidate.is_file()), None)
    if file is None:
        sites_text = f"known are {', '.join(sites())}" if sites() else "name a file"
        raise ConfigurationError("No such site", f"'{name}'", sites_text)
    entries = read_yaml_entries(file, "site file", (*SETTING_SPECS, *TYPES))
    return site_of(file.stem, entries, who(variables))


def sites() -> list[str]:
    """Return the names of the known sites."""
    return sorted({p.stem for folder in SITES if folder.is_dir() for p in folder.glob("*.yaml")})


def who(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values of `$USER` and `$HOME` in a site file."""
    try:
        account = pwd.getpwuid(os.getuid())
        owner = {"USER": account.pw_name, "HOME": account.pw_dir}
    except KeyError:  # the user number has no name
        owner = {}
    return {**owner, **{name: variables[name] for name in ("USER", "HOME") if name in variables}}


def private_folder(settings: LaunchSettings, uid: int, host: str, job: str | None) -> str:
    """Return the folder of this user, job and node."""
    if job is not None and not (job.isascii() and job.isdigit()):
        remedy = "unset it outside of Slurm"
        raise ConfigurationError("Not the number of a Slurm job", f"SLURM_JOB_ID={job!r}", remedy)
    return f"{os.path.abspath(settings.scratch.value)}/aam-{uid}/{job or 'local'}-{host}"
