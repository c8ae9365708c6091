"""Which container engines are on PATH, and what keeps one from starting a container here."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.host import engine_conf
from launcher.host.facts import EngineFact
from launcher.host.tree import Tree

NAMES = ("apptainer", "singularity", "podman", "docker")
SIF_ENGINES = NAMES[:2]
DOCKER_SOCKET = "/var/run/docker.sock"
STARTERS = ("libexec/{}/bin/starter-suid", "lib/x86_64-linux-gnu/{}/bin/starter-suid")


def engines(tree: Tree, environment: Mapping[str, str], uid: int) -> tuple[EngineFact, ...]:
    """List the engines of this very host in the order of NAMES."""
    found = []
    for name in NAMES:
        path = which(name, environment.get("PATH", os.defpath))
        if path:
            found.append(_engine(name, path, tree, environment, uid))
    return tuple(found)


def _engine(
    name: str, path: str, tree: Tree, environment: Mapping[str, str], uid: int
) -> EngineFact:
    obstacle = _obstacle(name, path, tree, environment, uid)
    if name not in SIF_ENGINES:
        return EngineFact(name, path, obstacle)
    # `singularity` may be a link to apptainer, which then reads its own configuration.
    program = os.path.realpath(path)
    place = engine_conf.path_of(os.path.basename(program), program)
    conf = engine_conf.read(tree, place)
    obstacle = obstacle or engine_conf.obstacle(conf, place)
    return EngineFact(name, path, obstacle, conf=tuple(engine_conf.remarks(conf)))


def which(name: str, search: str) -> str | None:
    """Return the absolute path of a program on the search path."""
    for folder in search.split(os.pathsep):
        path = os.path.join(folder, name)
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def user_namespaces(tree: Tree) -> str | None:
    """Return what forbids ordinary users to make user namespaces, or None (user_namespaces(7))."""
    for path, forbidding in (
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),  # Debian's and Arch's kernels
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),  # Ubuntu 23.10 and later
    ):
        try:
            value = tree.text(path).strip()
        except OSError:
            continue
        if value == forbidding:
            return f"{path} is {value}"
    return None


def _obstacle(
    name: str, path: str, tree: Tree, environment: Mapping[str, str], uid: int
) -> str | None:
    if name == "docker":
        return _docker_obstacle(environment)
    if uid == 0 or (name in SIF_ENGINES and _set_uid(name, path)):
        return None
    return user_namespaces(tree) or (_no_subordinate_ids(tree, uid) if name == "podman" else None)


def _no_subordinate_ids(tree: Tree, uid: int) -> str | None:
    """Return what rootless podman lacks: a range of user numbers (subuid(5)), or None."""
    import pwd

    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    for path in ("/etc/subuid", "/etc/subgid"):
        try:
            owners = [line.split(":")[0] for line in tree.text(path).splitlines()]
        except FileNotFoundError:
            owners = []
        except OSError:
            return None
        if not {user, str(uid)} & set(owners) and not _subordinate_ids_elsewhere(tree):
            return f"{path} has no line for {user}; `usermod --add-subuids` makes one"
    return None


def _subordinate_ids_elsewhere(tree: Tree) -> bool:
    """Tell whether a service such as SSSD hands out the ranges (nsswitch.conf(5), "subid")."""
    try:
        lines = tree.text("/etc/nsswitch.conf").splitlines()
    except OSError:
        return False
    return any(
        line.split(":")[0].strip() == "subid" and line.split(":")[1].split() != ["files"]
        for line in lines
        if ":" in line
    )


def _docker_obstacle(environment: Mapping[str, str]) -> str | None:
    address = environment.get("DOCKER_HOST", f"unix://{DOCKER_SOCKET}")
    if not address.startswith("unix://"):
        return None
    socket = address.removeprefix("unix://")
    if not os.path.exists(socket):
        return f"no daemon listens at {socket}"
    if not os.access(socket, os.R_OK | os.W_OK):
        return f"{socket} may not be used; are you in the group docker?"
    return None


def _set_uid(name: str, path: str) -> bool:
    """Tell whether the engine was installed with its set-uid starter."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    starters = [os.path.join(prefix, place.format(name)) for place in STARTERS]
    return any(os.path.exists(s) and os.stat(s).st_mode & 0o4000 for s in starters)
