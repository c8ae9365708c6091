"""Configuration of podman, containers.conf(5): settings that add to every container.

The files are read from the lowest to the highest; a later value replaces an earlier one. The
variable CONTAINERS_CONF names the only file, CONTAINERS_CONF_OVERRIDE one more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from launcher.host.tree import HostTree

ADDING = {
    "containers": ("env", "env_host", "volumes", "mounts", "devices", "annotations", "privileged",
                   "default_capabilities", "seccomp_profile", "userns", "ipcns"),
    "engine": ("env", "hooks_dir"),
}  # fmt: skip
"""Keys by section that change a container's content; others choose runtimes, networks and logs."""
FOLDERS = ("/usr/share/containers", "/etc/containers")
"""Folders of the distribution, whose values are podman's defaults, and of the site."""


def additions(
    tree: HostTree, environment: Mapping[str, str], user_id: int
) -> Iterator[tuple[str, str]]:
    """Yield each setting that adds to every container, and the file where it stands."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for path in _paths(tree, environment, user_id):
        for section, key, value in _settings(tree.read(path) or ""):
            if key in ADDING.get(section, ()):
                found[section, key] = (value, path)
    for (_, key), (value, path) in found.items():
        if not path.startswith(FOLDERS[0]) and value not in ("[]", '""', "false"):
            yield f"{key} = {value}", f"{path} adds it to every container"


def _paths(tree: HostTree, environment: Mapping[str, str], user_id: int) -> Iterator[str]:
    if environment.get("CONTAINERS_CONF"):
        yield environment["CONTAINERS_CONF"]
    else:
        home = environment.get("HOME", "/")
        own = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
        for folder in (*FOLDERS, *([f"{own}/containers"] if user_id else [])):
            yield f"{folder}/containers.conf"
            drop_in = f"{folder}/containers.conf.d"
            yield from (f"{drop_in}/{name}" for name in sorted(tree.names(drop_in))
                        if name.endswith(".conf"))  # fmt: skip
    if environment.get("CONTAINERS_CONF_OVERRIDE"):
        yield environment["CONTAINERS_CONF_OVERRIDE"]


def _settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of TOML, as far as this configuration uses it.

    A list may span lines; Python reads TOML's lists of strings, with their comments.
    """
    section, lines = "", iter(text.splitlines())
    for line in lines:
        plain = line.strip()
        if plain.startswith("["):
            section = plain.strip("[] ")
        key, equals, value = plain.partition("=")
        if not equals or plain.startswith(("#", "[")):
            continue
        value = value.strip()
        while value.startswith("["):
            try:
                items = ast.literal_eval(value)
            except (SyntaxError, ValueError):
                following = next(lines, None)
                if following is None:
                    break
                value += "\n" + following
                continue
            value = f"[{', '.join(map(str, items))}]" if items else "[]"
            break
        else:
            value = value.partition(" #")[0].strip()
        yield section, key.strip(), value
