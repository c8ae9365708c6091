"""Imports between packages, compared with the table of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `((?:aam|launcher)\.[\w.]+)` \|(.*)\|$", re.MULTILINE)
TABLE = {
    package: set(re.findall(r"`([\w.]+)`", allowed))
    for package, allowed in ROW.findall((ROOT / "docs/architecture.md").read_text())
}
SHARED = {
    "aam.arrays", "aam.contract", "aam.console", "aam.environment", "aam.local_ranks", "aam.memory",
    "aam.nucleotide_codes", "aam.number_format", "aam.run_record", "aam.threads", "aam.wings",
}  # fmt: skip
WINGS = ("aam.network", "aam.stack")

PACKAGES = {
    program: sorted(f"{program}.{p.parent.name}" for p in ROOT.glob(f"{program}/*/__init__.py"))
    for program in ("aam", "launcher")
}
NETWORK = sorted(f"aam.network.{p.parent.name}" for p in ROOT.glob("aam/network/*/__init__.py"))
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for program in PACKAGES
    for file in (ROOT / program).rglob("*.py")
}


@cache
def imported_names(module: str) -> frozenset[str]:
    """Return the modules, and names in them, of the two programs that a module imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in inside}
    return frozenset(name for name in names if name.partition(".")[0] in PACKAGES)


def imported_packages(module: str, depth: int = 2) -> set[str]:
    return {".".join(name.split(".")[:depth]) for name in imported_names(module)}


def test_the_table_lists_every_package() -> None:
    assert sorted(TABLE) == sorted(PACKAGES["aam"] + NETWORK + PACKAGES["launcher"])


@pytest.mark.parametrize("package", sorted(TABLE))
def test_imports_follow_the_table(package: str) -> None:
    allowed = TABLE[package] | {package}
    depth = len(package.split("."))
    for module in MODULES:
        if module == package or module.startswith(f"{package}."):
            imported = imported_packages(module, depth) - SHARED
            if depth == 3:  # what the network imports of the study is in the row of the network
                imported = {name for name in imported if name.startswith("aam.network.")}
            if package in PACKAGES["launcher"]:  # it may import the modules beside the packages
                imported &= {*PACKAGES["launcher"], *PACKAGES["aam"]}
            assert imported <= allowed, module


def named_wings(module: str) -> set[str]:
    """Return the wings that a module imports, or names in a text that is no documentation."""
    tree = ast.parse(MODULES[module].read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    }
    names = texts | set(imported_names(module))
    return {wing for wing in WINGS if any(wing in name for name in names)}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("aam")])
def test_the_wings_are_named_by_their_door_alone(module: str) -> None:
    """The stack may name both, the network itself, the study neither but in `aam.wings`."""
    allowed = {"aam.wings": set(WINGS)}.get(module, set())
    if module.startswith("aam.network"):
        allowed = {"aam.network"}
    if module.startswith("aam.stack"):
        allowed = set(WINGS)
    assert named_wings(module) <= allowed


def test_the_study_does_not_import_pytorch() -> None:
    for module, file in MODULES.items():
        if not module.startswith(WINGS):
            assert not re.search(r"^\s*(?:import|from) torch\b", file.read_text(), re.M), module


# `import aam` gives images the folder of the package; it imports nothing else.
@pytest.mark.parametrize(
    ("program", "of_the_other"), [("aam", set()), ("launcher", {"aam", "aam.contract"})]
)
def test_the_programs_share_the_contract_alone(program: str, of_the_other: set[str]) -> None:
    for module in MODULES:
        if module.partition(".")[0] == program:
            names = {n for n in imported_packages(module) if n.partition(".")[0] != program}
            assert names <= of_the_other, module


DEVICE_MODULES = {"aam/contract/gpus.py", "aam/network/numerics/device.py"}
VENDOR_BRANCH = re.compile(
    r"torch\.version\.(?:hip|cuda)|cuda\.is_available|\bin \(?[\"'](?:cuda|xpu)[\"']"
    r"|(?:==|!=|\[|device\()\s*[\"'](?:cuda|hip|xpu|nccl|xccl|amd|nvidia|intel)[\"']"
    r"|[\"'](?:nccl|xccl|gloo)[\"'] if\b|_VISIBLE_DEVICES"
)


def test_only_the_device_modules_of_aam_branch_on_a_gpu_vendor() -> None:
    # Both versions are data of the record of a golden run.
    data = {"aam/stack/golden.py": ["torch.version.hip", "torch.version.cuda"]}
    assert VENDOR_BRANCH.search('if device.type == "cuda":')
    for file in (ROOT / "aam").rglob("*.py"):
        name = str(file.relative_to(ROOT))
        if name not in DEVICE_MODULES:
            assert VENDOR_BRANCH.findall(file.read_text()) == data.get(name, []), name


def test_every_class_has_a_name_of_its_own() -> None:
    found = (re.findall(r"^class (\w+)", file.read_text(), re.M) for file in MODULES.values())
    names = Counter(chain.from_iterable(found))
    assert not [name for name, number in names.items() if number > 1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {module: imported_names(module) & MODULES.keys() for module in MODULES}
    imports["aam"] = set()  # it imports what it hands on when that is first used
    while alone := [module for module, names in imports.items() if not names & imports.keys()]:
        for module in alone:
            del imports[module]
    assert imports == {}
