"""Verdicts in the launcher: what they ask for, where they are kept, when they are measured."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aam import __version__
from aam.model.attention import TORCH, Backend
from aam.stack.check import Plan as Check
from aam.stack.check import conclude, measure
from aam.stack.guard import VERDICT, Guard, Need, guarded
from aam.stack.verdict import from_json, to_json
from launcher import verdicts
from launcher.engines.native import here
from launcher.errors import Unavailable
from launcher.host import Host
from launcher.host_lines import verdict_lines
from launcher.plan.choose import Choice, choose
from launcher.plan.flags import required
from launcher.plan.layers import from_flags, merge
from launcher.plan.make import Here, make
from launcher.plan.measured import VARIABLE, Key, Measured, settle, variable, wanted
from launcher.plan.plan import Plan
from launcher.plan.request import parse
from tests import backends as emulated
from tests.backends import faulty
from tests.launcher.test_make import BUILT, CATALOG, PRETRAIN, decided, mi300a

__all__ = ["mi300a"]
CPU = torch.device("cpu")
KEY = Key("sha256:1", "gfx942", "6.10.5", __version__)


def document(*wrong: Backend, **key: str) -> dict[str, Any]:
    """A verdict as `aam check --json` prints it, with some backends replaced by faulty ones."""
    names = {backend.name: backend for backend in wrong}
    backends = tuple(names.get(backend.name, backend) for backend in TORCH)
    plan = Check(True, ("fp32", "bf16"), recomputed=True)
    said = json.loads(to_json(conclude(measure(backends, plan, CPU), quick=True)))
    return {**said, "key": {**KEY.plain(), **key}}


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    return document()


@pytest.fixture(scope="module")
def wrong() -> dict[str, Any]:
    return document(faulty(emulated.aotriton_08), faulty(emulated.first_mask, "flash"))


def flags(
    torch_version: str, measured: Measured, *words: str
) -> tuple[list[str], list[str], list[str]]:
    """Added words, decisions' sources, and warnings, for an AMD stack."""
    request = parse([*PRETRAIN, *words])
    faults = CATALOG.faults_of("amd", torch_version)
    settled, said, doubts = settle(faults, measured, request.words)
    added, decisions, findings = required(request, settled)
    sources = [decision.source for decision in (*said, *decisions)]
    return added, sources, [finding.cause for finding in (*doubts, *findings)]


MATH = ["--attn-implementation", "math"]
DISAGREE = "Catalog and measurement disagree"


def test_until_something_is_measured_the_catalog_is_believed() -> None:
    added, sources, warnings = flags("2.5.1", Measured(absent="nothing is kept"))
    assert added == [*MATH, "--no-gradient-checkpointing"]
    assert sources == ["catalog"] * 3
    assert warnings == []


def test_measurement_and_catalog_agree(wrong: Mapping[str, Any]) -> None:
    added, sources, warnings = flags("2.5.1", Measured(wrong, "/v.json"))
    assert added == MATH
    assert sources == ["/v.json", "measurement"]
    assert warnings == [DISAGREE]  # about checkpointing, which works here


def test_a_fault_that_the_catalog_does_not_know(wrong: Mapping[str, Any]) -> None:
    added, _, warnings = flags("2.7.1", Measured(wrong, "/v.json"))
    assert (added, warnings) == (MATH, [DISAGREE])


def test_a_fault_that_is_not_there(right: Mapping[str, Any]) -> None:
    added, _, warnings = flags("2.5.1", Measured(right, "/v.json"))
    assert (added, warnings) == ([], [DISAGREE, DISAGREE])
    assert flags("2.7.1", Measured(right, "/v.json")) == ([], ["/v.json"], [])


def test_both_sides_of_a_disagreement_are_told(right: Mapping[str, Any]) -> None:
    faults = CATALOG.faults_of("amd", "2.5.1")
    _, _, (first, _) = settle(faults, Measured(right, "/v.json"), ())
    assert "ignores the batch index" in first.evidence
    assert "auto right, flash right, mem_efficient cannot run, math right" in first.evidence
    assert first.remedy == "the measurement counts; --recheck makes it again"


def test_what_was_not_measured_stays_as_the_catalog_says(wrong: Mapping[str, Any]) -> None:
    cases = [case for case in wrong["cases"] if case["mask"] != "recomputed"]
    added, _, warnings = flags("2.5.1", Measured({**wrong, "cases": cases}, "/v.json"))
    assert added == [*MATH, "--no-gradient-checkpointing"]
    assert warnings == []


