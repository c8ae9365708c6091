"""Check reports in the launcher: effect on a plan, cache and measurement."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aam import __version__
from aam.contract.attention import computes
from aam.contract.check_report import VARIABLE, CheckReport, StackKey, compact, from_json, to_json
from aam.contract.errors import Unavailable
from aam.contract.options.device import AttnImplementation, DeviceOptions
from aam.model.attention import TORCH, Backend
from aam.numerics.backend_selection import BackendPolicy, choose_backends
from aam.numerics.check import CheckPlan, conclude, measure
from aam.numerics.check import CheckPlan as Check
from launcher import check_reports
from launcher.engines.native import detect_stack
from launcher.host.facts import Host
from launcher.host_table import report_lines
from launcher.plan.assembly import assemble_plan
from launcher.plan.attention import KnownReport, settle
from launcher.plan.choice import Choice
from launcher.plan.engine_plan import LaunchContext
from launcher.plan.flags import required
from launcher.plan.plan import Plan
from launcher.plan.request import parse
from launcher.plan.selection import choose
from launcher.plan.settings import from_flags, merge
from tests.launcher.test_plan import BUILT, CATALOG, PRETRAIN, decided, mi300a
from tests.support import faulty_backends as emulated
from tests.support.faulty_backends import faulty

__all__ = ["mi300a"]
CPU = torch.device("cpu")
KEY = StackKey("sha256:1", "gfx942", "6.10.5", __version__)
ON_CPU = StackKey("sha256:1", "cpu", "none", __version__)
"""The key for the processor of this machine, on which `aam` uses a report."""


def report(*wrong: Backend, key: StackKey = KEY) -> CheckReport:
    """The report of `aam check` with some backends replaced by faulty ones."""
    names = {backend.name: backend for backend in wrong}
    backends = tuple(names.get(backend.name, backend) for backend in TORCH)
    plan = Check(True, ("fp32", "bf16"), recomputed=True)
    return replace(conclude(measure(backends, plan, CPU), quick=True), key=key)


@pytest.fixture(scope="module")
def right() -> CheckReport:
    return report()


@pytest.fixture(scope="module")
def wrong() -> CheckReport:
    return report(faulty(emulated.aotriton_08), faulty(emulated.first_mask, "flash"))


def flags(
    torch_version: str, known: KnownReport, *words: str
) -> tuple[list[str], list[str], list[str]]:
    """Added words, decisions' sources, and warnings, for an AMD stack."""
    request = parse([*PRETRAIN, *words])
    faults = CATALOG.faults_of("amd", torch_version)
    left, measured, doubts = settle(faults, known, request, "gfx942")
    added, decisions, findings = required(request, left)
    sources = [decision.source for decision in (*measured, *decisions)]
    return added, sources, [finding.cause for finding in (*doubts, *findings)]


MATH = ["--attn-implementation", "math"]
DISAGREE = "Catalog and measurement disagree"


def test_the_catalog_counts_until_something_is_measured() -> None:
    added, sources, warnings = flags("2.5.1", KnownReport(absent="nothing is kept"))
    assert added == [*MATH, "--no-gradient-checkpointing"]
    assert sources == ["catalog"] * 3
    assert warnings == []


def test_a_measured_stack_gets_no_flag_for_attention(
    right: CheckReport, wrong: CheckReport
) -> None:
    """`aam` selects from the report; a flag would be a second decision."""
    for found, version, disagreements in (
        (wrong, "2.5.1", 1),  # about checkpointing, which works here
        (wrong, "2.7.1", 1),  # a fault that the catalog does not list
        (right, "2.5.1", 2),
        (right, "2.7.1", 0),
    ):
        added, sources, warnings = flags(version, KnownReport(found, "/v.json"))
        assert added == []
        assert sources == ["/v.json"] * 2
        assert warnings == [DISAGREE] * disagreements


