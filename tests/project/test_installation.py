"""The origin of an installation, which messages name instead of a package of another project."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aam.contract.installation import DISTRIBUTION

ROOT = Path(__file__).parents[2]
CODE = (
    "from aam.contract.installation import install_command; print(install_command('model', 'py'))"
)


def command(folder: Path) -> list[str]:
    """The command that a Python prints whose only package folder is `folder`."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", CODE],
        env={"PYTHONPATH": str(folder)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout)


def installed(folder: Path, direct_url: dict[str, object] | None) -> Path:
    """A package folder as pip leaves it, with the record of where it installed from."""
    (folder / "aam").symlink_to(ROOT / "aam")
    info = folder / "attention_all_microbes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1.0\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    return folder


@pytest.mark.parametrize(
    ("direct_url", "source"),
    [
        ({"url": "file:///home/a%20b/aam", "dir_info": {"editable": True}}, "/home/a b/aam[model]"),
        (
            {"url": "https://example.org/aam.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            f"{DISTRIBUTION}[model] @ git+https://example.org/aam.git",
        ),
        (None, f"{DISTRIBUTION}[model]"),
    ],
)
def test_the_origin_that_pip_recorded(
    tmp_path: Path, direct_url: dict[str, object] | None, source: str
) -> None:
    assert command(installed(tmp_path, direct_url)) == ["py", "-m", "pip", "install", source]


def test_a_checkout_that_was_not_installed() -> None:
    assert command(ROOT) == ["py", "-m", "pip", "install", f"{ROOT}[model]"]


def test_nothing_advises_the_package_of_another_project() -> None:
    """`aam` on the package index is a static site generator."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    if not files:  # a source archive
        files = [p for part in ("aam", "launcher", "docs") for p in (ROOT / part).rglob("*.*")]
    advice = "aam" + "[model]"
    wrong = [path for path in files if path.is_file() and advice in path.read_text(errors="ignore")
             and path != Path(__file__)]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize("target", ["demo", "clean"])
def test_make_keeps_an_environment_that_it_did_not_make(tmp_path: Path, target: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    mine = tmp_path / ".venv" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = subprocess.run(["make", target], cwd=tmp_path, capture_output=True, text=True)
    assert mine.read_text() == "mine"
    if target == "demo":
        assert done.returncode == 2
        assert "name another folder: make VENV=.venv-aam demo" in done.stderr


PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) echo 3.11.0 ;;
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *urlopen*) exit "$UNREACHABLE" ;;
    *) echo "$*" >> installed ;;
esac
"""


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver of NVIDIA")
@pytest.mark.parametrize(("nvidia", "reachable"), [(False, True), (False, False), (True, True)])
def test_make_takes_the_cpu_build_without_a_driver(
    tmp_path: Path, nvidia: bool, reachable: bool
) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("python", *["nvidia-smi"] * nvidia):
        (tmp_path / name).write_text(PYTHON)
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "UNREACHABLE": str(int(not reachable))}
    command = ["make", "PYTHON=./python", ".venv/has-model"]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True)
    *torch, rest = (tmp_path / "installed").read_text().splitlines()
    assert rest.endswith("install --constraint requirements.lock --editable .[model]")
    assert len(torch) == (not nvidia and reachable)
    for line in torch:
        assert "--no-deps --index-url https://download.pytorch.org/whl/cpu torch==2." in line
