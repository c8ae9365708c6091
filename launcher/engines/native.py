"""Native engine: the Python environment of the launcher, without a container."""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.engines.base import Engine
from launcher.gpus import VENDORS
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.inputs import NativeStack

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

LIBRARIES = ("torch", "safetensors", "rich", "biom", "skbio", "sklearn", "h5py")
"""Modules that the extra `model` brings and that no plain install has."""


class NativeEngine(Engine):
    """No container; --runtime auto takes it where no image can be run."""

    name = "native"
    traits = EngineTraits()

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        return EngineFact(self.name, path, traits=self.traits)

    def run_flags(self, plan: Plan) -> tuple[str, ...]:
        return ("-m", "aam")

    def command(self, plan: Plan) -> tuple[str, ...]:
        return (plan.program, *self.run_flags(plan), *plan.argv)


ENGINE = NativeEngine()


def missing(libraries: Sequence[str] = LIBRARIES) -> tuple[str, ...]:
    """Return those `libraries` that are not installed; looks for them without importing any."""
    return tuple(name for name in libraries if importlib.util.find_spec(name) is None)


def detect_stack() -> NativeStack:
    """Return the stack of the running Python environment without importing its libraries."""
    home = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    in_user_site = home is not None and __file__.startswith(home + os.sep)
    torch, vendor = _torch()
    return NativeStack(sys.executable, missing(), in_user_site, torch, vendor)


def _torch() -> tuple[str | None, str]:
    """Return PyTorch's version and the GPU vendor it supports, from its version.py."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return None, "cpu"
    try:
        text = (Path(found.submodule_search_locations[0]) / "version.py").read_text()
    except OSError:
        return None, "cpu"
    stated = dict(re.findall(r"""^(\w+)[^=\n]*=\s*['"](.*)['"]\s*$""", text, re.MULTILINE))
    vendors = (vendor for vendor in VENDORS.values() if vendor.torch_field in stated)
    return stated.get("__version__"), next((vendor.name for vendor in vendors), "cpu")