def test_a_disagreement_shows_both_sides(right: CheckReport) -> None:
    faults = CATALOG.faults_of("amd", "2.5.1")
    known = KnownReport(right, "/v.json")
    _, _, (first, _) = settle(faults, known, parse(PRETRAIN), "gfx942")
    assert "ignores the batch index" in first.evidence
    assert "auto right, flash right, mem_efficient cannot run, math right" in first.evidence
    assert first.remedy == "the measurement counts; --recheck repeats it"


def test_the_catalog_counts_for_what_was_not_measured(wrong: CheckReport) -> None:
    cases = tuple(case for case in wrong.cases if case.mask != "recomputed")
    added, _, warnings = flags("2.5.1", KnownReport(replace(wrong, cases=cases), "/v.json"))
    assert added == ["--no-gradient-checkpointing"]
    assert warnings == []


# --- the choice of a stack


def test_a_stack_that_failed_its_check_is_passed_over(
    tmp_path: Path, mi300a: Host, right: CheckReport
) -> None:
    """The newest image has a report without a correct backend, of this arch and this driver."""
    built = tuple(replace(b, digest=f"sha256:{n}") for n, b in enumerate(BUILT))
    useless = report(*(faulty(emulated.ignoring, backend.name) for backend in TORCH))

    def chosen(**asked: str) -> Choice:
        catalog = check_reports.with_failures(CATALOG, mi300a, built, tmp_path)
        settings = merge([from_flags({f"--{key}": value for key, value in asked.items()})])
        return choose(mi300a, catalog, settings, built, detect_stack())

    newest = chosen()
    key = check_reports.key_of(mi300a, newest, detect_stack())
    assert key is not None
    assert newest.image is not None
    check_reports.store(replace(right, key=key), key, tmp_path)
    assert chosen().image == newest.image
    check_reports.store(replace(useless, key=key), key, tmp_path)
    other = chosen()
    assert other.image is not None
    assert other.image.name not in (newest.image.name, "cpu")
    (warning,) = (f for f in other.findings if "aam check failed" in f.cause)
    assert warning.evidence.startswith(f"{newest.image.name} on gfx942: no correct attention")
    with pytest.raises(Unavailable, match="aam check failed with it on gfx942"):
        chosen(image=newest.image.name)
    for change in ({"arch": "gfx90a"}, {"driver": "1"}):  # of another GPU or driver
        elsewhere = replace(key, **change)
        check_reports.place(key, tmp_path).unlink(missing_ok=True)
        check_reports.store(replace(useless, key=elsewhere), elsewhere, tmp_path)
        assert chosen().image == newest.image


def test_a_stack_with_one_correct_precision_computes(wrong: CheckReport) -> None:
    assert computes(wrong)
    half = report(*(faulty(emulated.half_odd, backend.name) for backend in TORCH))
    assert computes(half)  # fp32 is right


# --- from the launcher to the program


def planned(host: Host, known: KnownReport | None, *words: str) -> Plan:
    request = parse([*PRETRAIN, "--image", "rocm62", *words])
    settings = merge([from_flags(request.launcher_options)])
    choice = choose(host, CATALOG, settings, BUILT, detect_stack())
    where = LaunchContext("/d", "/s/aam-7/1-n", "/home/u", False)
    return assemble_plan(request, host, choice, CATALOG, settings, (), detect_stack(), where, known)


FAULTY: dict[str, tuple[Backend, ...]] = {
    "none": (),
    "auto": (faulty(emulated.first_mask),),
    "auto and flash": (faulty(emulated.aotriton_08), faulty(emulated.first_mask, "flash")),
    "recomputed": (faulty(emulated.Unrepeatable()),),
    "bf16": (faulty(emulated.half_odd),),
    "math": (faulty(emulated.ignoring, "math"),),
}
FP32 = CheckPlan(True, ("fp32",))
BF16 = CheckPlan(True, ("fp32", "bf16"))
COMMANDS: tuple[tuple[tuple[str, ...], AttnImplementation, CheckPlan], ...] = (
    ((), "auto", FP32),
    (("--attn-implementation", "math"), "math", FP32),
    (("--attn_implementation=flash",), "flash", FP32),
    (("--mixed-precision=bf16",), "auto", BF16),
    (("--mixed-precision", "auto"), "auto", BF16),
    (("--gradient-checkpointing",), "auto", replace(FP32, recomputed=True)),
    (("--gradient-checkpointing", "--no-gradient-checkpointing"), "auto", FP32),
)


