"""Read the layers of configuration from their files, the environment and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import yaml_files
from launcher.errors import ConfigurationError
from launcher.plan.catalog import SHIPPED, Catalog, catalog_of, extended
from launcher.plan.layers import KEYS, Entry, Layer, Settings, from_flags, from_variables, merge

if TYPE_CHECKING:
    from launcher.jobs.site import Site

SYSTEM = Path("/etc/aam/launch.yaml")
PROJECT = "aam-launch.yaml"
SITES = (Path("/etc/aam/sites"), Path(__file__).with_name("sites"))


def read(
    flags: Mapping[str, Sequence[str]], variables: Mapping[str, str], folder: Path
) -> Settings:
    """Return the settings of all layers, with image_dir and scratch filled in.

    Args:
        flags: the launcher's own options of the command line.
        variables: the environment.
        folder: the current folder, which may hold aam-launch.yaml.

    Raises:
        ConfigurationError: a file or a variable is wrong.
    """
    home = Path(variables.get("HOME", "/"))
    user = Path(variables.get("XDG_CONFIG_HOME") or home / ".config") / "aam/launch.yaml"
    top: list[Layer] = [from_variables(variables), from_flags(flags)]
    kept = yaml_files.cache_folder(variables)
    system, own, project = (_file(path, kept) for path in (SYSTEM, user, folder / PROJECT))
    name = merge([system, own, project, *top]).text("site")
    site: Layer = {}
    if name:
        from launcher.jobs.site import SITE_KEYS, settings_of

        site = settings_of(_file(_site(name), kept, (*KEYS, *SITE_KEYS)), who(variables))
    cache = Path(variables.get("XDG_CACHE_HOME") or home / ".cache")
    scratch = variables.get("SLURM_TMPDIR") or variables.get("TMPDIR") or "/tmp"
    defaults = {
        "image_dir": Entry(str(cache / "aam/images"), "default"),
        "scratch": Entry(scratch, "default"),
    }
    return merge([defaults, system, site, own, project, *top])


def configured(flags: Mapping[str, Sequence[str]]) -> tuple[Settings, Catalog]:
    """Return the settings and the catalog of this process: its environment, its current folder."""
    settings = read(flags, os.environ, Path.cwd())
    return settings, catalog(settings, os.environ)


def site(name: str, variables: Mapping[str, str]) -> Site:
    """Return what is known of a site: a name, or a path.

    Raises:
        ConfigurationError: there is no such site, or its file is wrong.
    """
    from launcher.jobs.site import SITE_KEYS, site_of

    file = _site(name)
    entries = _file(file, yaml_files.cache_folder(variables), (*KEYS, *SITE_KEYS))
    return site_of(file.stem, entries)


def site_settings(name: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what a site file says of the launcher's settings, alone."""
    from launcher.jobs.site import SITE_KEYS, settings_of

    entries = _file(_site(name), yaml_files.cache_folder(variables), (*KEYS, *SITE_KEYS))
    return {key: entry.value for key, entry in settings_of(entries, variables).items()}


def who(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what `$USER` and `$HOME` of a site file stand for."""
    import pwd

    try:
        account = pwd.getpwuid(os.getuid())
        known = {"USER": account.pw_name, "HOME": account.pw_dir}
    except KeyError:  # a number without a name
        known = {}
    return {**known, **{name: variables[name] for name in ("USER", "HOME") if name in variables}}


def sites() -> list[str]:
    """Return the names of the sites that are known."""
    return sorted({p.stem for folder in SITES if folder.is_dir() for p in folder.glob("*.yaml")})


def answers() -> Path:
    """Return the folder for what engines said of their version."""
    return yaml_files.cache_folder(os.environ).with_name("engines")


def private_folder(settings: Settings, uid: int, host: str, job: str | None) -> str:
    """Return the folder of this user, job and node."""
    scratch = os.path.abspath(settings.text("scratch"))
    return f"{scratch}/aam-{uid}/{job or 'local'}-{host}"


def catalog(settings: Settings, variables: Mapping[str, str]) -> Catalog:
    """Return the catalog of this package, with the images of configurations."""
    content = yaml_files.document(SHIPPED, yaml_files.cache_folder(variables))
    return extended(catalog_of(content), settings.given("images"))


def _file(path: Path, cache: Path, known: Iterable[str] = KEYS) -> dict[str, Entry]:
    try:
        return yaml_files.entries(path, tuple(known), cache)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        evidence = f"'{path}', {error}"
        raise ConfigurationError("A configuration cannot be read", evidence, "mend it") from error


def _site(name: str) -> Path:
    """Return the file of a site: a path, or a name in one of SITES."""
    if "/" in name or name.endswith(".yaml"):
        places = [Path(name)]
    else:
        places = [folder / f"{name}.yaml" for folder in SITES]
    for place in places:
        if place.is_file():
            return place
    found = sites()
    known = f"known are {', '.join(found)}" if found else "name a file"
    raise ConfigurationError("No such site", f"'{name}'", known)
