"""`aam-launch doctor`: what this host (or a captured one) has, and what would fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from launcher import capture, config, doctor, images
from launcher.commands import no_more, print_json
from launcher.errors import Unavailable
from launcher.explain import facts
from launcher.host import detect
from launcher.host.versions import with_versions
from launcher.plan.own import split_own


def run(words: Sequence[str]) -> int:
    """Report, or write a capture; 69 if something would fail."""
    own, rest = split_own(words)
    no_more(rest, "doctor")
    settings, catalog = config.configured(own)
    host = detect(Path(own.get("--host", ("/",))[-1]))
    host = with_versions(host) if host.live else host
    if "--capture" in own:
        file = Path(own["--capture"][-1])
        print(f"{capture.write(host, file)} files in {file}")
        return 0
    built = images.built(settings, catalog) if host.live else images.assumed(settings, catalog)
    findings = doctor.examine(host, catalog, built)
    findings += tuple(doctor.room(settings.text("image_dir"))) if host.live else ()
    fitting = doctor.fitting(host, catalog)
    if "--json" in own:
        said = {"host": facts(host), "fitting": [image.name for image in fitting]}
        print_json({**said, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        print("\n".join(doctor.lines(host, findings, fitting)))
    return Unavailable.status if any(f.severity == "error" for f in findings) else 0
