"""Imports between packages, compared with the table of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `((?:aam|launcher)\.\w+)` \|(.*)\|$", re.MULTILINE)
TABLE = {
    package: set(re.findall(r"`([\w.]+)`", allowed))
    for package, allowed in ROW.findall((ROOT / "docs/architecture.md").read_text())
}
SHARED = {
    "aam.arrays", "aam.contract", "aam.console", "aam.memory", "aam.nucleotide_codes",
    "aam.number_format",
    "aam.run_record", "aam.threads",
}  # fmt: skip


def packages(program: str) -> list[str]:
    return sorted(f"{program}.{path.parent.name}" for path in ROOT.glob(f"{program}/*/__init__.py"))


def imported_packages(file: Path) -> set[str]:
    """Return the packages of the two programs that a file imports, wherever the import stands."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            bare = node.module in ("aam", "launcher")
            names |= {f"{node.module}.{a.name}" for a in node.names} if bare else {node.module}
    return {
        ".".join(name.split(".")[:2])
        for name in names
        if name.partition(".")[0] in ("aam", "launcher")
    }


def test_the_table_lists_every_package() -> None:
    assert sorted(TABLE) == packages("aam") + packages("launcher")


@pytest.mark.parametrize("package", packages("aam"))
def test_imports_of_aam_follow_the_table(package: str) -> None:
    allowed = TABLE[package] | SHARED | {package}
    for file in (ROOT / package.replace(".", "/")).rglob("*.py"):
        assert imported_packages(file) <= allowed, file


@pytest.mark.parametrize("package", packages("launcher"))
def test_imports_of_the_launcher_follow_the_table(package: str) -> None:
    for file in (ROOT / package.replace(".", "/")).rglob("*.py"):
        found = imported_packages(file) & set(packages("launcher"))
        assert found <= TABLE[package] | {package}, file


def test_the_launcher_imports_the_contract_of_aam_alone() -> None:
    for file in (ROOT / "launcher").rglob("*.py"):
        found = {name for name in imported_packages(file) if name.startswith("aam")}
        # `import aam` gives images the folder of the package; it imports nothing else.
        assert found <= {"aam", "aam.contract"}, file


def test_aam_never_imports_the_launcher() -> None:
    for file in (ROOT / "aam").rglob("*.py"):
        assert not {name for name in imported_packages(file) if name.startswith("launcher")}, file


DEVICE_MODULES = {"aam/contract/gpus.py", "aam/numerics/device.py"}
VENDOR_BRANCH = re.compile(
    r"torch\.version\.(?:hip|cuda)|cuda\.is_available|\bin \(?[\"'](?:cuda|xpu)[\"']"
    r"|(?:==|!=|\[|device\()\s*[\"'](?:cuda|hip|xpu|nccl|xccl|amd|nvidia|intel)[\"']"
    r"|[\"'](?:nccl|xccl|gloo)[\"'] if\b|_VISIBLE_DEVICES"
)


def test_only_the_device_modules_of_aam_branch_on_a_gpu_vendor() -> None:
    # Both versions are data of the record of a golden run.
    data = {"aam/golden.py": ["torch.version.hip", "torch.version.cuda"]}
    assert VENDOR_BRANCH.search('if device.type == "cuda":')
    for file in (ROOT / "aam").rglob("*.py"):
        name = str(file.relative_to(ROOT))
        if name not in DEVICE_MODULES:
            assert VENDOR_BRANCH.findall(file.read_text()) == data.get(name, []), name


def test_what_pytorch_2_4_lacks_is_imported_with_an_alternative() -> None:
    """The image for MI50 has PyTorch 2.4: such an import needs a `try` around it."""
    lacking = {"torch.distributed.tensor", "torch.distributed.fsdp"}
    unguarded = []
    for file in (ROOT / "aam").rglob("*.py"):
        tree = ast.parse(file.read_text())
        guarded = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.Try)
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in lacking:
                unguarded += [str(file.relative_to(ROOT))] * (id(node) not in guarded)
    assert unguarded == []


def test_every_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for file in (*(ROOT / "aam").rglob("*.py"), *(ROOT / "launcher").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for program in ("aam", "launcher")
        for file in (ROOT / program).rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, file in files.items():
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= {name if name in files else node.module for name in inside}
        # `aam` and `aam.api` import what they hand on when it is first used.
        imports[module] = set() if module in ("aam", "aam.api") else names & files.keys()
    while alone := [module for module, names in imports.items() if not names & imports.keys()]:
        for module in alone:
            del imports[module]
    assert imports == {}