def test_recomputation_that_fails_is_avoided() -> None:
    found = document(faulty(emulated.Unrepeatable()))
    assert flags("2.7.1", Measured(found, "/v"))[0] == ["--no-gradient-checkpointing"]


def test_the_precision_of_the_run_counts() -> None:
    half = document(faulty(emulated.half_odd))
    for words, expected in (
        ((), []),
        (("--mixed-precision", "none"), []),
        (("--mixed-precision=bf16",), ["--attn-implementation", "flash"]),
        (("--mixed-precision", "auto"), ["--attn-implementation", "flash"]),
    ):
        assert flags("2.7.1", Measured(half, "/v"), *words)[0] == expected
    assert wanted(["--mixed_precision", "fp16"]) == ("fp32", "fp16")


def test_what_the_user_set_himself_stays(wrong: Mapping[str, Any]) -> None:
    words = ("--attn-implementation", "flash", "--gradient-checkpointing")
    added, _, warnings = flags("2.7.1", Measured(wrong, "/v"), *words)
    assert added == []
    assert "A choice that is known to go wrong here" in warnings


# --- from the launcher to the program


def planned(host: Host, measured: Measured | None, *words: str) -> Plan:
    request = parse([*PRETRAIN, "--image", "rocm62", *words])
    settings = merge([from_flags(request.own)])
    choice = choose(host, CATALOG, settings, BUILT, here())
    where = Here("/d", "/s/aam-7/1-n", "/home/u", False)
    return make(request, host, choice, CATALOG, settings, (), here(), where, measured)


def test_the_plan_hands_the_verdict_over(mi300a: Host, wrong: Mapping[str, Any]) -> None:
    plan = planned(mi300a, Measured(wrong, "/v.json"))
    assert plan.words[-2:] == tuple(MATH)
    assert decided(plan, "flag") == ["--attn-implementation math"]
    assert decided(plan, "verdict") == [
        "auto wrong (first mask for all), flash wrong (first mask for all), "
        "mem_efficient cannot run, math right"
    ]
    handed = dict(plan.variables)[VARIABLE]
    assert len(handed) < 10_000
    assert from_json(handed).faults("auto", ["fp32"]) == ("first mask for all",)
    assert VARIABLE not in dict(planned(mi300a, Measured(absent="no")).variables)
    assert not decided(planned(mi300a, None), "verdict")


def test_aam_believes_what_the_launcher_hands_over(wrong: Mapping[str, Any]) -> None:
    key = Key("sha256:1", "cpu", "none", __version__)
    environment = {VERDICT: variable({**wrong, "key": key.plain()})}
    found = guarded(Need("auto"), CPU, environment, Guard(TORCH, ("cpu",)))
    assert found.record["evidence"] == f"measured for this stack, {wrong['made']}"
    assert found.backends.masked.name == "math"
    environment[VERDICT] = variable(wrong)  # for a gfx942
    found = guarded(Need("auto"), CPU, environment, Guard(TORCH, ("cpu",)))
    assert "made for arch gfx942, here is cpu" in found.warnings[0]


# --- where they are kept


def test_a_verdict_is_found_under_its_key_alone(tmp_path: Path, right: Mapping[str, Any]) -> None:
    cache = tmp_path / "cache"
    assert verdicts.stored(KEY, cache).document is None
    assert verdicts.store(right, KEY, cache) is None
    found = verdicts.stored(KEY, cache)
    assert (found.document, found.where) == (right, str(verdicts.place(KEY, cache)))
    assert os.stat(found.where).st_mode & 0o777 == 0o600
    for change in ({"image": "sha256:2"}, {"arch": "gfx90a"}, {"driver": "6.8.5"}, {"aam": "9"}):
        other = verdicts.stored(replace(KEY, **change), cache)
        assert other.document is None, change
        assert other.findings == ()


