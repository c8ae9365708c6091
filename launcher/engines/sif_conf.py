"""Site configuration of Apptainer and Singularity: apptainer.conf, singularity.conf.

Lines "key = value"; a key may come more than once. Of the many keys those count that can break a
promise of the launcher, or keep a container from starting (each tried with Apptainer 1.4.5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from launcher.host.tree import HostTree

Conf = Mapping[str, tuple[str, ...]]

KEYS = ("always use nv", "always use rocm", "mount home", "mount hostfs", "bind path",
        "user bind control", "allow container sif", "allow setuid", "enable overlay",
        "enable underlay", "limit container owners", "limit container groups",
        "limit container paths")  # fmt: skip
USUAL_BINDS = ("/etc/localtime", "/etc/hosts")


def path_of(name: str, program: str) -> str:
    """Return where an engine's configuration lies: /etc for one in /usr, else below its prefix."""
    prefix = os.path.dirname(os.path.dirname(program))
    return f"{'' if prefix == '/usr' else prefix}/etc/{name}/{name}.conf"


def read(tree: HostTree, path: str) -> Conf:
    """Return the keys that count; nothing where the file is absent or may not be read."""
    try:
        text = tree.text(path)
    except OSError:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        name = key.strip()
        if equals and name in KEYS:
            found[name] = (*found.get(name, ()), value.strip())
    return found


def obstacle(conf: Conf, path: str) -> str | None:
    """Return the setting that keeps containers from starting or from mounting files, or None."""
    if _says(conf, "user bind control", "no"):
        return f"`user bind control = no` in {path}: no file of the host can be mounted"
    if _says(conf, "allow container sif", "no"):
        return f"`allow container sif = no` in {path}"
    layers = ("enable overlay", "enable underlay")
    if all(_says(conf, key, "no") for key in layers):
        return f"neither overlay nor underlay is enabled in {path}: nothing can be mounted"
    return None


def remarks(conf: Conf) -> Iterator[tuple[str, str]]:
    """Yield each setting that changes a container, and the launcher's answer to it."""
    for key, answer in (
        ("always use rocm", "--no-rocm keeps the host's ROCm out"),
        ("always use nv", "--no-nv keeps the host's libraries out where there is no NVIDIA GPU"),
        ("mount hostfs", "--no-mount hostfs keeps the host's file systems out"),
    ):
        if _says(conf, key, "yes"):
            yield f"{key} = yes", answer
    binds = [path for path in conf.get("bind path", ()) if path.split(":")[0] not in USUAL_BINDS]
    if binds:
        yield f"bind path = {', '.join(binds)}", "--contain keeps them out; --bind lets one in"
    for key in ("limit container owners", "limit container groups", "limit container paths"):
        values = [value for value in conf.get(key, ()) if value not in ("", "NULL")]
        if values:
            yield f"{key} = {', '.join(values)}", "an image elsewhere or of others will not start"


def _says(conf: Conf, key: str, value: str) -> bool:
    return conf.get(key, ("",))[-1].lower() == value
