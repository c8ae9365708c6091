"""The attention backends of a run: the catalog's faults until `aam check` has measured. Pure.

`aam` alone selects the backends. The launcher passes it the check report, and shows in `explain`
what it will select by calling the same function of the contract. Where the report and the catalog
disagree, the report counts and both are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aam.contract.attention import BACKENDS, reported_status, select_backends
from aam.contract.check_report import WRONG, CheckReport, summary
from aam.contract.errors import AamError
from aam.contract.options import build
from aam.contract.options.device import SpeedOptions
from aam.contract.precision import choose_precision, dtypes_of
from launcher.findings import Decision, Finding
from launcher.plan.catalog import StackFault
from launcher.plan.request import Request

ATTENTION = "--attn-implementation"
CHECKPOINTING = "--no-gradient-checkpointing"


@dataclass(frozen=True)
class KnownReport:
    """The check report of a stack, or the reason why there is none.

    Attributes:
        report: None if there is none.
        source: its file, or where it was measured.
        absent: why there is none.
        failure: why the stack cannot compute on the GPU; "" if it can.
        findings: warnings about stored reports that are not used.
    """

    report: CheckReport | None = None
    source: str = ""
    absent: str = ""
    failure: str = ""
    findings: tuple[Finding, ...] = ()


def settle(
    faults: Sequence[StackFault], known: KnownReport, request: Request, arch: str
) -> tuple[list[StackFault], list[Decision], list[Finding]]:
    """Return the faults that still count, the decisions, and where catalog and report disagree.

    Args:
        faults: of the catalog, for this stack.
        known: the report, if there is one.
    """
    report, findings = known.report, list(known.findings)
    if report is None:
        flags = ", ".join(" ".join(fault.flags) for fault in faults)
        catalog = f"requires {flags}" if faults else "lists no fault of this stack"
        why = f"{known.absent}; the catalog {catalog}"
        return list(faults), [Decision("aam check", "not yet measured", why, "catalog")], findings
    measured = {ATTENTION: _wrong(report, "auto", recomputed=False)}
    if report.recomputed:
        measured[CHECKPOINTING] = _wrong(report, _without_recomputation(report), recomputed=True)
    for flag, wrong in measured.items():
        listed = [fault for fault in faults if fault.flags[0] == flag]
        if bool(listed) != wrong:
            findings.append(_disagreement(listed, flag, report))
    left = [fault for fault in faults if fault.flags[0] not in measured]
    why = f"measured {report.made} for {report.key}"
    decisions = [Decision("aam check", summary(report), why, known.source)]
    try:
        selected = _selection(report, request, arch)
    except AamError as error:  # `aam` ends with the same sentence
        findings.append(Finding("warning", "aam will refuse", str(error).rstrip(".")))
    else:
        why = "selected by aam from this report"
        decisions.append(Decision("attention", selected, why, known.source))
    return left, decisions, findings


def _selection(report: CheckReport, request: Request, arch: str) -> str:
    """Return the backends that `aam` selects for a command."""
    speed = build(SpeedOptions, request.given)
    precision = choose_precision(speed.mixed_precision, arch)
    status_of = reported_status(report, dtypes_of(precision), speed.recomputes)
    return str(select_backends(request.value(ATTENTION), BACKENDS, status_of, arch))


def _without_recomputation(report: CheckReport) -> str:
    """Return the backend that computes where there are masks; "auto" where none is right."""
    try:
        status_of = reported_status(report, report.dtypes)
        return select_backends("auto", BACKENDS, status_of, "").masked
    except AamError:
        return "auto"


def _wrong(report: CheckReport, backend: str, recomputed: bool) -> bool:
    cases = report.of(backend, report.dtypes)
    return any(c.outcome in WRONG for c in cases if (c.mask == "recomputed") == recomputed)


def _disagreement(listed: Sequence[StackFault], flag: str, report: CheckReport) -> Finding:
    what = "recomputation" if flag == CHECKPOINTING else "attention"
    evidence = f"{what} is wrong, which the catalog does not list"
    if listed:
        evidence = f"the catalog lists that {listed[0].reason} ({listed[0].source})"
    evidence += f"; measured {report.made}: {summary(report)}"
    remedy = "the measurement counts; --recheck repeats it"
    return Finding("warning", "Catalog and measurement disagree", evidence, remedy)