def _swap(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.write_text("{"), "it is damaged"),
        (lambda path: path.write_text("[]"), "it is no verdict"),
        (lambda path: path.write_text('{"format": 7}'), "it has format 7, not 1"),
        (lambda path: path.write_text('{"format": 1, "cases": [{}]}'), "it is damaged"),
        (lambda path: path.chmod(0o666), "others may write it"),
        (lambda path: path.parent.chmod(0o777), "others may write it"),
        (_swap, "Too many levels of symbolic links"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "it is no file"),
        (
            lambda path: path.write_text(path.read_text().replace("6.10.5", "6.8.5")),
            "it is for another key",
        ),
    ],
)
def test_a_verdict_that_cannot_be_trusted_is_not_used(
    tmp_path: Path, right: Mapping[str, Any], harm: Callable[[Path], object], reason: str
) -> None:
    verdicts.store(right, KEY, tmp_path / "cache")
    harm(verdicts.place(KEY, tmp_path / "cache"))
    found = verdicts.stored(KEY, tmp_path / "cache")
    assert found.document is None
    assert reason in found.findings[0].evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_verdict_of_somebody_else_is_not_used(tmp_path: Path, right: Mapping[str, Any]) -> None:
    verdicts.store(right, KEY, tmp_path / "cache")
    os.chown(verdicts.place(KEY, tmp_path / "cache"), 12345, 12345)
    found = verdicts.stored(KEY, tmp_path / "cache")
    assert "it belongs to somebody else" in found.findings[0].evidence


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, right: Mapping[str, Any]) -> None:
    (tmp_path / "file").write_text("")
    unkept = verdicts.store(right, KEY, tmp_path / "file" / "cache")
    assert unkept is not None
    assert unkept.cause == "The verdict cannot be kept"


def test_the_doctor_shows_those_of_the_host(
    tmp_path: Path, mi300a: Host, right: Mapping[str, Any]
) -> None:
    assert "not yet measured" in next(verdict_lines(mi300a, []))
    here_ = {**right, "key": {**KEY.plain(), "driver": "kernel unknown"}}
    elsewhere = {**right, "key": {**KEY.plain(), "arch": "gfx90a"}}
    for number, held in enumerate((here_, elsewhere)):
        key = replace(KEY, image=str(number))
        verdicts.store({**held, "key": {**held["key"], "image": str(number)}}, key, tmp_path)
    (line,) = verdict_lines(mi300a, verdicts.of_host(mi300a, tmp_path))
    assert "auto right" in line
    assert "gfx942" in line


# --- how they are measured


def plan_of(*words: str) -> Plan:
    return Plan("native", sys.executable, words, (("PYTHONSAFEPATH", "1"),))


def test_a_real_check_is_kept_under_the_key_of_a_host(
    tmp_path: Path, mi300a: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    """The processor of this machine stands for the GPU of a host that cannot be had."""
    request = parse(PRETRAIN)
    choice = choose(mi300a, CATALOG, merge([from_flags(request.own)]), BUILT, here())
    key = verdicts.key_of(mi300a, choice, here())
    assert key is not None
    assert key.plain() == {**KEY.plain(), "driver": "kernel unknown"}
    found = verdicts.measure(plan_of("check", "--json", "--quick", "--device", "cpu"), key)
    assert (
        "measuring attention once for gfx942, driver kernel unknown, sha256:1"
        in capfd.readouterr().err
    )
    assert verdicts.store(found, key, tmp_path) is None
    kept = verdicts.stored(key, tmp_path)
    assert kept.document is not None
    assert from_json(json.dumps(kept.document)).identity["torch"] == torch.__version__


def test_a_check_that_refuses_stops_the_launch() -> None:
    with pytest.raises(Unavailable, match="The GPU does not compute: No GPU") as caught:
        verdicts.measure(plan_of(*verdicts.CHECK), KEY)
    assert "--no-check starts all the same" in str(caught.value)


def test_a_check_that_fails_otherwise_gives_no_verdict() -> None:
    with pytest.raises(ValueError, match="No such command"):
        verdicts.measure(plan_of("chekc"), KEY)
    with pytest.raises(ValueError, match="exit status 0"):
        verdicts.measure(plan_of("--version"), KEY)


def test_an_image_is_named_by_its_digest_or_its_file(tmp_path: Path, mi300a: Host) -> None:
    def chosen(**changes: Any) -> Choice:
        choice = choose(mi300a, CATALOG, merge([{}]), BUILT, here())
        assert choice.built is not None
        return dataclasses.replace(choice, built=replace(choice.built, **changes))

    sif = tmp_path / "a.sif"
    sif.write_text("one")
    first = verdicts.key_of(mi300a, chosen(digest=None, place=str(sif)), here())
    assert first is not None
    assert first.image.startswith("file:3-")
    sif.write_text("another")
    other = verdicts.key_of(mi300a, chosen(digest=None, place=str(sif)), here())
    assert other is not None
    assert other.image != first.image
    assert verdicts.key_of(mi300a, chosen(digest=None, place="aam:rocm63"), here()) is None
    native = dataclasses.replace(chosen(), engine="native", built=None, image=None)
    found = verdicts.key_of(mi300a, native, here())
    assert found is not None
    assert found.image == f"native:{torch.__version__}"
