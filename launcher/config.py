"""Read the layers of configuration from their files, the environment and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.contract.errors import ConfigurationError
from aam.contract.records import Entry, yaml_entries
from aam.contract.suggestions import nearest
from launcher import documents
from launcher.documents import user_folder
from launcher.engines import ENGINES
from launcher.plan.catalog import Catalog, extended, shipped
from launcher.plan.settings import (
    SETTING_SPECS,
    LaunchSettings,
    Layer,
    TextSetting,
    from_flags,
    from_variables,
    merge,
    of_file,
)

if TYPE_CHECKING:
    from launcher.slurm.site import Site

SYSTEM = Path("/etc/aam/launch.yaml")
SITES = (Path("/etc/aam/sites"), Path(__file__).with_name("sites"))


def read(
    flags: Mapping[str, Any], variables: Mapping[str, str], usual_site: str = ""
) -> LaunchSettings:
    """Return the settings of all layers, with image_dir and scratch filled in.

    Args:
        flags: the launcher's own options of the command line, flag -> value.
        variables: the environment.
        usual_site: site whose settings count where none is named.
    """
    user = user_folder("XDG_CONFIG_HOME", variables) / "launch.yaml"
    top: list[Layer] = [from_variables(variables), from_flags(flags)]
    home = who(variables).get("HOME", "/")
    system, personal = of_file(_file(SYSTEM), home), of_file(_file(user), home)
    of_site: Layer = {}
    if name := merge([system, personal, *top]).site.value or usual_site:
        of_site = of_file(site(name, variables).settings(), home)
    scratch = variables.get("SLURM_TMPDIR") or variables.get("TMPDIR") or "/tmp"
    defaults = {
        "image_dir": Entry(str(user_folder("XDG_CACHE_HOME", variables) / "images"), "default"),
        "scratch": Entry(scratch, "default"),
    }
    settings = merge([defaults, system, of_site, personal, *top])
    # `~` of an option or a variable that a shell left alone, as in --image-dir='~/images'.
    expand = partial(_expanded, home)
    settings = replace(
        settings,
        image=expand(settings.image, relative=True),
        image_dir=expand(settings.image_dir),
        scratch=expand(settings.scratch),
        bind=tuple(expand(bind, relative=True) for bind in settings.bind),
    )
    runtime = settings.runtime.value
    if runtime not in runtimes():
        evidence = f"'{runtime}' from {settings.runtime.source}"
        known = f"known are {', '.join(runtimes())}"
        raise ConfigurationError("No such runtime", evidence, nearest(runtime, runtimes(), known))
    return settings


def _expanded(home: str, setting: TextSetting, relative: bool = False) -> TextSetting:
    """Return a setting with `~` as the home folder, and absolute unless it may be `relative`."""
    text = setting.value
    path = home + text[1:] if text == "~" or text.startswith("~/") else text
    return replace(setting, value=path if relative else os.path.abspath(path))


def runtimes() -> tuple[str, ...]:
    """Return the values of --runtime."""
    return ("auto", *ENGINES)


def configured(flags: Mapping[str, Any]) -> tuple[LaunchSettings, Catalog]:
    """Return the settings and the catalog of this process."""
    settings = read(flags, os.environ)
    return settings, catalog(settings)


def site(name: str, variables: Mapping[str, str] = os.environ) -> Site:
    """Return the facts of a site, given by name or path.

    Args:
        name: of a site, or path of its file.
        variables: the environment, with `$USER` and `$HOME`.
    """
    from launcher.slurm.site import HELP, site_of

    file = _site(name)
    return site_of(file.stem, _file(file, (*SETTING_SPECS, *HELP)), who(variables))


def who(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values of `$USER` and `$HOME` in a site file."""
    import pwd

    try:
        account = pwd.getpwuid(os.getuid())
        known = {"USER": account.pw_name, "HOME": account.pw_dir}
    except KeyError:  # the user number has no name
        known = {}
    return {**known, **{name: variables[name] for name in ("USER", "HOME") if name in variables}}


def sites() -> list[str]:
    """Return the names of the known sites."""
    return sorted({p.stem for folder in SITES if folder.is_dir() for p in folder.glob("*.yaml")})


def private_folder(settings: LaunchSettings, uid: int, host: str, job: str | None) -> str:
    """Return the folder of this user, job and node."""
    if job is not None and not (job.isascii() and job.isdigit()):
        remedy = "unset it outside of Slurm"
        raise ConfigurationError("Not the number of a Slurm job", f"SLURM_JOB_ID={job!r}", remedy)
    scratch = os.path.abspath(settings.scratch.value)
    return f"{scratch}/aam-{uid}/{job or 'local'}-{host}"


def catalog(settings: LaunchSettings) -> Catalog:
    """Return the catalog of this package, with the images of configurations."""
    return extended(shipped(), settings.images)


def content(path: Path) -> bytes | None:
    """Return the content of a settings file, or None if there is no such file."""
    try:
        return documents.regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
    except ValueError as error:
        raise _unreadable(path, str(error)) from error


def entries(path: Path, found: bytes, known: Iterable[str] = SETTING_SPECS) -> dict[str, Entry]:
    """Return the settings that a file's content holds, each with its line."""
    try:
        text = found.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(path, str(error)) from error
    return yaml_entries(text, str(path), known)


def _file(path: Path, known: Iterable[str] = SETTING_SPECS) -> dict[str, Entry]:
    found = content(path)
    return {} if found is None else entries(path, found, known)


def _unreadable(path: Path, evidence: str) -> ConfigurationError:
    cause = "A settings file cannot be read"
    return ConfigurationError(cause, f"'{path}', {evidence}", "correct or remove it")


def _is_path(site_name: str) -> bool:
    return "/" in site_name or site_name.endswith(".yaml")


def _site(name: str) -> Path:
    """Return the file of a site: a path, or a name in one of SITES."""
    places = [Path(name)] if _is_path(name) else [folder / f"{name}.yaml" for folder in SITES]
    for place in places:
        if place.is_file():
            return place
    found = sites()
    known = f"known are {', '.join(found)}" if found else "name a file"
    raise ConfigurationError("No such site", f"'{name}'", known)
