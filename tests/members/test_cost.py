"""Estimated cost of a training, compared with real runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aam.data.splits import make_splits
from aam.members.base import Labels
from aam.members.cost import estimate
from aam.members.folds import Folds
from tests.support.commands import aam

PROGRAM = """
import sys, time
from aam.cli import main
status = main(sys.argv[1:])
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(time.process_time(), int(lines["VmHWM"].split()[0]) * 1024)
sys.exit(status)
"""
"""The memory of a child in `getrusage` includes that of its parent, which it replaced."""

UNITS = {"s": 1, "min": 60, "MiB": 2**20, "GiB": 2**30}


def folds_of(samples: int, groups: int | None = None, classes: int = 0, folds: int = 5) -> Folds:
    names = None if groups is None else [f"g{k % groups}" for k in range(samples)]
    values = np.arange(samples, dtype=np.float64) % (classes or samples)
    labels = Labels.of(values, tuple(f"c{k}" for k in range(classes)), names)
    splits = make_splits(samples, test_size=0.2, folds=folds, seed=0, groups=names)
    return Folds(labels, splits, 0)


def test_larger_studies_cost_more() -> None:
    small = estimate(("kernel", "forest"), folds_of(100), 1000, 5000)
    for larger in (
        estimate(("kernel", "forest"), folds_of(1000), 1000, 50_000),
        estimate(("kernel", "forest"), folds_of(100), 8000, 5000),
    ):
        assert larger.cpu_seconds > small.cpu_seconds
        assert larger.peak_bytes > small.peak_bytes
    deep = estimate(("kernel", "forest"), folds_of(100), 1000, 50_000)
    assert deep.cpu_seconds > small.cpu_seconds
    grouped = estimate(("kernel",), folds_of(2000, groups=10), 1000, 5000)
    assert grouped.cpu_seconds > estimate(("kernel",), folds_of(2000), 1000, 5000).cpu_seconds
    many = estimate(("kernel",), folds_of(2000, classes=100), 1000, 5000)
    assert (
        many.cpu_seconds > estimate(("kernel",), folds_of(2000, classes=2), 1000, 5000).cpu_seconds
    )
    fewer = estimate(("kernel",), folds_of(2000, folds=2), 1000, 5000)
    assert fewer.cpu_seconds < estimate(("kernel",), folds_of(2000), 1000, 5000).cpu_seconds


def test_one_member_costs_less_than_two() -> None:
    both = estimate(("kernel", "forest"), folds_of(500), 1000, 50_000)
    for member in ("kernel", "forest"):
        alone = estimate((member,), folds_of(500), 1000, 50_000)
        assert alone.cpu_seconds < both.cpu_seconds
        assert alone.peak_bytes <= both.peak_bytes


@pytest.mark.medium
def test_a_real_training_costs_what_was_estimated(tmp_path: Path) -> None:
    """On public studies the time was 0.8 to 1.25 times the estimate, the memory 0.9 to 1.15."""
    args = ("--samples", "300", "--asvs", "1000", "--output-dir", tmp_path / "study")
    assert aam("simulate", *args) == 0
    program = [sys.executable, "-c", PROGRAM, "train", "--table", f"{tmp_path}/study/table.biom"]
    program += ["--metadata", f"{tmp_path}/study/metadata.tsv", "--metadata-column", "ph"]
    program += ["--output-dir", f"{tmp_path}/run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    printed = done.stderr
    found = re.search(r"Estimate: (.*) of CPU time .*, ([\d.]+ \w+) of memory", printed)
    assert found is not None, printed
    seconds, size = (
        sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", text))
        for text in found.groups()
    )
    used, peak = map(float, done.stdout.splitlines()[-1].split())
    # Twice, and half as much again on a machine whose caches other programs share.
    assert seconds / 3 < used < 3 * seconds
    assert size / 2 < peak < 2 * size
