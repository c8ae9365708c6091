"""`aam-launch replay`: repeat the run of a run.json; further options replace recorded ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aam.contract.errors import MissingInput, Unavailable, UsageError
from launcher import replay
from launcher.commands.start import start
from launcher.plan.launcher_options import as_arguments, split_launcher_options
from launcher.plan.request import parse
from launcher.planning import plan_launch


def run(argv: Sequence[str]) -> int:
    """Compare inputs and plan with the record, then start the run."""
    launcher_options, rest = split_launcher_options(argv)
    if not rest:
        raise UsageError("Nothing to replay", "no run.json is named", "name one, or a run folder")
    recorded = replay.read(Path(rest[0]))
    try:
        os.chdir(recorded.folder)
    except OSError as error:
        evidence = f"'{recorded.folder}', {error.strerror}"
        remedy = "make it, or run the command of the record elsewhere"
        raise MissingInput("The folder of the run is gone", evidence, remedy) from error
    request = parse(replay.changed(recorded.argv, [*rest[1:], *as_arguments(launcher_options)]))
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
