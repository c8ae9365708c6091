"""Check reports in plans: flags, disagreements with the catalog, stacks that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aam import __version__
from aam.contract.attention import computes
from aam.contract.check_report import VARIABLE, CheckReport, StackKey, compact, from_json, to_json
from aam.contract.errors import Unavailable
from aam.contract.options.device import AttnImplementation, DeviceOptions
from aam.model.attention import TORCH, Backend
from aam.numerics.backend_selection import BackendPolicy, choose_backends
from aam.numerics.check import CheckPlan
from launcher import check_reports
from launcher.engines.native import detect_stack
from launcher.host.facts import Host
from launcher.plan.assembly import assemble_plan, required
from launcher.plan.attention import KnownReport, settle
from launcher.plan.plan import Plan
from launcher.plan.request import parse
from launcher.plan.selection import Choice, choose
from launcher.plan.settings import from_flags, merge
from tests.launcher.test_plan import BUILT, CATALOG, PRETRAIN, decided, mi300a
from tests.support import faulty_backends as emulated
from tests.support.check_reports import CPU, KEY, report
from tests.support.decisions import inputs_of
from tests.support.faulty_backends import faulty

__all__ = ["mi300a"]
ON_CPU = StackKey("sha256:1", "cpu", "none", __version__)
"""The key for the processor of this machine, on which `aam` uses a report."""


def flags(
    torch_version: str, known: KnownReport, *args: str
) -> tuple[list[str], list[str], list[str]]:
    """Added arguments, the sources of decisions, and warnings, for an AMD stack."""
    request = parse([*PRETRAIN, *args])
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
    correct_report: CheckReport, faulty_report: CheckReport
) -> None:
    """`aam` selects from the report; a flag would be a second decision."""
    for found, version, disagreements in (
        (faulty_report, "2.5.1", 1),  # about checkpointing, which works here
        (faulty_report, "2.7.1", 1),  # a fault that the catalog does not list
        (correct_report, "2.5.1", 2),
        (correct_report, "2.7.1", 0),
    ):
        added, sources, warnings = flags(version, KnownReport(found, "/v.json"))
        assert added == []
        assert sources == ["/v.json"] * 2
        assert warnings == [DISAGREE] * disagreements


def test_a_disagreement_shows_both_sides(correct_report: CheckReport) -> None:
    faults = CATALOG.faults_of("amd", "2.5.1")
    known = KnownReport(correct_report, "/v.json")
    _, _, (first, _) = settle(faults, known, parse(PRETRAIN), "gfx942")
    assert "ignores the batch index" in first.evidence
    assert "auto right, flash right, mem_efficient cannot run, math right" in first.evidence
    assert first.remedy == "the measurement counts; --recheck repeats it"


def test_the_catalog_counts_for_what_was_not_measured(faulty_report: CheckReport) -> None:
    cases = tuple(case for case in faulty_report.cases if case.mask != "recomputed")
    added, _, warnings = flags("2.5.1", KnownReport(replace(faulty_report, cases=cases), "/v.json"))
    assert added == ["--no-gradient-checkpointing"]
    assert warnings == []


# --- the choice of a stack


def test_a_stack_that_failed_its_check_is_passed_over(
    tmp_path: Path, mi300a: Host, correct_report: CheckReport
) -> None:
    """The newest image has a report without a correct backend, of this arch and this driver."""
    built = tuple(replace(b, digest=f"sha256:{n}") for n, b in enumerate(BUILT))
    useless = report(*(faulty(emulated.ignoring, backend.name) for backend in TORCH))

    def chosen(**given: str) -> Choice:
        catalog = check_reports.with_reports(CATALOG, mi300a, built, tmp_path)
        settings = merge([from_flags({f"--{key}": value for key, value in given.items()})])
        parts: dict[str, Any] = {"settings": settings, "built": built, "native": detect_stack()}
        return choose(inputs_of(mi300a, catalog=catalog, **parts))

    newest = chosen()
    key = check_reports.key_of(mi300a, newest, detect_stack())
    assert key is not None
    assert newest.image is not None
    check_reports.store(replace(correct_report, key=key), key, tmp_path)
    measured = chosen().image
    assert measured == replace(newest.image, measured=("gfx942",))
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


def test_a_stack_with_one_correct_precision_computes(faulty_report: CheckReport) -> None:
    assert computes(faulty_report)
    half = report(*(faulty(emulated.half_odd, backend.name) for backend in TORCH))
    assert computes(half)  # fp32 is right


# --- from the launcher to the program


def planned(host: Host, known: KnownReport | None, *args: str) -> Plan:
    request = parse([*PRETRAIN, "--image", "rocm62", *args])
    inputs = inputs_of(host, request, built=BUILT, native=detect_stack())
    return assemble_plan(inputs, choose(inputs), known)


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
    for args, requested, plan in COMMANDS:
        (shown,) = decided(planned(mi300a, known, *args), "attention")
        environment = {VARIABLE: to_json(compact(shown_to_aam), brief=True)}
        options = DeviceOptions(attn_implementation=requested)
        policy = BackendPolicy(TORCH, ("cpu",))
        selected = choose_backends(options, plan, CPU, environment, policy)
        assert selected.record["evidence"] == f"measured for this stack, {shown_to_aam.made}"
        plain, masked = selected.backends.plain.name, selected.backends.masked.name
        expected = plain if plain == masked else f"{plain}, and {masked} with masks"
        assert shown == expected, (fault, args)


def test_the_plan_hands_the_report_over(mi300a: Host, faulty_report: CheckReport) -> None:
    plan = planned(mi300a, KnownReport(faulty_report, "/v.json"))
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


def test_aam_refuses_a_report_of_another_gpu(faulty_report: CheckReport) -> None:
    found = choose_backends(
        DeviceOptions(),
        FP32,
        CPU,
        {VARIABLE: to_json(faulty_report)},
        BackendPolicy(TORCH, ("cpu",)),
    )
    assert "is for arch gfx942, and this stack has cpu" in found.warnings[0]
