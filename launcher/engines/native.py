"""Native engine: the Python environment of the launcher, without a container."""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.engines.engine import Engine
from launcher.gpus import VENDORS
from launcher.host.facts import EngineFact, EngineTraits, NativeStack
from launcher.host.tree import HostTree
from launcher.plan.assembly import Plan

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

    def command(self, plan: Plan) -> tuple[str, ...]:
        return (plan.program, "-m", "aam", *plan.argv)


ENGINE = NativeEngine()


def detect_stack() -> NativeStack:
    """Return the stack of the running Python environment without importing its libraries."""
    home = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    in_user_site = home is not None and __file__.startswith(home + os.sep)
    absent = tuple(name for name in LIBRARIES if importlib.util.find_spec(name) is None)
    # PyTorch's version.py states its version and, by a field that is set, the vendor of its GPUs.
    spec, stated = importlib.util.find_spec("torch"), dict[str, str]()
    if spec and spec.submodule_search_locations:
        with suppress(OSError):
            text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
            fields = re.findall(r"""^(\w+)[^=\n]*=\s*['"](.*)['"]\s*$""", text, re.MULTILINE)
            stated = dict(fields)
    vendors = (vendor.name for vendor in VENDORS.values() if vendor.torch_field in stated)
    torch, vendor = stated.get("__version__"), next(vendors, "cpu")
    package = str(Path(__file__).parents[2])
    paths = (os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    import_path = package if package in paths else ""
    return NativeStack(sys.executable, absent, in_user_site, torch, vendor, import_path)
