"""`aam acceptance` and its file: parts that are left, budget, lock, reference, hostile files."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from aam.contract.errors import CannotCreate, DataError, Interrupted
from aam.contract.options.commands.measure import Acceptance
from aam.network.numerics.device import processor
from aam.stack import acceptance_run as runner
from aam.stack.acceptance_parts import AcceptancePart
from aam.stack.acceptance_run import (
    PAGE,
    SETTINGS,
    AcceptanceFile,
    ImageRun,
    PartResult,
    recommended,
    write_page,
)
from launcher.plan.settings import TUNABLE
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


@pytest.mark.nightly
def test_every_part_on_a_cpu(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "aam", "acceptance", "--output-dir", str(tmp_path)]
    more = ["--device", "cpu", "--minutes", "30"]
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([*argv, *more], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    found = verdicts(tmp_path)
    assert not {"failed", "wrong"} & set(found.values())
    assert len(found) == 9
    possible = {name for name, verdict in found.items() if verdict != "not possible here"}
    assert possible == set(found) - {"launch", "memory", "unified"}
    assert (tmp_path / runner.SETTINGS).is_file()
    assert "2 ranks: losses differ by up to" in (tmp_path / runner.PAGE).read_text()


# --- the file, the page and the settings


PART = PartResult("as predicted", "Fine.", 1.5, {"rates": {"fp32": 3.25}, "costs": []})
RUN = ImageRun("rocm63", "sha256:12", "2.7.1+rocm6.3", "apptainer", 1, "2026-11-23T17:00:00+00:00")
HOST: dict[str, Any] = {
    "gpus": ["AMD Instinct MI300A"], "arch": "gfx942", "torch": "2.7.1", "kernel": "5.14",
    "cpu": "x", "cores": 96, "memory": 1 << 39, "gpu_memory": [1 << 37], "used": [0],
    "settings": {},
}  # fmt: skip
CONTENT = AcceptanceFile("0.1.0", HOST, (replace(RUN, parts={"check": PART}),))


def test_a_second_image_and_a_second_node_are_runs_of_their_own() -> None:
    more = CONTENT.with_run(replace(RUN, image="rocm72")).with_run(replace(RUN, nodes=2))
    assert [run.title for run in more.runs] == ["rocm63", "rocm72", "rocm63, 2 nodes"]
    again = more.with_run(replace(RUN, nodes=2, parts={"nodes": PART}))
    assert [len(run.parts) for run in again.runs] == [1, 0, 1]


def test_names_of_hosts_users_and_folders_are_left_out(tmp_path: Path) -> None:
    home, node, user = Path.home(), platform.node(), getpass.getuser()
    text = f"'{tmp_path}/runs/x.biom' and {home}/y on {node}, ~/z/u.tsv, 3 GB/s"
    part = PartResult("failed", text, 1.0, {str(tmp_path / "key"): [text]})
    runner.write(tmp_path / "a.json", CONTENT.with_run(replace(RUN, parts={"check": part})))
    written = (tmp_path / "a.json").read_text()
    assert str(tmp_path) not in written
    assert str(home) + "/" not in written
    assert node not in written or len(node) < 3
    assert user == "root" or user not in written
    kept = runner.read(tmp_path / "a.json").runs[0].parts["check"].summary
    assert kept.startswith("'x.biom' and y on ")
    assert kept.endswith("u.tsv, 3 GB/s")


def plain(folder: Path) -> dict[str, Any]:
    runner.write(folder / "a.json", CONTENT)
    content: dict[str, Any] = json.loads((folder / "a.json").read_text())
    return content


def refused(folder: Path, content: Any, sign: bool = True) -> str:
    """Write a file as somebody who knows the checksum does; return why it is refused."""
    if sign:
        content.pop("sha256", None)
        content["sha256"] = runner.checksum(content)
    (folder / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        runner.read(folder / "a.json")
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_a_file_that_was_edited_or_is_of_another_schema_is_refused(tmp_path: Path) -> None:
    content = plain(tmp_path)
    content["runs"][0]["parts"]["check"]["verdict"] = "faster"
    assert "was edited" in refused(tmp_path, content, sign=False)
    assert "schema 2, aam" in refused(tmp_path, plain(tmp_path) | {"schema": 2})
    assert "damaged" in refused(tmp_path, [], sign=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"host": {"cpu": "\x1b[2Jcleared"}}, "control characters"),
        ({"host": {"\u202egnp.exe": "x" * 3000}}, "too long"),
        ({"host": {"memory": 10**30}}, "more than 63 bits"),
        ({"runs": [{"image": "a"}]}, "digest"),
        ({"runs": [vars(RUN), vars(RUN)]}, "twice"),
    ],
)
def test_hostile_content_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(tmp_path, plain(tmp_path) | change)


def test_a_page_escapes_what_a_file_holds_and_names_the_work_of_others(tmp_path: Path) -> None:
    text, busy = "<script>alert(1)</script>", "other processes use the CPU: load 1.4"
    shown = PartResult("wrong", text, 1.0, busy=busy)
    content = CONTENT.with_run(replace(RUN, image=text, parts={text: shown}))
    runner.write(tmp_path / "a.json", content)
    assert runner.read(tmp_path / "a.json") == content
    write_page(tmp_path, content, PARTS)
    written = (tmp_path / PAGE).read_text()
    assert text not in written
    assert f"&lt;script&gt;alert(1)&lt;/script&gt; While it was measured {busy}." in written


def with_settings(image: str, samples: float, gain: float, **values: object) -> ImageRun:
    chosen = {f"--{name.replace('_', '-')}": value for name, value in values.items()}
    speeds = {"values": chosen, "gain": gain, "samples": samples}
    row = {"setting": "as given", "predicted": 1 << 30, "allocated": 1 << 30,
           "reserved": 2 << 30, "rss": None, "failure": ""}  # fmt: skip
    parts = {"speed": speeds, "memory": {"runs": [row], "expandable": 1 << 30}}
    found = {name: PartResult("as predicted", "", 1.0, values) for name, values in parts.items()}
    return replace(RUN, image=image, parts=found)


def test_the_settings_of_the_fastest_image_are_those_that_the_launcher_takes(
    tmp_path: Path,
) -> None:
    assert recommended(CONTENT) is None
    slow = with_settings("rocm72", 700.0, 1.1, compile_model="auto")
    fast = with_settings("rocm63", 900.0, 1.3, mixed_precision="bf16", num_workers=4)
    write_page(tmp_path, CONTENT.with_run(slow).with_run(fast), PARTS)
    tuned = yaml.safe_load((tmp_path / SETTINGS).read_text())["tuned"]["gfx942"]
    assert tuned == {
        "options": {"mixed-precision": "bf16", "num-workers": 4},
        "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    }
    assert set(tuned["options"]) <= {*TUNABLE}
    slower = recommended(CONTENT.with_run(with_settings("rocm63", 900.0, 0.9, dropout=0)))
    assert slower is not None
    assert yaml.safe_load(slower)["tuned"]["gfx942"]["options"] == {}
