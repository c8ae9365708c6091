"""Checks of a host: pure functions from facts to findings, one for each cause.

Whether a launch would be refused is no check of its own: `aam-launch doctor` makes the plan that a
launch makes, and shows the error that comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from aam.contract.errors import AamError
from launcher.findings import Finding
from launcher.gpus import VENDORS, visible_devices_variables
from launcher.host.facts import Host
from launcher.input_files import nearest_folder
from launcher.plan.catalog import Catalog, Image
from launcher.plan.devices import denials
from launcher.plan.environment import LEAKS
from launcher.plan.gpu_groups import survey
from launcher.plan.image_fit import for_processors, has_code
from launcher.plan.inputs import BuiltImage

IMAGE_SPACE = 20 << 30  # bytes that an image and its building take


def examine(host: Host, catalog: Catalog, built: Sequence[BuiltImage]) -> tuple[Finding, ...]:
    """Return the findings of every check."""
    found = [finding for check in CHECKS for finding in check(host)]
    try:
        gpus = survey(host, catalog, {place.image for place in built})
    except AamError:  # the plan fails for the same reason
        return tuple(found)
    found += (*gpus.findings, *gpus.obstacles)
    for vendor in VENDORS.values():
        theirs = [gpu for gpu in host.gpus if gpu.vendor == vendor.name]
        found += vendor.checks(host, theirs, partial(has_code, catalog, vendor.name))
    if not built:
        evidence = f"of {', '.join(image.name for image in catalog.images)}"
        found.append(Finding("note", "No image is built", evidence, "aam runs natively until then"))
    return tuple(found)


def fitting(host: Host, catalog: Catalog) -> tuple[Image, ...]:
    """Return the images that fit this host, best first; the CPU image always does."""
    try:
        groups = survey(host, catalog, ()).groups
    except AamError:
        groups = ()
    served = [image for group in groups for image in group.images]
    served += for_processors(catalog, host)
    return tuple({image.name: image for image in served}.values())


def _devices(host: Host) -> list[Finding]:
    ours = [gpu for gpu in host.gpus if gpu.driven and gpu.readable]
    return [replace(finding, severity="warning") for finding in denials(host, ours)]


def _engines(host: Host) -> list[Finding]:
    if any(engine.obstacle is None for engine in host.engines):
        return []
    if not host.live and not host.engines:
        cause = "The capture records no engine"
        evidence = f"{host.absent_engines[0].name} is assumed"
        return [Finding("note", cause, evidence, "make it on the host itself")]
    evidence = "; ".join(f"{e.name}: {e.obstacle}" for e in host.engines) or "none is on PATH"
    known = ", ".join(engine.name for engine in host.absent_engines)
    remedy = f"install one of {known}; without one aam runs natively"
    return [Finding("warning", "No engine can start a container", evidence, remedy)]


def _variables(host: Host) -> list[Finding]:
    found = []
    set_here = [name for name in visible_devices_variables() if name in host.environment]
    if len(set_here) > 1:
        evidence = ", ".join(f"{name}={host.environment[name]}" for name in set_here)
        remedy = "nothing to do; they become one in the container"
        found.append(Finding("note", "Several variables select GPUs", evidence, remedy))
    leaks = [name for name in LEAKS if host.environment.get(name)]
    if leaks:
        remedy = "nothing to do; containers do not get them"
        found.append(
            Finding("note", "Variables that break images are set", ", ".join(leaks), remedy)
        )
    return found


def _libraries(host: Host) -> list[Finding]:
    remedy = "nothing to do; images have their own, and use these only on request"
    return [
        Finding("note", "The host has GPU libraries of its own", place, remedy)
        for place in host.user_space.values()
    ]


def disk_space(folder: str) -> list[Finding]:
    """Return a warning if the disk has too little space for images; reads this host."""
    place = nearest_folder(folder)
    facts = os.statvfs(place)
    free = facts.f_bavail * facts.f_frsize
    if free < IMAGE_SPACE:
        evidence = f"{free >> 30} GiB free at '{place}'"
        return [Finding("warning", "Little room for images", evidence, "set AAM_IMAGE_DIR")]
    return []


CHECKS: tuple[Callable[[Host], list[Finding]], ...] = (
    _devices, _engines, _variables, _libraries,
)  # fmt: skip
