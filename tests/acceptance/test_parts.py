"""Parts of the acceptance as child processes: each ends, with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aam.acceptance.part import AcceptancePart, Context, Evaluation, compared, run_part
from aam.acceptance.result import PartResult
from tests.support import acceptance_parts as made_up

ROOT = Path(__file__).parents[2]


def context(folder: Path) -> Context:
    return Context(folder / "run" / "part", folder, "run", "cpu", 0, True, 0.0)


def result(part: AcceptancePart, folder: Path, **reference: float) -> PartResult:
    return run_part(part, context(folder), part.limit, reference)


def test_a_part_is_compared_with_what_is_expected(tmp_path: Path) -> None:
    found = result(made_up.part(made_up.right), tmp_path)
    assert (found.verdict, found.summary) == ("as predicted", "Equal.")
    assert found.measured["value"] == found.expected["value"] == 2.0
    assert "what a library prints" in (tmp_path / "run/part/output.txt").read_text()
    assert result(made_up.part(made_up.wrong), tmp_path).verdict == "wrong"


@pytest.mark.parametrize(
    ("measure", "verdict", "sentence"),
    [
        (made_up.crash, "failed", "ended by SIGSEGV"),
        (made_up.bug, "failed", "RuntimeError: a bug in the part"),
        (made_up.no_gpu, "not possible here", "There is no GPU."),
        (made_up.no_tool, "failed", "No such file or directory"),
        (made_up.unlike_its_schema, "failed", "'many', not a number"),
    ],
)
def test_a_part_that_fails_gives_one_sentence(
    measure: object, verdict: str, sentence: str, tmp_path: Path
) -> None:
    found = result(made_up.part(measure), tmp_path)
    assert found.verdict == verdict
    assert sentence in found.summary
    assert "\n" not in found.summary


@pytest.mark.medium
def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    found = result(made_up.part(made_up.no_study), tmp_path)
    assert found.verdict == "failed"
    assert found.summary.startswith("`aam inspect` status 66")


@pytest.mark.medium
def test_a_gpu_that_hangs_is_ended_with_all_that_was_started(tmp_path: Path) -> None:
    began = time.monotonic()
    found = result(made_up.part(made_up.hang, limit=3.0), tmp_path)
    assert found.verdict == "failed"
    assert "3 s" in found.summary
    assert time.monotonic() - began < 40
    mark = f"{made_up.SLEEP}{context(tmp_path).folder}".encode()
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [line for line in lines if mark in line]


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted as root")
def test_a_part_that_fills_the_disk_leaves_room_for_the_others(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.acceptance import test_parts as t; "
        "from tests.support import acceptance_parts as m; folder = Path(sys.argv[1]); "
        "print(t.result(m.part(m.fill_disk), folder)); print(t.result(m.part(m.right), folder))"
    )
    mount = 'mount -t tmpfs -o size=8m none "$0" && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", code]
    done = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    full, after = done.stdout.splitlines()
    assert "No space left on device" in full
    assert "as predicted" in after


def test_speeds_are_compared_with_those_of_a_reference() -> None:
    fine = Evaluation("as predicted", "Fine.")
    assert compared(fine, {"fp32": 40.0}, {}) == fine
    assert compared(fine, {"fp32": 40.0}, {"fp32": 42.0}).outcome == "as predicted"
    assert compared(fine, {"fp32": 40.0, "bf16": 90.0}, {"fp32": 80.0, "bf16": 90.0}) == Evaluation(
        "slower", "Fine. fp32 is 0.50 times the reference."
    )
    assert compared(fine, {"fp32": 99.0}, {"fp32": 80.0}).outcome == "faster"
    wrong = Evaluation("wrong", "Wrong.")
    assert compared(wrong, {"fp32": 99.0}, {"fp32": 80.0}) == wrong
