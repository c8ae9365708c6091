"""Start a container for a trial: the one way to know that an engine can start one here."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping

from launcher.engines import command
from launcher.findings import Finding
from launcher.host.facts import EngineFact
from launcher.plan.environment import unset
from launcher.plan.plan import Plan
from launcher.plan.selection import BuiltImage

COLOUR = re.compile("\x1b\\[[0-9;]*m")
PATIENCE = 120  # seconds: a first start may have to unpack an image


def start(engine: EngineFact, image: BuiltImage, present: Mapping[str, str]) -> Finding:
    """Run `aam --version` in an image as a launch would, without GPUs, and say how that went."""
    plan = Plan(
        engine=engine.name,
        program=engine.path,
        words=("--version",),
        image=image.image,
        place=image.place,
        user=(os.geteuid(), os.getegid()),
        unset=unset(present, engine.traits),
    )
    began = time.monotonic()
    try:
        done = subprocess.run(
            command(plan), capture_output=True, text=True, errors="replace", timeout=PATIENCE,
            check=False, env=plan.environment(present), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _failed(engine, image, f"nothing in {PATIENCE} s")
    except OSError as error:
        return _failed(engine, image, str(error.strerror))
    taken = time.monotonic() - began
    said = [line for raw in done.stderr.splitlines() if (line := COLOUR.sub("", raw).strip())]
    if done.returncode != 0:
        return _failed(engine, image, said[-1] if said else f"exit status {done.returncode}")
    answer = (done.stdout.splitlines() or ["no answer"])[0][:40]
    evidence = f"{answer} with {engine.name}, in {taken:.1f} s"
    slow = [line for line in said if "sandbox" in line.lower()]
    if slow:
        remedy = "ask for squashfuse or the set-uid starter; each start unpacks the image"
        return Finding("warning", f"{image.image} starts slowly", f"{evidence}; {slow[0]}", remedy)
    return Finding("note", f"{image.image} starts", evidence)


def _failed(engine: EngineFact, image: BuiltImage, why: str) -> Finding:
    remedy = f"try `{engine.path} --debug` on it, or another --runtime"
    cause = f"{engine.name} cannot start {image.image}"
    return Finding("error", cause, f"{image.place}: {why.strip()}", remedy)
