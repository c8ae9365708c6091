"""Available memory, and the memory budget for reading input files.

A small file can describe far more than memory holds: a gzip stream of zeros, an HDF5 dataset that
was never written, a .npy header. Readers compare what a file describes with the budget before they
allocate it.
"""

from __future__ import annotations

import resource
from pathlib import Path

from aam.contract.errors import DataError

GIB = 2**30
_LIBRARIES = GIB // 2
"""Address space of NumPy, SciPy and scikit-learn with few threads; a kernel trains in as much."""

_UNKNOWN = 16 * GIB
"""Default where the system does not report the free memory."""


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate.

    It is the least of the free memory of the host, the limit of the control group (Slurm and
    containers set one) and the limit of the address space (`ulimit -v`).

    Args:
        root: where proc and sys are mounted.
    """
    free = _field(root / "proc/meminfo", "MemAvailable")
    limits = [free, _limit_of_cgroup(root), _free_address_space(root)]
    return max(0, min((limit for limit in limits if limit is not None), default=_UNKNOWN))


def memory_budget(max_memory_gb: float | str = "auto") -> int:
    """Return the bytes that reading may use: `max_memory_gb` GiB, or half of the available ones."""
    if isinstance(max_memory_gb, str):
        return memory_available() // 2
    return int(min(max_memory_gb, 2**30) * GIB)


def require_address_space() -> None:
    """Refuse a limit of the address space in which the libraries cannot be loaded.

    OpenBLAS neither ends with an error nor heeds signals where its threads get no memory.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LIBRARIES:
        sizes = f"`ulimit -v` is {shown_size(limit)}, the libraries alone need up to"
        remedy = "raise the limit with `ulimit -v`"
        raise DataError(
            "The input does not fit in memory", f"{sizes} {shown_size(_LIBRARIES)}", remedy
        )


def check_memory(what: str, part: str, size: float, budget: float, remedy: str) -> None:
    """Refuse input that does not fit in memory.

    Args:
        what: name of the input in the message, such as `table`.
        part: the file, or what of it takes the memory.
        size: bytes that it takes.
        budget: bytes that it may take.
        remedy: what the user can do about it.

    Raises:
        DataError: `size` is above `budget`.
    """
    if size > budget:
        sizes = f"{part} takes {shown_size(size)}, the limit is {shown_size(budget)}"
        raise DataError(f"The {what} does not fit in memory", sizes, remedy)


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
    """Return the lowest limit of this process's control group and those above it (v2, then v1)."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            place = top / group.lstrip("/")
            for folder in (place, *place.parents):
                if folder.is_relative_to(top):
                    limits.append(_text(folder / name).strip())
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def _free_address_space(root: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - (_field(root / "proc/self/status", "VmSize") or 0)


def _field(path: Path, name: str) -> int | None:
    """Return a number of kB of a file of lines `Name:  123 kB`, in bytes."""
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
