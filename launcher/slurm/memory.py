"""Memory of a job: `aam memory` on the login node, compared with the memory of the site's GPUs.

The prediction runs in the image of the job, without a GPU. It takes some seconds and reads the
study. Whatever keeps it from ending is a warning, and the job is queued.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from aam.contract.errors import AamError, UsageError
from aam.contract.options.commands import wrapped_options
from launcher import processes
from launcher.engines import command
from launcher.engines.folders import make_folders
from launcher.findings import Finding
from launcher.plan.plan import Plan
from launcher.plan.request import JSON, Request
from launcher.slurm.site import Site

TIMEOUT = 600
"""Seconds that the prediction may take, the start of a container included; it takes some seconds,
and longer for a large study or on a busy login node."""

SIZES = ("--batch-size", "--asv-chunk")
"""Options whose value `auto` fits a run into memory."""


def predicts(request: Request, site: Site) -> bool:
    """Return whether the memory of a command on the GPUs of a site is to be predicted."""
    trains = request.command in ("pretrain", "train") and request.computes_on_gpu
    fitted = any(request.value(flag) == "auto" for flag in SIZES) if trains else True
    return trains and not fitted and site.number("gpu_memory_gb") > 0


def check(
    request: Request, ranks: int, site: Site, make: Callable[[Request], Plan]
) -> tuple[list[AamError], list[Finding]]:
    """Return an error if a training does not fit, and a warning if that is not known.

    Args:
        ranks: of the whole job.
        make: makes a plan of a command on this host.
    """
    try:
        needed = predicted(request, ranks, make)
    except (AamError, OSError, ValueError) as error:
        reason = str(error).rstrip(".")
        remedy = f"`aam-launch memory {request.command}` with the same options shows why"
        return [], [Finding("warning", "The memory of the job is not predicted", reason, remedy)]
    return misfit(request, needed, site), []


def misfit(request: Request, needed: int, site: Site) -> list[AamError]:
    """Return an error if a training needs more bytes than a GPU of the site has."""
    most = site.number("gpu_memory_gb")
    if needed <= most * 10**9:
        return []
    evidence = f"{needed / 10**9:.1f} GB predicted for each rank, {site.text('gpu')} has {most} GB"
    remedy = f"`aam-launch memory {request.command}` shows what saves memory; --no-memory-check"
    return [UsageError("The job does not fit into the memory of a GPU", evidence, remedy)]


def predicted(request: Request, ranks: int, make: Callable[[Request], Plan]) -> int:
    """Return the memory that each rank of a training needs on its GPU, in bytes.

    Raises:
        AamError: no plan can be made.
        OSError: the program cannot be started, or takes too long.
        ValueError: it prints no prediction.
    """
    kept = {spec.flag for spec in wrapped_options("memory", request.command)}
    given = {flag: value for flag, value in request.given.items() if flag in kept}
    given |= {JSON: True} | ({"--processes": ranks} if ranks > 1 else {})
    plan = make(Request("memory", given, wrapped=request.command))
    make_folders(plan)
    print("aam-launch: predicting the memory of the job", file=sys.stderr, flush=True)
    done = processes.run(command(plan), TIMEOUT, plan.environment(os.environ))
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(lines[-1] if lines else f"it ended with status {done.returncode}")
    try:
        return int(json.loads(done.stdout.splitlines()[-1])["needed"])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("it printed no prediction") from error
