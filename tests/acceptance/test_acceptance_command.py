"""`aam acceptance`: parts that are left, time budget, lock, reference, and real parts on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aam.acceptance import runner
from aam.acceptance.parts import AcceptancePart
from aam.acceptance.runner import AcceptanceFile
from aam.contract.errors import CannotCreate, Interrupted
from aam.contract.options.commands.stack import Acceptance
from aam.numerics.device import processor
from tests.support import acceptance_parts as made_up
from tests.support.commands import aam

PARTS: dict[str, AcceptancePart] = {
    "check": made_up.part(made_up.right),
    "golden": made_up.part(made_up.crash),
    "unified": made_up.part(made_up.no_gpu),
    "nodes": made_up.part(made_up.right),
}
MENDED = PARTS | {"golden": made_up.part(made_up.right), "unified": made_up.part(made_up.wrong)}


def options(folder: Path, **more: object) -> Acceptance:
    return Acceptance(output_dir=folder, device="cpu", **more)  # type: ignore[arg-type]


def verdicts(folder: Path) -> dict[str, str]:
    run = runner.read(folder / runner.FILE).runs[0]
    return {name: found.verdict for name, found in run.parts.items()}


@pytest.mark.medium
def test_the_same_command_goes_on_with_what_failed_or_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.run(options(tmp_path, minutes=0.1), PARTS) == 0
    assert "Left: check, golden, unified" in capsys.readouterr().err
    assert runner.run(options(tmp_path), PARTS) == 1
    first = {"check": "as predicted", "golden": "failed", "unified": "not possible here"}
    assert verdicts(tmp_path) == first
    lines = capsys.readouterr().err.splitlines()
    shown = [line for line in lines if line.startswith((*PARTS, "  "))]
    assert (len(shown), max(map(len, shown)) <= 80) == (6, True)
    assert runner.run(options(tmp_path), MENDED) == 0
    assert verdicts(tmp_path) == first | {"golden": "as predicted"}
    assert "1 of 3 parts" in capsys.readouterr().err
    assert runner.run(options(tmp_path, parts=("unified",), overwrite=True), MENDED) == 1
    assert verdicts(tmp_path)["unified"] == "wrong"
    assert (tmp_path / runner.PAGE).is_file()


@pytest.mark.medium
def test_a_stop_request_of_a_job_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stop").write_text("requeue\n")
    monkeypatch.setenv("AAM_STOP_FILE", str(tmp_path / "stop"))
    with pytest.raises(Interrupted, match="3 parts left"):
        runner.run(options(tmp_path / "out"), PARTS)
    monkeypatch.delenv("AAM_STOP_FILE")
    assert runner.run(options(tmp_path / "out", parts=("check",)), PARTS) == 0


@pytest.mark.medium
def test_the_reference_is_compared_and_an_edited_file_is_refused(tmp_path: Path) -> None:
    one = {"check": PARTS["check"]}
    assert runner.run(options(tmp_path / "a"), one) == 0
    content = runner.read(tmp_path / "a" / runner.FILE)
    run = content.runs[0]
    part = run.parts["check"]
    faster = replace(part, measured=part.measured | {"rates": {"speed": 20.0}})
    reference = tmp_path / "reference.json"
    runner.write(reference, content.with_run(replace(run, parts={"check": faster})))
    assert runner.run(options(tmp_path / "b", reference=reference), one) == 0
    found = runner.read(tmp_path / "b" / runner.FILE).runs[0].parts["check"]
    assert (found.verdict, found.summary) == ("slower", "Equal. speed is 0.50 times the reference.")
    reference.write_text(json.dumps({"schema": 1, "runs": []}))
    words = ("--output-dir", tmp_path / "c", "--reference", reference)
    assert aam("acceptance", *words) == 65
    assert not (tmp_path / "c" / "parts").exists()


@pytest.mark.medium
def test_the_folder_of_another_host_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    here = {"arch": "cpu", "gpus": [], "cpu": processor()}
    content = AcceptanceFile("1.0", here | {"cpu": "another CPU"}, ())
    runner.write(tmp_path / runner.FILE, content)
    with pytest.raises(CannotCreate, match="another host"):
        runner.run(options(tmp_path), PARTS)
    assert not (tmp_path / "parts").exists()
    runner.write(tmp_path / runner.FILE, replace(content, host=here))
    assert runner.run(options(tmp_path, parts=("check",)), {"check": PARTS["check"]}) == 0


@pytest.mark.slow
def test_parts_on_a_cpu_and_the_folder_of_another_host(tmp_path: Path) -> None:
    chosen = ("--parts", "launch", "golden", "check", "--device", "cpu", "--size", "small")
    assert aam("acceptance", "--output-dir", tmp_path, *chosen) == 0
    content = runner.read(tmp_path / runner.FILE)
    assert (content.host["arch"], content.host["gpus"]) == ("cpu", [])
    assert list(content.runs[0].parts) == ["host", "launch", "check", "golden"]
    assert verdicts(tmp_path)["golden"] == verdicts(tmp_path)["check"] == "as predicted"
    other = replace(content, host=content.host | {"arch": "gfx942", "gpus": ["MI300A"]}, runs=())
    runner.write(tmp_path / runner.FILE, other)
    assert aam("acceptance", "--output-dir", tmp_path, "--parts", "host", "--device", "cpu") == 73


@pytest.mark.nightly
def test_every_part_on_a_cpu(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "aam", "acceptance", "--output-dir", str(tmp_path)]
    more = ["--device", "cpu", "--minutes", "30"]
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([*argv, *more], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    found = verdicts(tmp_path)
    assert not {"failed", "wrong"} & set(found.values())
    assert len(found) == 12
    possible = {name for name, verdict in found.items() if verdict != "not possible here"}
    assert possible == set(found) - {"launch", "memory", "unified"}
    assert (tmp_path / runner.SETTINGS).is_file()
    assert "2 ranks: losses differ by up to" in (tmp_path / runner.PAGE).read_text()
