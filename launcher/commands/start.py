"""Run a command of `aam`: plan it, then replace this process, or print the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.options.command_line import CONFIG
from launcher.engines import exec_plan, shell_line
from launcher.findings import warn
from launcher.input_files import require_inputs
from launcher.options import HOST
from launcher.plan.request import request_of
from launcher.planning import plan_launch


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Plan a command, then replace this process by it or print its command line.

    Of a run that is repeated (--config run.json), what differs from its record is a warning.
    """
    request = request_of(launcher_options, argv)
    capture = launcher_options.get(HOST)  # with --dry-run alone
    if capture is None:
        require_inputs(request)
    host, plan = plan_launch(request, capture or Path("/"), starting=not request.dry_run)
    warn(plan.findings)
    if any(argument.partition("=")[0] == CONFIG.flag for argument in argv):
        from launcher import recorded_run  # a launch without --config saves its import

        record = recorded_run.file_of(argv)
        warn(recorded_run.differences(record, request, host, plan) if record else ())
    if request.dry_run:
        print(shell_line(plan))
        return 0
    if plan.use_record:
        from launcher.images.stored import note_use  # a dry run does without it

        note_use(plan.use_record)
    sys.stdout.flush()
    sys.stderr.flush()
    exec_plan(plan)
    raise AssertionError("unreachable")
