"""Available memory, and the memory budget for reading input files.

A small file can describe more data than memory holds: a gzip stream of zeros, an HDF5 dataset that
was never written, a .npy header. Readers compare the described size with the budget before they
allocate memory.
"""

from __future__ import annotations

import resource
from pathlib import Path

from aam.contract.errors import DataError

GIB = 2**30
_LIBRARIES = GIB // 2
"""Address space of NumPy, SciPy and scikit-learn with few threads; training a kernel fits too."""

_UNKNOWN = 16 * GIB
"""Default if the system does not report the free memory."""


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate; `root` has proc and sys.

    The minimum of the host's free memory, the limit of the control group (set by Slurm and
    containers) and the limit of the address space (`ulimit -v`).
    """
    free = _field(root / "proc/meminfo", "MemAvailable")
    limits = [free, _limit_of_cgroup(root), _free_address_space(root)]
    return max(0, min((limit for limit in limits if limit is not None), default=_UNKNOWN))


def memory_budget(max_memory_gb: float | str = "auto") -> int:
    """Return the memory budget of readers in bytes; "auto" is half of the available memory."""
    if isinstance(max_memory_gb, str):
        return memory_available() // 2
    return int(min(max_memory_gb, 2**30) * GIB)


def require_address_space() -> None:
    """Refuse a limit of the address space that is too small for the libraries.

    Without memory for its threads, OpenBLAS hangs and ignores signals.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LIBRARIES:
        sizes = f"`ulimit -v` is {shown_size(limit)}, the libraries alone need up to"
        remedy = "raise the limit with `ulimit -v`"
        raise DataError(
            "The input does not fit in memory", f"{sizes} {shown_size(_LIBRARIES)}", remedy
        )


def check_memory(title: str, content: str, size: float, budget: float, remedy: str) -> None:
    """Raise DataError if `content` of the input `title` takes more bytes than the budget."""
    if size > budget:
        sizes = f"{content} takes {shown_size(size)}, the limit is {shown_size(budget)}"
        raise DataError(f"The {title} does not fit in memory", sizes, remedy)


def shown_size(size: float) -> str:
    """Format a number of bytes.

    >>> shown_size(5 * 2**30)
    '5.0 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def _limit_of_cgroup(root: Path) -> int | None:
    """Return the lowest limit of this process's control group and its parents (v2, then v1)."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            lowest = top / group.lstrip("/")
            for folder in (lowest, *lowest.parents):
                if folder.is_relative_to(top):
                    limits.append(_text(folder / name).strip())
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def _free_address_space(root: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - (_field(root / "proc/self/status", "VmSize") or 0)


def _field(path: Path, name: str) -> int | None:
    """Read a size in bytes from a file with lines `Name:  123 kB`."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
