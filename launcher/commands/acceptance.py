"""`aam-launch acceptance`: measure this host in each image, or queue jobs that measure a cluster.

Images and jobs write to one folder, one after the other: a job of a node, then a job of two.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from aam.contract.options import build, specs
from aam.contract.options.command_line import arguments, parse_known
from launcher import config
from launcher.commands import PROGRAM, start
from launcher.commands.submit import job_of, queue_all
from launcher.plan.inputs import request_of
from launcher.plan.settings import LAUNCHER_OPTIONS
from launcher.slurm.script import SubmitOptions

SPARE_MINUTES = 15
"""Beside --minutes, for the start of a job and the end of the part that is measured last."""


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Measure in each image of --image (`NAME,NAME`); with a site, outside of jobs, queue a job."""
    names = [name for name in launcher_options.get("--image", "").split(",") if name]
    variants = [{**launcher_options, "--image": name} for name in names] or [dict(launcher_options)]
    site = config.read(variants[0], os.environ).site.value
    if site and "SLURM_JOB_ID" not in os.environ:
        job_values, command_line = parse_known(specs(SubmitOptions), argv)
        jobs = []
        for options in variants:
            request = request_of({k: v for k, v in options.items() if k != "--gpus"}, command_line)
            minutes = math.ceil(request.value("--minutes")) + SPARE_MINUTES
            for nodes in (1, 2) if config.site(site).values.max_nodes != 1 else (1,):
                chosen = {"--time": str(minutes), **options, **job_values, "--nodes": nodes}
                jobs.append(job_of(request, build(SubmitOptions, {**chosen, "--requeue": False})))
        return queue_all(jobs, request.dry_run, after="afterany")
    if len(variants) == 1:
        return start.run(variants[0], argv)
    lines = ([*PROGRAM, *argv, *arguments(LAUNCHER_OPTIONS.values(), v)] for v in variants)
    return max(subprocess.run(line, check=False).returncode for line in lines)
