"""Podman, rootless or as root.

The user keeps the same numbers and groups inside (--userns keep-id). The shared memory is a mount
of the host's; --ipc=host fails where a host has no /dev/mqueue. --pull=never: no image of Docker
Hub is ever used.

containers.conf of the site or the user adds variables, mounts and devices to every container, and
no option takes them away again; `explain` and `doctor` show what it adds.
"""

from __future__ import annotations

import ast
import pwd
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from launcher.engines.base import user_namespaces
from launcher.engines.oci import OciEngine
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree

if TYPE_CHECKING:
    from launcher.engines.base import ImageBuild
    from launcher.plan.plan import Plan


ADDING = {
    "containers": ("env", "env_host", "volumes", "mounts", "devices", "annotations", "privileged",
                   "default_capabilities", "seccomp_profile", "userns", "ipcns"),
    "engine": ("env", "hooks_dir"),
}  # fmt: skip
"""Keys by section that change a container's content; others choose runtimes, networks and logs."""

FOLDERS = ("/usr/share/containers", "/etc/containers")
"""Folders of the distribution, whose values are podman's defaults, and of the site."""


class Podman(OciEngine):
    """Podman 4; `--timestamp` and `--volume` of a build came together with it (its change log)."""

    name = "podman"
    least = (4, 0)
    storage = "{{.Store.GraphRoot}}"
    save_flags = ("--format", "docker-archive")
    move = "set graphroot in ~/.config/containers/storage.conf to a folder with room"
    traits = EngineTraits(
        image_format="podman",
        takes_cdi=True,
        later_cdi=5,
        needs_cdi=True,
        hidden=("PODMAN_*", "CONTAINER_*"),  # a default user namespace, a remote host
    )

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        """Return what forbids rootless containers, and the settings that add to containers."""
        rootless = user_id and (user_namespaces(tree) or _no_subordinate_ids(tree, user_id))
        remarks = tuple(additions(tree, environment, user_id))
        return EngineFact(self.name, path, rootless or None, conf=remarks, traits=self.traits)

    def identity_flags(self, plan: Plan) -> list[str]:
        """Keep the numbers of the user and the groups, which cannot be named one by one."""
        if plan.user[0] == 0:
            argv = [f"--group-add={group}" for group in plan.groups]
        else:
            argv = ["--userns=keep-id", *(["--group-add=keep-groups"] if plan.groups else [])]
        return ["--http-proxy=false", *argv]

    def build_flags(self, build: ImageBuild) -> list[str]:
        """Set the date of all files; without layers a failed build leaves nothing behind."""
        plain = ["--format", "docker", "--force-rm", "--layers=false"]
        return [*plain, "--timestamp", str(build.epoch)]


def _no_subordinate_ids(tree: HostTree, user_id: int) -> str | None:
    """Return the missing range of user IDs for rootless podman (subuid(5)), or None."""
    try:
        user = pwd.getpwuid(user_id).pw_name
    except KeyError:
        user = str(user_id)
    for path in ("/etc/subuid", "/etc/subgid"):
        text = tree.read(path)
        if text is None and tree.has(path):  # it may not be read
            return None
        owners = [line.split(":")[0] for line in (text or "").splitlines()]
        if not {user, str(user_id)} & set(owners) and not _subordinate_ids_elsewhere(tree):
            return f"{path} has no line for {user}; `usermod --add-subuids` makes one"
    return None


def _subordinate_ids_elsewhere(tree: HostTree) -> bool:
    """Return whether a service such as SSSD hands out the ranges (nsswitch.conf(5), "subid")."""
    pairs = (line.split(":") for line in (tree.read("/etc/nsswitch.conf") or "").splitlines())
    return any(
        len(pair) > 1 and pair[0].strip() == "subid" and pair[1].split() != ["files"]
        for pair in pairs
    )


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
    """Yield the files of containers.conf(5), the lowest first; a later value replaces an earlier.

    The variable CONTAINERS_CONF names the only file, CONTAINERS_CONF_OVERRIDE one more.
    """
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


ENGINE = Podman()
