"""Show a plan: every decision, why, and where that came from."""

from __future__ import annotations

import dataclasses
import json

from launcher.engines import shell_line
from launcher.host.facts import Host
from launcher.plan.decision import Decision, Finding
from launcher.plan.plan import Plan

ORDER = ("amd GPUs", "nvidia GPUs", "left out", "image", "engine", "engine option", "mask",
         "device", "flag", "mount", "variable", "kept out")  # fmt: skip


def text(host: Host, plan: Plan) -> str:
    """Return the explanation for a terminal."""
    lines = [
        f"host      {host.name}, Linux {host.kernel}" + ("" if host.live else f" ({host.root})")
    ]
    if host.slurm:
        lines.append(f"{'':<13} Slurm job {host.slurm.job}")
    for driver in host.drivers:
        version = driver.version or "of unknown version"
        lines.append(f"{'driver':<13} {driver.vendor} {version} ({driver.source})")
    subject = ""
    for decision in sorted(plan.decisions, key=_rank):
        shown = decision.subject if decision.subject != subject else ""
        subject = decision.subject
        lines.append(f"{shown:<13} {decision.value}")
        lines.append(f"{'':<15}{decision.why} [{decision.source}]")
    lines += [f"{finding.severity:<13} {finding}" for finding in plan.findings]
    return "\n".join([*lines, "", "would run", f"  {shell_line(plan)}"])


def as_json(host: Host, plan: Plan) -> str:
    """Return the explanation for programs."""
    content = {
        "host": facts(host),
        "decisions": [dataclasses.asdict(decision) for decision in plan.decisions],
        "findings": [dataclasses.asdict(finding) for finding in plan.findings],
        "plan": {
            key: value
            for key, value in dataclasses.asdict(plan).items()
            if key not in ("decisions", "findings")
        },
        "command_line": shell_line(plan),
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def facts(host: Host) -> dict[str, object]:
    """Return a host without its environment, which is nobody's business."""
    plain = dataclasses.asdict(host)
    del plain["environment"]
    return plain


def warn(findings: tuple[Finding, ...]) -> list[str]:
    """Return the lines to show before a start: what is more than a note."""
    return [f"aam-launch: {f.severity}: {f}" for f in findings if f.severity != "note"]


def _rank(decision: Decision) -> int:
    return ORDER.index(decision.subject) if decision.subject in ORDER else len(ORDER)
