"""Site configuration of Apptainer and Singularity: apptainer.conf, singularity.conf.

Lines "key = value"; a key may come more than once. Of the many keys those count that can break a
promise of the launcher, or keep a container from starting (each tried with Apptainer 1.4.5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from launcher.gpus import VENDORS
from launcher.host.tree import HostTree

Conf = Mapping[str, tuple[str, ...]]

LIBRARIES = {
    f"always use {flags[0][2:]}": (vendor, flags[1])
    for vendor in VENDORS.values() if (flags := vendor.library_flags)
}  # fmt: skip
"""Keys that bind a vendor's libraries of the host into every container."""
LIMITS = ("limit container owners", "limit container groups", "limit container paths")
KEYS = (*LIBRARIES, *LIMITS, "mount home", "mount hostfs", "bind path", "user bind control",
        "allow container sif", "allow setuid", "enable overlay", "enable underlay")  # fmt: skip
USUAL_BINDS = ("/etc/localtime", "/etc/hosts")


def path_of(name: str, program: str) -> str:
    """Return where an engine's configuration lies: /etc for one in /usr, else below its prefix."""
    prefix = os.path.dirname(os.path.dirname(program))
    return f"{'' if prefix == '/usr' else prefix}/etc/{name}/{name}.conf"


def read(tree: HostTree, path: str) -> Conf:
    """Return the keys that count; nothing where the file is absent or may not be read."""
    found: dict[str, tuple[str, ...]] = {}
    for line in (tree.read(path) or "").splitlines():
        key, equals, value = line.partition("=")
        name = key.strip()
        if equals and name in KEYS:
            found[name] = (*found.get(name, ()), value.strip())
    return found


def obstacle(conf: Conf, path: str) -> str | None:
    """Return the setting that keeps containers from starting or from mounting files, or None."""
    if _is(conf, "user bind control", "no"):
        return f"`user bind control = no` in {path}: no file of the host can be mounted"
    if _is(conf, "allow container sif", "no"):
        return f"`allow container sif = no` in {path}"
    layers = ("enable overlay", "enable underlay")
    if all(_is(conf, key, "no") for key in layers):
        return f"neither overlay nor underlay is enabled in {path}: nothing can be mounted"
    return None


def remarks(conf: Conf) -> Iterator[tuple[str, str]]:
    """Yield each setting that changes a container, and what the launcher does about it."""
    actions = {"mount hostfs": "--no-mount hostfs keeps the host's file systems out"}
    for key, (vendor, keep_out) in LIBRARIES.items():
        where = f" where there is no {vendor.title} GPU" if vendor.host_libraries else ""
        actions[key] = f"{keep_out} keeps the host's libraries out{where}"
    for key, action in actions.items():
        if _is(conf, key, "yes"):
            yield f"{key} = yes", action
    binds = [path for path in conf.get("bind path", ()) if path.split(":")[0] not in USUAL_BINDS]
    if binds:
        yield f"bind path = {', '.join(binds)}", "--contain keeps them out; --bind lets one in"
    for key in LIMITS:
        values = [value for value in conf.get(key, ()) if value not in ("", "NULL")]
        if values:
            yield f"{key} = {', '.join(values)}", "an image elsewhere or of others will not start"


def _is(conf: Conf, key: str, value: str) -> bool:
    return conf.get(key, ("",))[-1].lower() == value