@pytest.mark.parametrize("fault", FAULTY)
def test_explain_shows_the_backends_that_aam_selects(mi300a: Host, fault: str) -> None:
    shown_to_aam = report(*FAULTY[fault], key=ON_CPU)
    known = KnownReport(replace(shown_to_aam, key=KEY), "/v.json")
    for words, requested, plan in COMMANDS:
        (shown,) = decided(planned(mi300a, known, *words), "attention")
        environment = {VARIABLE: to_json(compact(shown_to_aam), brief=True)}
        options = DeviceOptions(attn_implementation=requested)
        policy = BackendPolicy(TORCH, ("cpu",))
        selected = choose_backends(options, plan, CPU, environment, policy)
        assert selected.record["evidence"] == f"measured for this stack, {shown_to_aam.made}"
        plain, masked = selected.backends.plain.name, selected.backends.masked.name
        expected = plain if plain == masked else f"{plain}, and {masked} with masks"
        assert shown == expected, (fault, words)


def test_the_plan_hands_the_report_over(mi300a: Host, wrong: CheckReport) -> None:
    plan = planned(mi300a, KnownReport(wrong, "/v.json"))
    assert not set(MATH) & set(plan.argv)
    assert decided(plan, "flag") == []
    assert decided(plan, "attention") == ["math"]
    assert decided(plan, "aam check") == [
        "auto wrong (first mask for all), flash wrong (first mask for all), "
        "mem_efficient cannot run, math right"
    ]
    handed = dict(plan.variables)[VARIABLE]
    assert len(handed) < 10_000
    assert from_json(handed).faults("auto", ["fp32"]) == ("first mask for all",)
    assert VARIABLE not in dict(planned(mi300a, KnownReport(absent="no")).variables)
    assert not decided(planned(mi300a, None), "aam check")


def test_a_refusal_of_aam_is_shown_before_the_start(mi300a: Host) -> None:
    useless = report(*(faulty(emulated.ignoring, backend.name) for backend in TORCH))
    plan = planned(mi300a, KnownReport(useless, "/v.json"))
    (finding,) = (f for f in plan.findings if f.cause == "aam will refuse")
    assert "No attention backend computes correctly on this device" in finding.evidence


def test_aam_refuses_a_report_of_another_gpu(wrong: CheckReport) -> None:
    found = choose_backends(
        DeviceOptions(), FP32, CPU, {VARIABLE: to_json(wrong)}, BackendPolicy(TORCH, ("cpu",))
    )
    assert "is for arch gfx942, and this stack has cpu" in found.warnings[0]


# --- where they are kept


def test_a_report_is_found_under_its_key_alone(tmp_path: Path, right: CheckReport) -> None:
    cache = tmp_path / "cache"
    assert check_reports.stored(KEY, cache).report is None
    assert check_reports.store(right, KEY, cache) is None
    found = check_reports.stored(KEY, cache)
    assert (found.report, found.source) == (right, str(check_reports.place(KEY, cache)))
    assert os.stat(found.source).st_mode & 0o777 == 0o600
    for change in ({"image": "sha256:2"}, {"arch": "gfx90a"}, {"driver": "6.8.5"}, {"aam": "9"}):
        other = check_reports.stored(replace(KEY, **change), cache)
        assert other.report is None, change
        assert other.findings == ()


