"""`aam-launch replay`: repeat the run of a run.json; further options replace recorded ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aam.contract.errors import MissingInput, Unavailable, UsageError
from aam.contract.options import options_of, parse_command
from aam.contract.options.command_line import require_all
from launcher import replay
from launcher.commands.start import start
from launcher.planning import plan_launch


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Compare inputs and plan with the record, then start the run."""
    if not argv:
        raise UsageError("Nothing to replay", "no run.json is named", "name one, or a run folder")
    recorded = replay.read(Path(argv[0]))
    before = recorded.request
    changed = parse_command(before.command, argv[1:], program="aam-launch", incomplete=True)
    try:
        os.chdir(recorded.folder)
    except OSError as error:
        evidence = f"'{recorded.folder}', {error.strerror}"
        remedy = "make it, or run the command of the record elsewhere"
        raise MissingInput("The folder of the run is gone", evidence, remedy) from error
    options = {**before.launcher_options, **launcher_options}
    request = replace(before, given={**before.given, **changed}, launcher_options=options)
    require_all(options_of(request.command), request.given, request.command)
    differs = replay.inputs_differ(recorded)
    plan = None
    if not any("is gone" in finding.cause for finding in differs):
        host, plan = plan_launch(request, starting=True)
        differs += replay.plan_differs(recorded, host, plan)
    grave = [finding for finding in differs if finding.severity == "error"]
    if plan is None or (grave and "--force" not in launcher_options):
        evidence = "; ".join(str(finding).rstrip(".") for finding in differs)
        remedy = "--force runs what can be run"
        raise Unavailable("This run cannot be repeated as it was", evidence, remedy)
    for finding in differs:
        print(f"aam-launch: warning: {finding}", file=sys.stderr)
    return start(plan, request.dry_run)
