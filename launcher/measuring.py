"""When a stack is measured, and with what: once for an image, a GPU, a driver and a version."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from launcher.host.facts import Host
from launcher.plan.choose import Choice, Native
from launcher.plan.decision import Finding
from launcher.plan.measured import ATTENTION, Measured
from launcher.plan.plan import Plan
from launcher.plan.request import Request, options_of, parse

NO_CHECK = "--no-check"
RECHECK = "--recheck"

Make = Callable[[Request], Plan]


def measured(
    request: Request, host: Host, choice: Choice, native: Native, make: Make, starting: bool
) -> Measured | None:
    """Return what is known of the stack that was chosen; None where no GPU computes attention.

    Args:
        request: what will run.
        host: facts.
        choice: GPUs, image and engine.
        native: the environment of the launcher.
        make: turns a request into a plan with that choice.
        starting: the plan will run, so what is not known is measured; `explain` runs nothing.

    Raises:
        Unavailable: the GPU does not compute.
    """
    if not choice.gpus or ATTENTION not in options_of(request.command):
        return None
    if NO_CHECK in (word.replace("_", "-") for word in request.words):
        return Measured(absent=NO_CHECK)
    from launcher import verdicts  # what it imports takes milliseconds of every other start

    key = verdicts.key_of(host, choice, native)
    if key is None and not host.live:
        return Measured(absent="nothing is measured on a capture")
    if key is None:
        return Measured(absent="nothing names the image for good, so aam measures before each run")
    cache = verdicts.folder(os.environ)
    found = verdicts.stored(key, cache)
    again = RECHECK in request.own
    if not starting or request.dry_run or (found.document is not None and not again):
        return found
    if host.slurm is not None and host.slurm.local_id:
        return replace(found, absent="the first rank of a node measures, others by themselves")
    try:
        document = verdicts.measure(make(parse(verdicts.CHECK)), key)
    except ValueError as error:
        remedy = "aam tries again by itself before it runs"
        failed = Finding("warning", "The stack could not be measured", str(error), remedy)
        return Measured(absent="the check failed", findings=(*found.findings, failed))
    unkept = verdicts.store(document, key, cache)
    findings = (*found.findings, unkept) if unkept else found.findings
    return Measured(document, str(verdicts.place(key, cache)), findings=findings)