def _swap(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.write_text("{"), "A damaged check report"),
        (lambda path: path.write_text("[]"), "A damaged check report"),
        (lambda path: path.write_text('{"format": 7}'), "format 7, this program reads 1"),
        (lambda path: path.write_text('{"format": 1, "cases": [{}]}'), "A damaged check report"),
        (lambda path: path.chmod(0o666), "others may write it"),
        (lambda path: path.parent.chmod(0o777), "others may write it"),
        (_swap, "Too many levels of symbolic links"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "it is not a regular file"),
        (
            lambda path: path.write_text(path.read_text().replace("6.10.5", "6.8.5")),
            "it is for another key",
        ),
    ],
)
def test_a_report_that_cannot_be_trusted_is_not_used(
    tmp_path: Path, right: CheckReport, harm: Callable[[Path], object], reason: str
) -> None:
    check_reports.store(right, KEY, tmp_path / "cache")
    harm(check_reports.place(KEY, tmp_path / "cache"))
    found = check_reports.stored(KEY, tmp_path / "cache")
    assert found.report is None
    assert reason in found.findings[0].evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_report_of_another_user_is_not_used(tmp_path: Path, right: CheckReport) -> None:
    check_reports.store(right, KEY, tmp_path / "cache")
    os.chown(check_reports.place(KEY, tmp_path / "cache"), 12345, 12345)
    found = check_reports.stored(KEY, tmp_path / "cache")
    assert "it belongs to another user" in found.findings[0].evidence


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, right: CheckReport) -> None:
    (tmp_path / "file").write_text("")
    unkept = check_reports.store(right, KEY, tmp_path / "file" / "cache")
    assert unkept is not None
    assert unkept.cause == "The check report cannot be stored"


def test_the_doctor_shows_those_of_the_host(
    tmp_path: Path, mi300a: Host, right: CheckReport
) -> None:
    assert "not yet measured" in next(report_lines(mi300a, []))
    for number, change in enumerate(({"driver": "kernel unknown"}, {"arch": "gfx90a"})):
        key = replace(KEY, image=str(number), **change)
        check_reports.store(replace(right, key=key), key, tmp_path)
    (line,) = report_lines(mi300a, check_reports.of_host(mi300a, tmp_path))
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
    choice = choose(
        mi300a, CATALOG, merge([from_flags(request.launcher_options)]), BUILT, detect_stack()
    )
    key = check_reports.key_of(mi300a, choice, detect_stack())
    assert key is not None
    assert key == replace(KEY, driver="kernel unknown")
    found = check_reports.measure(plan_of("check", "--json", "--quick", "--device", "cpu"), key)
    assert (
        "measuring attention once for gfx942, driver kernel unknown, sha256:1"
        in capfd.readouterr().err
    )
    assert check_reports.store(found, key, tmp_path) is None
    kept = check_reports.stored(key, tmp_path)
    assert kept.report is not None
    assert kept.report.identity["torch"] == torch.__version__


def test_a_check_that_refuses_stops_the_launch() -> None:
    with pytest.raises(Unavailable, match="The GPU does not compute: No GPU") as caught:
        check_reports.measure(plan_of(*check_reports.check_command("amd").argv), KEY)
    assert "--no-check starts all the same" in str(caught.value)


def test_a_check_that_fails_otherwise_gives_no_report() -> None:
    with pytest.raises(ValueError, match="No such command"):
        check_reports.measure(plan_of("chekc"), KEY)
    with pytest.raises(ValueError, match="exit status 0"):
        check_reports.measure(plan_of("--version"), KEY)


def test_an_image_is_named_by_its_digest_or_its_file(tmp_path: Path, mi300a: Host) -> None:
    def chosen(**changes: Any) -> Choice:
        choice = choose(mi300a, CATALOG, merge([{}]), BUILT, detect_stack())
        assert choice.built is not None
        return dataclasses.replace(choice, built=replace(choice.built, **changes))

    sif = tmp_path / "a.sif"
    sif.write_text("one")
    first = check_reports.key_of(mi300a, chosen(digest=None, place=str(sif)), detect_stack())
    assert first is not None
    assert first.image.startswith("file:3-")
    sif.write_text("another")
    other = check_reports.key_of(mi300a, chosen(digest=None, place=str(sif)), detect_stack())
    assert other is not None
    assert other.image != first.image
    assert (
        check_reports.key_of(mi300a, chosen(digest=None, place="aam:rocm63"), detect_stack())
        is None
    )
    native = dataclasses.replace(chosen(), engine="native", built=None, image=None)
    found = check_reports.key_of(mi300a, native, detect_stack())
    assert found is not None
    assert found.image == f"native:{torch.__version__}"
