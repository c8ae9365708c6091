"""Selection of the engine that builds images: installed, able to start, new enough."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aam.contract.errors import Unavailable
from launcher import processes
from launcher.detect import detect
from launcher.engines import BUILDERS, builders
from launcher.engines.base import Builder
from launcher.host.facts import EngineFact

VERSION = re.compile(r"([A-Za-z]+)\S*\s+(?:version\s+)?v?(\d+)\.(\d+)\S*")


@dataclass(frozen=True)
class InstalledBuilder:
    """An engine that can build, its program and its version."""

    engine: Builder
    program: str
    version: str


def find(requested: str | None, image_format: str | None = None) -> InstalledBuilder:
    """Return the engine of this host to build with: the requested one, or the first that can.

    Args:
        image_format: of `EngineTraits.image_format`; None: any.

    Raises:
        Unavailable: there is none, or it is too old.
    """
    suitable = builders(image_format) if image_format else tuple(BUILDERS.values())
    names = [engine.name for engine in suitable if requested in (None, engine.name)]
    candidates = [fact for fact in detect().engines if fact.name in names]
    if not candidates:
        known = ", ".join(engine.name for engine in suitable)
        what = f"no {requested}" if requested else f"none of {known}"
        remedy = f"install one of {known}"
        raise Unavailable("No engine to build with", f"{what} on PATH", remedy)
    for fact in candidates:
        if fact.obstacle is None:
            return _checked(fact)
    evidence = "; ".join(f"{fact.name}: {fact.obstacle}" for fact in candidates)
    raise Unavailable("No engine can build here", evidence, "remove that obstacle")


def _checked(fact: EngineFact) -> InstalledBuilder:
    """Return the engine that a program is; one may be installed under the name of another."""
    done = processes.run([fact.path, "--version"])
    match = VERSION.search(done.stdout)
    if match is None:
        evidence = f"`{fact.path} --version` prints '{(done.stdout or done.stderr).strip()}'"
        raise Unavailable("The engine does not work", evidence, "install it again")
    engine = BUILDERS.get(match[1].lower(), BUILDERS[fact.name])
    if (int(match[2]), int(match[3])) < engine.least:
        least = ".".join(map(str, engine.least))
        raise Unavailable("The engine is too old to build", f"{match[0].strip()} at {fact.path}",
                          f"{engine.name} {least} or later is needed")  # fmt: skip
    return InstalledBuilder(engine, fact.path, f"{match[2]}.{match[3]}")
