"""`make test-changed`: the test files of a change, the nearest first, within its time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.changed import files_to_test

SOURCES = {
    "tests/support/tables.py": "from aam.data import table",
    "tests/data/test_table.py": "from aam.data.table import read",
    "tests/data/test_tree.py": "from aam.data.tree import read",
    "tests/commands/test_inspect.py": "import aam.cli\nfrom tests.support.tables import made",
    "tests/launcher/test_catalog.py": "CATALOG = 'launcher/catalog.yaml'",
    "tests/project/test_documentation.py": "",
}


def test_tests_that_import_a_changed_module_are_found_by_helpers_too() -> None:
    found = files_to_test(["aam/data/table.py"], SOURCES)
    assert found == ["tests/data/test_table.py", "tests/commands/test_inspect.py"]


def test_a_module_without_a_test_has_those_of_its_package() -> None:
    found = files_to_test(["aam/data/batches.py"], SOURCES)
    assert found == ["tests/data/test_table.py", "tests/data/test_tree.py"]


def test_files_that_are_no_modules_have_the_tests_that_name_them() -> None:
    assert "tests/launcher/test_catalog.py" in files_to_test(["launcher/catalog.yaml"], SOURCES)
    assert files_to_test(["docs/stack.md"], SOURCES) == ["tests/project/test_documentation.py"]
    assert (
        files_to_test(["tests/data/test_tree.py", "docs/a.md"], SOURCES)[0]
        == "tests/data/test_tree.py"
    )


def test_a_failing_test_of_a_change_fails_the_run_and_time_ends_it(tmp_path: Path) -> None:
    """In a repository of its own, whose one change is a new test."""
    (tmp_path / "tests").mkdir()
    source = Path(__file__).parents[1] / "changed.py"
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "changed.py").write_text(source.read_text())
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)

    for argv in (["init", "-qb", "main"], ["add", "."], ["commit", "-qm", "first"]):
        run("git", "-c", "user.name=a", "-c", "user.email=a@b", *argv)
    new = tmp_path / "tests" / "test_new.py"
    new.write_text("def test_a():\n    pass\n\ndef test_b():\n    assert 1 == 2\n")
    test = (sys.executable, "-m", "tests.changed")
    failed = run(*test)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "1 test files: tests/test_new.py" in failed.stdout
    late = run(*test, "--seconds", "0")
    assert late.returncode == 0, late.stdout + late.stderr
    assert "0 s are over" in late.stdout
