"""Progress of long work that Python calls: on a terminal, in a notebook, and in neither."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WORK = """
import sys, time, joblib
from aam.console import as_library, track

def work(title, seconds=3.2):
    with as_library(title=title):
        for _ in track(range(8), "Models", 8, "models"):
            time.sleep(seconds / 8)

if sys.argv[1:] == ["processes"]:
    joblib.Parallel(n_jobs=2)(joblib.delayed(work)("fit") for _ in range(2))
else:
    work(*sys.argv[1:2], *map(float, sys.argv[2:]))
print("done")
"""


def on_terminal(*code: str, cwd: Path) -> str:
    """Return what Python writes on a terminal, without colours."""
    command = ["script", "-qec", shlex.join([sys.executable, "-c", *code]), "/dev/null"]
    given = {"capture_output": True, "text": True, "check": True, "cwd": cwd}
    shown = subprocess.run(command, **given).stdout  # type: ignore[call-overload]
    return re.sub(r"\x1b\[[\d;]*m", "", shown)


def test_a_terminal_shows_a_bar_which_vanishes(tmp_path: Path) -> None:
    shown = on_terminal(WORK, "fit", cwd=tmp_path)
    # Each drawing erases the one before, and the end erases the last.
    *drawn, after = shown.split("\x1b[2K")
    assert after == "done\n" and all(line.count("\n") <= 3 for line in drawn)
    assert re.search(r"fit: Models ━\S* \d/8 [\d.]+ models/s, \d s left 0:00:0\d", "".join(drawn))


@pytest.mark.parametrize("title", ["", "processes"])
def test_nothing_is_shown_without_a_title_and_by_other_processes(
    title: str, tmp_path: Path
) -> None:
    assert on_terminal(WORK, title, cwd=tmp_path).split() == ["done"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_line_is_printed_after_twenty_seconds_without_a_terminal() -> None:
    command = [sys.executable, "-c", WORK, "fit", "24"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
    assert re.fullmatch(r"fit: Models \d/8 [\d.]+ models/s, \d+ s left \(2\d s\)\n", done.stderr), (
        done.stderr
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_notebook_cell_has_one_line(study_dir: Path) -> None:
    from tests.support.notebooks import Notebook  # the quick tests need no kernel

    fit = """
        import aam, biom, numpy as np
        X, y = biom.load_table("table.biom").to_dataframe(dense=True).T, np.arange(36)
        forest = aam.AAMRegressor(members="forest", repeats=2).fit(X, y)"""
    stopped = """
        with as_library(title="fit"):
            time.sleep(2.2)
            raise ValueError"""
    book = Notebook(
        textwrap.dedent(fit),
        f"import sys; sys.argv[1:] = ['fit']{WORK}work('fit')",
        f"import sys; sys.argv[1:] = ['processes']{WORK}",
        textwrap.dedent(stopped),
        "forest.set_params(verbose=0).fit(X, y);",
        folder=study_dir,
    )
    book.allow_errors = True
    book.execute()
    of_fit, twice, by_processes, failed, silent = (
        [
            output["data"]["text/plain"]
            for output in cell.outputs
            if output["output_type"] == "display_data"
        ]
        for cell in book.nb.cells
    )
    assert re.fullmatch(r"AAMRegressor\.fit: done in [\d min]+ s", *of_fit)
    bar = r'AAMRegressor\.fit: Forest <progress value="\d+" max="11"></progress> \d+/11 .*'
    assert any(re.fullmatch(bar, shown) for shown in book.shown)
    assert twice == ["fit: done in 3 s"] and failed == ["fit: stopped after 2 s"]
    assert "fit: done in 3 s" in book.shown
    assert by_processes == silent == []
