"""`aam-launch explain`: print every decision with its reason and source, as text or JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aam.contract.dataclass import dataclass
from aam.contract.errors import AamError, UsageError, printable
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.records import read_json
from launcher.commands import print_json, show
from launcher.engines import command, shell_line
from launcher.findings import Decision, entries
from launcher.gpus import VENDORS
from launcher.host.facts import Host
from launcher.launch import gather, plan_launch, require_inputs
from launcher.plan.assembly import RECORD, Plan
from launcher.plan.catalog import Catalog
from launcher.plan.decision import assess, not_used, selected
from launcher.plan.environment import shown
from launcher.plan.inputs import NATIVE, request_of
from launcher.system import quoted

WHOLE = "--dry-run instead of explain prints the whole line"
SHOWN = 4  # members of a list; of a longer one the first and the last
ORDER = ("left out", "GPUs not used", "image", "engine", "not used", "engine option",
         "GPU selection", "device", "aam check", "flag", "mount", "variable",
         "kept out")  # fmt: skip
MAX_REPORTS = 200  # check reports that are read; one of a stack has about 20 kB


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
    capture = launcher_options.get("--host")
    if capture is None:
        require_inputs(request)
    inputs = gather(request, capture or Path("/"))
    (hardware, candidates), refusal, plan = assess(inputs), None, None
    # Decisions before a refusal; the program prints the refusal.
    host, decisions = inputs.host, [*selected(hardware), *not_used(inputs, candidates)]
    try:
        host, plan = plan_launch(inputs)
    except AamError as error:
        refusal = error
    content: dict[str, object] = {"host": facts(host)}
    if plan:
        assigned = (replace(v, value=shown(v.name, v.value)) for v in plan.assigned)
        further = (*not_used(inputs, candidates, plan.image or NATIVE), *measured(plan, host))
        plan = replace(plan, assigned=tuple(assigned), choices=(*plan.choices, *further))
        decisions = [*plan.decisions]
    if "--json" not in launcher_options:
        rows = host_rows(host, inputs.catalog)
        show(*lines_of(rows), *lines_of(sorted(decisions, key=_rank)))
        show(*(f"{f.severity:<13} {f}" for f in plan.findings) if plan else ())
        show(*_command_lines(plan) if plan else ())
    else:
        content["decisions"] = msgspec.to_builtins(decisions)
        if plan:
            elsewhere = ("choices", "findings", "assigned")
            fields = {name: msgspec.to_builtins(getattr(plan, name))
                      for name in plan.__struct_fields__ if name not in elsewhere}  # fmt: skip
            content["findings"] = entries(plan.findings)
            content["plan"] = {**fields, "variables": plan.variables}
            content["command_line"] = shell_line(plan)
        print_json(content)
    if refusal:
        raise refusal
    return 0


def measured(plan: Plan, host: Host) -> Iterator[Decision]:
    """Yield what `aam check` found last for the stack of a plan; `aam` alone decides by it."""
    if CHECK_REPORTS not in plan.variables or not host.live:
        return
    folder, arch = Path(plan.variables[CHECK_REPORTS]), plan.gpus[0].arch
    verdict, source = "not yet measured", str(folder)
    why = f"nothing is kept for this stack on {arch}; aam measures before the first run"
    if plan.image and plan.digest is None:
        why = "the image has no digest, so aam measures before each run"
    for report in stored_reports(folder):
        image = report.key.get("image", "")
        same = image == plan.digest if plan.image else image.startswith("native:")
        if same and report.key.get("arch") == arch:
            verdict, source = report.verdict, report.file
            why = f"measured {report.made} for {report.stack}"
            break
    yield Decision("aam check", verdict, why, source)


class StoredReport(msgspec.Struct):
    """What a report of `aam check` states, as `aam` wrote it."""

    key: dict[str, Any]  # image (its digest; "native:..." without one), arch of the GPU, and more
    stack: str  # image, architecture, driver and version of `aam` in words
    made: str  # time in UTC
    verdict: str  # the result for each attention backend, on one line
    file: str = ""  # its place


def stored_reports(folder: Path) -> list[StoredReport]:
    """Return the check reports in a folder, the latest first; other files are left out."""
    reports = []
    latest = sorted(folder.glob("*.json"), key=lambda file: file.lstat().st_mtime, reverse=True)
    for file in latest[:MAX_REPORTS]:
        with suppress(AamError):
            report = read_json(file, StoredReport, "check report")
            for name in ("stack", "made", "verdict"):
                setattr(report, name, printable(getattr(report, name), 300))
            report.file = str(file)
            reports.append(report)
    return sorted(reports, key=lambda report: report.made, reverse=True)


# --- rows of text, of `doctor` too


def host_rows(host: Host, catalog: Catalog) -> Iterator[Decision]:
    """Yield name, Slurm job and drivers of a host."""
    captured = "" if host.live else f" ({host.root})"
    yield row("host", f"{host.name}, Linux {host.kernel}, {host.machine}{captured}")
    if host.slurm:
        gpus = ",".join(map(str, host.slurm.gpus or ()))
        gpus_of_job = f", GPUs {gpus} of the node" if gpus else ""
        yield row("Slurm", f"job {host.slurm.job}, {host.slurm.tasks} tasks{gpus_of_job}")
    for driver in host.drivers:
        ranges = catalog.drivers.get(driver.vendor, ())
        text = VENDORS[driver.vendor].driver_text(driver, ranges)
        yield row("driver", f"{driver.vendor}, {text} ({driver.source})")


def row(subject: str, value: str) -> Decision:
    """Return a fact as a decision without a reason."""
    return Decision(subject, value, "", "")


def lines_of(rows: Iterable[Decision]) -> list[str]:
    """Return decisions and facts as lines; those with one reason share its line."""
    lines, subject = [], ""
    for (about, why, source), same in groupby(rows, key=lambda d: (d.subject, d.why, d.source)):
        values = [decision.value for decision in same]
        for value in [shortened(values)] if about == "device" and why else values:
            lines.append(f"{about if about != subject or not why else '':<13} {value}")
            subject = about
        lines += [f"{'':<15}{why} [{source}]"] if why else []
    return lines


def _rank(decision: Decision) -> int:
    if decision.subject.endswith(" GPUs"):  # of each vendor, before everything else
        return -1
    return ORDER.index(decision.subject) if decision.subject in ORDER else len(ORDER)


def _command_lines(plan: Plan) -> list[str]:
    """Return the command line broken at its options, the record left out."""
    lines = ["", f"would run ({WHOLE})", "  "]
    for argument in command(plan):
        name = argument.partition("=")[0]
        assigns = "=" in argument.partition("/")[0]
        breaks = argument.startswith("-") or assigns or argument == plan.place
        if breaks and lines[-1].split()[-1:] != ["--mount"]:
            lines.append("     ")
        lines[-1] += " " + (f"{name}=..." if name == RECORD else quoted(argument))
    return lines


def facts(host: Host) -> dict[str, object]:
    """Return the facts of a host without its environment: variables may be secrets."""
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
