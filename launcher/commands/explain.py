"""`aam-launch explain`: print every decision with its reason and source, as text or JSON."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aam.contract.gpus import CHECK_REPORTS
from launcher import check_reports
from launcher.engines import command, shell_line
from launcher.findings import Decision
from launcher.host.facts import Host
from launcher.plan.environment import shown
from launcher.plan.plan import RECORD, Plan
from launcher.plan.request import request_of
from launcher.planning import plan_launch, require_inputs

WHOLE = "--dry-run instead of explain prints the whole line"

SHOWN = 4  # members of a list; of a longer one the first and the last
ORDER = ("left out", "image", "engine", "not used", "engine option", "GPU selection", "device",
         "aam check", "flag", "mount", "variable", "kept out")  # fmt: skip


@dataclass(frozen=True)
class Explain:
    """Show every decision about a command, its reason and its source; run nothing.

    Examples:
        aam-launch explain pretrain --table study.biom --tree tree.nwk --output-dir run
        aam-launch explain pretrain --host node.tar
    """


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the decisions for this host, or for a captured one."""
    request = request_of(launcher_options, argv, incomplete=True)
    capture = launcher_options.get("--host")
    if capture is None:
        require_inputs(request)
    host, plan = plan_launch(request, capture or Path("/"))
    if CHECK_REPORTS in plan.variables and host.live:
        plan = replace(plan, choices=(*plan.choices, _last_check(plan)))
    assigned = (replace(v, value=shown(v.name, v.value)) for v in plan.assigned)
    plan = replace(plan, assigned=tuple(assigned))
    print(as_json(host, plan) if "--json" in launcher_options else text(host, plan))
    return 0


def _last_check(plan: Plan) -> Decision:
    """Return what `aam check` found last for the stack of a plan; `aam` alone decides by it."""
    folder, arch = Path(plan.variables[CHECK_REPORTS]), plan.gpus[0].arch
    for report in check_reports.stored(folder):
        own = plan.digest == report.image if plan.image else report.image.startswith("native:")
        if own and report.arch == arch:
            why = f"measured {report.made} for {report.stack}"
            return Decision("aam check", report.verdict, why, report.file)
    if plan.image and plan.digest is None:
        why = "the image has no digest, so aam measures before each run"
    else:
        why = f"nothing is kept for this stack on {arch}; aam measures before the first run"
    return Decision("aam check", "not yet measured", why, str(folder))


def text(host: Host, plan: Plan) -> str:
    """Return the explanation for a terminal."""
    lines = [
        f"{'host':<13} {host.name}, Linux {host.kernel}" + ("" if host.live else f" ({host.root})")
    ]
    if host.slurm:
        lines.append(f"{'':<13} Slurm job {host.slurm.job}")
    for driver in host.drivers:
        version = driver.version or "of unknown version"
        lines.append(f"{'driver':<13} {driver.vendor} {version} ({driver.source})")
    subject = ""
    for (about, why, source), same in groupby(sorted(plan.decisions, key=_rank), key=_reason):
        values = [decision.value for decision in same]
        if about == "device":
            values = [shortened(values)]
        for value in values:
            lines.append(f"{about if about != subject else '':<13} {value}")
            subject = about
        lines.append(f"{'':<15}{why} [{source}]")
    lines += [f"{finding.severity:<13} {finding}" for finding in plan.findings]
    return "\n".join([*lines, "", f"would run ({WHOLE})", *_readable(plan)])


def _readable(plan: Plan) -> Iterator[str]:
    """Yield the command line broken at its options, the record left out."""
    line = "  "
    for argument in command(plan):
        name = argument.partition("=")[0]
        text = f"{name}=..." if name == RECORD else shlex.quote(argument)
        breaks = (
            argument.startswith("-") or "=" in argument.partition("/")[0] or argument == plan.place
        )
        if breaks and line.split()[-1:] != ["--mount"]:
            yield line
            line = "     "
        line += f" {text}"
    yield line


def as_json(host: Host, plan: Plan) -> str:
    """Return the explanation for programs."""
    content = {
        "host": facts(host),
        "decisions": msgspec.to_builtins(plan.decisions),
        "findings": msgspec.to_builtins(plan.findings),
        "plan": {
            key: value
            for key, value in msgspec.to_builtins(plan).items()
            if key not in ("choices", "findings", "assigned")
        }
        | {"variables": plan.variables},
        "command_line": shell_line(plan),
    }
    return json.dumps(content, indent=2)


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


def _reason(decision: Decision) -> tuple[str, str, str]:
    return decision.subject, decision.why, decision.source


def _rank(decision: Decision) -> int:
    if decision.subject.endswith(" GPUs"):  # of each vendor, before everything else
        return -1
    return ORDER.index(decision.subject) if decision.subject in ORDER else len(ORDER)
