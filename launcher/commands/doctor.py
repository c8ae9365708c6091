"""`aam-launch doctor`: what this host (or a captured one) has, and what would fail."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aam.contract.errors import AamError, Unavailable
from launcher import capture, check_reports, config, doctor, engine_trial, images
from launcher.commands import no_more, print_json
from launcher.detect import detect
from launcher.engines import ENGINES
from launcher.explain import facts
from launcher.findings import Finding
from launcher.host.facts import Host
from launcher.host.versions import with_versions
from launcher.host_table import host_lines, report_lines
from launcher.plan.catalog import Image
from launcher.plan.launcher_options import spelled, split_own
from launcher.plan.request import parse
from launcher.plan.selection import BuiltImage
from launcher.planning import prepare


def _trials(host: Host, fitting: Sequence[Image], built: Sequence[BuiltImage]) -> Iterator[Finding]:
    """Start the best image that is built once with every engine that can run it."""
    names = [image.name for image in fitting]
    programs = set()
    for engine in host.engines:
        places = [place for place in built if engine.name in place.engines and place.image in names]
        program = os.path.realpath(engine.path)
        if engine.obstacle is None and places and program not in programs:
            programs.add(program)
            yield engine_trial.start(
                engine, min(places, key=lambda p: names.index(p.image)), os.environ
            )


def refusal(own: Mapping[str, Sequence[str]], root: Path) -> AamError | None:
    """Return the error of a launch that computes on a GPU where there is one; None if it starts."""
    passed = {flag: given for flag, given in own.items() if flag not in ("--json", "--host")}
    try:
        prepare(parse(["check", *spelled(passed)]), root)
    except AamError as error:
        return error
    return None


def run(words: Sequence[str]) -> int:
    """Report, or write a capture; the exit status is that of a launch that would be refused."""
    own, rest = split_own(words)
    no_more(rest, "doctor")
    settings, catalog = config.configured(own)
    root = Path(own.get("--host", ("/",))[-1])
    host = detect(root)
    if host.live:
        host = with_versions(host, config.answers(), ask=ENGINES)
    if "--capture" in own:
        file = Path(own["--capture"][-1])
        print(f"{capture.write(host, file)} files in {file}")
        return 0
    built = images.built(settings, catalog) if host.live else images.assumed(settings, catalog)
    catalog = images.measured(catalog, built, settings.text("runtime"))
    fitting = doctor.fitting(host, catalog)
    findings = (*settings.findings, *doctor.examine(host, catalog, built))
    if host.live:
        findings += (*doctor.room(settings.text("image_dir")), *_trials(host, fitting, built))
    error = refusal(own, root)
    if error:
        cause = f"A launch would be refused: {error.cause}"
        findings += (Finding("error", cause, error.evidence, error.remedy),)
    held = check_reports.of_host(host, check_reports.folder(os.environ))
    if "--json" in own:
        said = {
            "host": facts(host),
            "fitting": [image.name for image in fitting],
            "check_reports": [dataclasses.asdict(report) for report in held],
        }
        print_json({**said, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        names = ", ".join(image.name for image in fitting)
        lines = [*host_lines(host, catalog), f"{'images':<10} {names} would fit"]
        lines += report_lines(host, held)
        print("\n".join([*lines, *(f"{f.severity:<10} {f}" for f in findings)]))
    if error:
        return error.status
    return Unavailable.status if any(f.severity == "error" for f in findings) else 0
