"""Search of PATH and check of the kernel's user namespaces, shared by engines."""

from __future__ import annotations

import os

from launcher.host.tree import HostTree


def which(name: str, search: str) -> str | None:
    """Return the absolute path of a program on the search path."""
    for folder in search.split(os.pathsep):
        path = os.path.join(folder, name)
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def user_namespaces(tree: HostTree) -> str | None:
    """Return the kernel setting that forbids user namespaces, or None (user_namespaces(7))."""
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
