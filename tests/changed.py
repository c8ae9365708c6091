"""Tests of what differs from another revision, within a minute: `make test-changed`.

    python -m tests.changed [--base REVISION] [--seconds 55] [PYTEST OPTIONS]

A changed test file is run, and each test file that imports a changed module, directly or by modules
of tests/support. A changed module that no test imports has the tests of its package, as
tests/data/ for aam/data/; of another file, such as a YAML file, it is the test files that name it.
Changed test files come first, then those that import the least, whose tests are the nearest ones.
Tests that are medium or slow are left out, and the run stops when the time is up.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = "not medium and not slow and not nightly and not container and not slurm"
PACKAGES = ("aam", "launcher", "benchmarks", "tests")
DOCUMENTS = "tests/project/test_documentation.py"


def changed_files(base: str) -> list[str]:
    """Return the files that differ from the ancestor in common with `base`, committed or not."""

    def git(*words: str) -> list[str]:
        argv = ["git", "-C", str(ROOT), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()

    (ancestor,) = git("merge-base", base, "HEAD")
    return sorted(
        {*git("diff", "--name-only", "--diff-filter=d", ancestor)}
        | {*git("ls-files", "--others", "--exclude-standard")}
    )


def imported(source: str) -> set[str]:
    """Return the modules of this project that a source imports, and the names that may be modules.

    >>> sorted(imported("from aam.data import study; import numpy"))
    ['aam.data', 'aam.data.study']
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] in PACKAGES}


def files_to_test(changed: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Return the test files for changed files, the nearest first.

    Args:
        changed: paths below the root of the repository.
        sources: text of every Python file of tests/ by its path.
    """
    reads = {path: imported(text) for path, text in sources.items()}
    support = {_module(path): path for path in sources if path.startswith("tests/support/")}
    for path in sources:  # what a test's helpers import, it uses too
        waiting = [name for name in reads[path] if name in support]
        while waiting:
            new = reads[support[waiting.pop()]] - reads[path]
            reads[path] |= new
            waiting += [name for name in new if name in support]
    tests = [path for path in sources if Path(path).name.startswith("test_")]
    nearest: dict[str, int] = {}
    for file in changed:
        if file in tests:
            nearest[file] = -1
        elif file.endswith(".py"):
            users = [test for test in tests if _module(file) in reads[test]]
            folder = "tests/" + "/".join(file.split("/")[1:2]) + "/"
            users = users or [test for test in tests if test.startswith(folder)]
            for test in users:
                nearest.setdefault(test, len(reads[test]))
        else:
            name = re.compile(rf"(?<![\w.]){re.escape(Path(file).name)}\b")
            for test in tests:
                if test == DOCUMENTS or name.search(sources[test]):
                    nearest.setdefault(test, len(reads[test]))
    return sorted(nearest, key=lambda test: (nearest[test], test))


def _module(path: str) -> str:
    """Return the dotted name of a Python file.

    >>> _module("aam/data/__init__.py")
    'aam.data'
    """
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class TimeLimit:
    """Plugin of pytest that ends a run after the test that passes the limit."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.seconds, self.is_over = seconds, False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if time.monotonic() > self.end:
            self.is_over = True
            item.session.shouldstop = f"{self.seconds:g} s are over; make test-fast runs the rest"


def main() -> int:
    """Run the tests; exit with the status of pytest, 0 where nothing is to be tested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="main", help="revision to compare with")
    parser.add_argument("--seconds", type=float, default=55, help="time limit")
    options, more = parser.parse_known_args()
    files = sorted(path for path in (ROOT / "tests").rglob("*.py"))
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    changed = changed_files(options.base)
    tests = files_to_test(changed, sources)
    print(f"{len(changed)} changed files, {len(tests)} test files: {' '.join(tests)}", flush=True)
    if not tests:
        return 0
    argv = ["-q", "-x", "-m", QUICK, *more, *tests]
    limit = TimeLimit(options.seconds)
    status = pytest.main(argv, plugins=[limit])
    # No quick test among them, or the time is up; Ctrl-C also interrupts, and is no success.
    is_complete = status == pytest.ExitCode.NO_TESTS_COLLECTED or (
        status == pytest.ExitCode.INTERRUPTED and limit.is_over
    )
    return 0 if is_complete else int(status)


if __name__ == "__main__":
    sys.exit(main())
