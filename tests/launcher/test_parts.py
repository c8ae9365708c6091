"""Sizes of the launcher's parts, as docs/architecture.md states them, and what a launch imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \|", re.MULTILINE)
STATED = dict(ROW.findall((ROOT / "docs/architecture.md").read_text()))
SLURM = """
import sys
from launcher.cli import main
main(["--runtime", "native", "--device", "cpu", "--dry-run", "check"])
loaded = [name for name in sys.modules if name.startswith("launcher.slurm.")]
sys.exit(", ".join(loaded) or 0)
"""


def test_the_table_has_every_part() -> None:
    assert sorted(STATED) == sorted(p.parent.name for p in ROOT.glob("launcher/*/__init__.py"))


@pytest.mark.parametrize("part", STATED)
def test_the_lines_of_a_part_are_stated(part: str) -> None:
    lines = sum(len(f.read_text().splitlines()) for f in (ROOT / "launcher" / part).glob("*.py"))
    assert int(STATED[part].replace(",", "")) == pytest.approx(lines, rel=0.1)


def test_a_direct_launch_imports_nothing_of_slurm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLURM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/cosmos_quickstart.md"])
def test_a_clone_has_no_name_of_a_package(page: str) -> None:
    """Python would import a folder `aam` beside a script as an empty namespace."""
    folders = re.findall(r"^git clone \S+ (\S+)", (ROOT / page).read_text(), re.MULTILINE)
    assert folders
    assert not {"aam", "launcher"}.intersection(folders)
