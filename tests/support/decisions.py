"""Choice of GPUs, image and engine for a host, for tests of the selection."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from aam.contract.records import Sourced
from launcher.engines import ENGINES
from launcher.host.facts import EngineFact, Host, NativeStack, Slurm
from launcher.plan.catalog import shipped
from launcher.plan.decision import decide as choose
from launcher.plan.hardware import Candidate
from launcher.plan.inputs import (
    BuiltImage,
    GpuUse,
    LaunchInputs,
    Request,
)
from launcher.plan.settings import LaunchSettings, from_flags, merge

CATALOG = shipped()
BUILT = tuple(
    BuiltImage(image.name, ("apptainer", "podman", "docker"), f"/i/{image.name}.sif", "sha256:1")
    for image in CATALOG.images
)
NATIVE = NativeStack("/usr/bin/python3", (), False, "2.13.0+cpu", "cpu")
PLAIN = NativeStack("/usr/bin/python3", ("torch",), False, None, "cpu")


def engine(name: str, obstacle: str | None = None) -> EngineFact:
    return EngineFact(name, f"/usr/bin/{name}", obstacle, traits=ENGINES[name].traits)


APPTAINER = engine("apptainer")
CONTEXT = {"folder": "/d", "private": "/s/aam-7/1-n", "home": "/home/u", "terminal": False}
CHECK = Request("check", {})
OF_USE: dict[GpuUse, Request] = {
    "automatic": CHECK,
    "required": Request("check", {"--device": "cuda"}),
    "allocated": CHECK,
    "never": Request("check", {"--device": "cpu"}),
}
"""A command by its use of GPUs."""


def inputs_of(
    host: Host,
    request: Request = CHECK,
    settings: LaunchSettings | None = None,
    built: tuple[BuiltImage, ...] = BUILT,
    native: NativeStack = NATIVE,
    **more: Any,
) -> LaunchInputs:
    """Return the inputs of a plan, by default with the settings of the request's options."""
    settings = settings or merge([from_flags(request.launcher_options)])
    parts = {"catalog": CATALOG, **CONTEXT, **more}
    return LaunchInputs(request, host, settings=settings, built=built, native=native, **parts)


def decide(
    host: Host,
    built: tuple[BuiltImage, ...] = BUILT,
    native: NativeStack = NATIVE,
    force: bool = False,
    use: GpuUse = "automatic",
    **given: str,
) -> Candidate:
    layer = {key: Sourced(value, f"command line, --{key}") for key, value in given.items()}
    defaults = {"image_dir": Sourced("/i", "default")}
    request = dataclasses.replace(OF_USE[use], launcher_options={"--force": True} if force else {})
    if use == "allocated":
        host = replace(host, slurm=Slurm("7", (0,), 1))
    return choose(inputs_of(host, request, merge([defaults, layer]), built, native))


def name_of(choice: Candidate) -> str | None:
    return choice.image.name if choice.image else None


def why(choice: Candidate, subject: str) -> str:
    return next(d.why for d in choice.decisions if d.subject == subject)
