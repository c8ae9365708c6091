"""`aam-launch explain`: print every decision with its reason and source, as text or JSON."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aam.contract.errors import AamError, UsageError, printable
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.records import read_json
from launcher.commands import print_json, show
from launcher.engines import command, shell_line
from launcher.findings import Decision, entries
from launcher.host.facts import Host
from launcher.launch import gather, plan_launch, require_inputs
from launcher.plan.assembly import RECORD, Plan
from launcher.plan.decision import assess, selected
from launcher.plan.environment import shown
from launcher.plan.inputs import NATIVE, request_of
from launcher.system import quoted

WHOLE = "--dry-run instead of explain prints the whole line"

SHOWN = 4  # members of a list; of a longer one the first and the last
ORDER = ("left out", "image", "engine", "not used", "engine option", "GPU selection", "device",
         "aam check", "flag", "mount", "variable", "kept out")  # fmt: skip
MAX_REPORTS = 200
"""Check reports that are read; one of a stack has about 20 kB."""


@dataclass(frozen=True)
class Explain:
    """Show every decision about a command, its reason and its source; run nothing.

    Examples:
        aam-launch explain pretrain --table study.biom --tree tree.nwk --output-dir run
        aam-launch explain pretrain --host node.tar
    """


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the decisions for this host, or for a captured one."""
    if not argv:
        raise UsageError("Nothing to explain", "no command is named", "write `explain train ...`")
    request = request_of(launcher_options, argv, incomplete=True)
    capture, printed = launcher_options.get("--host"), "--json" in launcher_options
    if capture is None:
        require_inputs(request)
    inputs = gather(request, capture or Path("/"))
    assessment = assess(inputs)
    try:
        host, plan = plan_launch(inputs)
    except AamError as refusal:
        # What was found on the way to the refusal, which the program prints.
        host, decisions = inputs.host, [*selected(assessment.hardware), *assessment.decisions()]
        if printed:
            print_json({"host": facts(host), "decisions": msgspec.to_builtins(decisions)})
        else:
            show(*heading(host), *decision_lines(decisions))
        raise refusal
    decisions = assessment.decisions(plan.image or NATIVE)
    plan = replace(plan, choices=(*plan.choices, *decisions))
    if CHECK_REPORTS in plan.variables and host.live:
        # What `aam check` found last for the stack of the plan; `aam` alone decides by it.
        folder, arch = Path(plan.variables[CHECK_REPORTS]), plan.gpus[0].arch
        why = f"nothing is kept for this stack on {arch}; aam measures before the first run"
        if plan.image and plan.digest is None:
            why = "the image has no digest, so aam measures before each run"
        check = Decision("aam check", "not yet measured", why, str(folder))
        for report in stored_reports(folder):
            native = report.image.startswith("native:")
            if report.arch == arch and (report.image == plan.digest if plan.image else native):
                why = f"measured {report.made} for {report.stack}"
                check = Decision("aam check", report.verdict, why, report.file)
                break
        plan = replace(plan, choices=(*plan.choices, check))
    assigned = (replace(v, value=shown(v.name, v.value)) for v in plan.assigned)
    plan = replace(plan, assigned=tuple(assigned))
    if printed:
        print_json(content(host, plan))
    else:
        show(*text(host, plan))
    return 0


class StoredReport(msgspec.Struct, frozen=True):
    """What a report of `aam check` states, as `aam` wrote it."""

    file: str  # its place
    image: str  # digest of the image; "native:..." without an image
    arch: str  # architecture of the GPU
    stack: str  # image, architecture, driver and version of `aam` in words
    made: str  # time in UTC
    verdict: str  # the result for each attention backend, on one line


def stored_reports(folder: Path) -> list[StoredReport]:
    """Return the check reports in a folder, the latest first; other files are left out."""
    reports = []
    latest = sorted(folder.glob("*.json"), key=lambda file: file.lstat().st_mtime, reverse=True)
    for file in latest[:MAX_REPORTS]:
        with suppress(AamError):
            report = read_json(file, _Report, "check report")
            texts = (report.key.image, report.key.arch, report.stack, report.made, report.verdict)
            reports.append(StoredReport(str(file), *(printable(text, 300) for text in texts)))
    return sorted(reports, key=lambda report: report.made, reverse=True)


class _Key(msgspec.Struct):
    image: str
    arch: str


class _Report(msgspec.Struct):
    key: _Key
    stack: str
    made: str
    verdict: str


def text(host: Host, plan: Plan) -> list[str]:
    """Return the lines of the explanation for a terminal."""
    lines = [*heading(host), *decision_lines(plan.decisions)]
    lines += [f"{finding.severity:<13} {finding}" for finding in plan.findings]
    lines += ["", f"would run ({WHOLE})", "  "]
    # The command line broken at its options, the record left out.
    for argument in command(plan):
        name = argument.partition("=")[0]
        assigns = "=" in argument.partition("/")[0]
        breaks = argument.startswith("-") or assigns or argument == plan.place
        if breaks and lines[-1].split()[-1:] != ["--mount"]:
            lines.append("     ")
        lines[-1] += " " + (f"{name}=..." if name == RECORD else quoted(argument))
    return lines


def heading(host: Host) -> list[str]:
    """Return the facts of a host that every decision depends on."""
    captured = "" if host.live else f" ({host.root})"
    lines = [f"{'host':<13} {host.name}, Linux {host.kernel}{captured}"]
    if host.slurm:
        lines.append(f"{'':<13} Slurm job {host.slurm.job}")
    for driver in host.drivers:
        version = driver.version or "of unknown version"
        lines.append(f"{'driver':<13} {driver.vendor} {version} ({driver.source})")
    return lines


def decision_lines(decisions: Sequence[Decision]) -> list[str]:
    """Return decisions by subject; those with one reason share its line."""

    def rank(decision: Decision) -> int:
        if decision.subject.endswith(" GPUs"):  # of each vendor, before everything else
            return -1
        return ORDER.index(decision.subject) if decision.subject in ORDER else len(ORDER)

    lines, subject = [], ""
    ordered = sorted(decisions, key=rank)
    for (about, why, source), same in groupby(ordered, key=lambda d: (d.subject, d.why, d.source)):
        values = [decision.value for decision in same]
        for value in [shortened(values)] if about == "device" else values:
            lines.append(f"{about if about != subject else '':<13} {value}")
            subject = about
        lines.append(f"{'':<15}{why} [{source}]")
    return lines


def content(host: Host, plan: Plan) -> dict[str, object]:
    """Return the explanation for programs."""
    shown_elsewhere = ("choices", "findings", "assigned")
    parts = {name: msgspec.to_builtins(getattr(plan, name))
             for name in plan.__struct_fields__ if name not in shown_elsewhere}  # fmt: skip
    return {
        "host": facts(host),
        "decisions": msgspec.to_builtins(plan.decisions),
        "findings": entries(plan.findings),
        "plan": {**parts, "variables": plan.variables},
        "command_line": shell_line(plan),
    }


def facts(host: Host) -> dict[str, object]:
    """Return the facts of a host without its environment, which may hold secrets."""
    plain: dict[str, Any] = msgspec.to_builtins(host)
    del plain["environment"], plain["absent_engines"]
    for engine in plain["engines"]:
        del engine["traits"]
    return plain


def shortened(members: Sequence[str]) -> str:
    """Name `members`: all of a few, else the first, the last, and how many.

    >>> shortened([str(n) for n in range(9)])
    '0 ... 8 (9)'
    """
    if len(members) <= SHOWN:
        return ", ".join(members)
    return f"{members[0]} ... {members[-1]} ({len(members)})"
