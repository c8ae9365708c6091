"""Tests of a node: `aam check`, and the tests with the marker `rocm`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from aam.contract.errors import MissingInput, Unavailable
from aam.node import log

FILE = "tests/numerics/test_rocm_compatibility.py"


def run_tests(argv: Sequence[str], checkout: Path, pytest: Path | None) -> int:
    """Run `aam` with `argv` and the tests of a checkout; return the first status that is not 0.

    Args:
        argv: a command of `aam`, `check` and its options.
        pytest: folder in which pytest is installed; None: beside aam.

    Raises:
        MissingInput: there are no tests, or no pytest.
        Unavailable: every test was skipped.
    """
    if not (checkout / FILE).is_file():
        raise MissingInput("No tests", f"'{checkout / FILE}'", "set AAM_CHECKOUT to a checkout")
    if pytest is not None and not pytest.is_dir():
        remedy = "slurm/cosmos_setup.sh installs it, or set AAM_PYTEST"
        raise MissingInput("No pytest", f"'{pytest}' does not exist", remedy)
    log(f"aam {' '.join(argv)}")
    checked = subprocess.run([sys.executable, "-m", "aam.cli", *argv]).returncode
    log("tests of the marker rocm")
    paths = [str(checkout)] + ([str(pytest)] if pytest else [])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tested = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "rocm", "-p", "no:cacheprovider", "-rs",
             "--rootdir", str(checkout), f"--junitxml={report}", str(checkout / FILE)],
            env={**os.environ, "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        ).returncode  # fmt: skip
        status = checked or tested
        require_tested(report, status)
    return status


def require_tested(report: Path, status: int) -> None:
    """Check that a run of pytest tested something.

    Args:
        status: exit status so far; another failure is reported by it.

    Raises:
        Unavailable: every test was skipped, or there was none.
    """
    suites = list(ElementTree.parse(report).iter("testsuite")) if report.exists() else []
    total, skipped = (sum(int(s.get(n, 0)) for s in suites) for n in ("tests", "skipped"))
    if status in (0, 5) and total == skipped:
        remedy = "see the reasons above; most often Slurm gave the job no GPU"
        raise Unavailable("Nothing was tested", f"{skipped} of {total} tests were skipped", remedy)
