"""Available memory: the minimum of host, control groups and address space."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.memory import GIB, memory_available, memory_budget, shown_size


def host(root: Path, cgroup: str, **limits: str) -> Path:
    """Write the files of a host with 8 GiB of free memory; `limits` are of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for place, limit in limits.items():
        file = root / "sys/fs/cgroup" / place.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f"memory.{file.name}").write_text(limit)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "gib"),
    [
        ("0::/\n", {}, 8),
        ("0::/job/step\n", {"job__max": f"{3 * GIB}\n", "job__step__max": "max\n"}, 3),
        ("4:memory:/job\n0::/\n", {"memory__job__limit_in_bytes": f"{2 * GIB}\n"}, 2),
        ("0::/job\n", {"job__max": f"{900 * GIB}\n"}, 8),
    ],
)
def test_the_lowest_limit_counts(
    tmp_path: Path, cgroup: str, limits: dict[str, str], gib: int
) -> None:
    assert memory_available(host(tmp_path, cgroup, **limits)) == gib * GIB


def test_a_budget_is_given_or_half_of_what_is_available() -> None:
    assert memory_budget(1.5) == 1.5 * GIB
    assert 0 < memory_budget() <= memory_available()
    assert shown_size(1536) == "1.5 KiB"
    assert shown_size(10) == "10 bytes"
