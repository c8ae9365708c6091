"""Release: wheel and source archive, with all data files, installed in a clean environment."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aam.contract.version import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, built from the source archive, and the source archive of the tracked files."""
    folder = tmp_path_factory.mktemp("release")
    checkout = folder / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--outdir", folder, checkout)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files() -> set[str]:
    """The modules and data files of the two packages."""
    listed = subprocess.run(
        ["git", "ls-files", "aam", "launcher"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages(archives: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(archives[0]).namelist())
    assert {Path(name).suffix for name in package_files()} >= {".css", ".j2", ".yaml", ".typed"}
    assert package_files() <= names
    assert any(name.endswith("share/aam/containers/rocm63.def") for name in names)
    assert not [name for name in names if name.startswith(("tests", "plugins", "benchmarks"))]


@pytest.mark.nightly
@pytest.mark.slow
def test_both_install_in_a_clean_environment(archives: tuple[Path, Path], tmp_path: Path) -> None:
    for archive in archives:
        place = tmp_path / archive.suffix.lstrip(".")
        run(sys.executable, "-m", "venv", place)
        run(place / "bin/python", "-m", "pip", "install", "-q", archive)
        assert run(place / "bin/aam", "--version") == f"aam {__version__}\n"
        assert __version__ in run(place / "bin/aam-launch", "--version")
        assert "rocm63" in run(place / "bin/aam-launch", "images")
        for command in (["explain", "check"], ["doctor"]):
            argv = [place / "bin/aam-launch", *command]
            done = subprocess.run(argv, cwd="/", capture_output=True, text=True)
            assert done.returncode in (0, 69), done.stderr  # 69: no engine, no GPU
            assert "Traceback" not in done.stderr
        code = "import aam, sys; sys.exit('torch' in sys.modules or not aam.__version__)"
        run(place / "bin/python", "-c", code)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_extra_makes_a_study(archives: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "model"
    run(sys.executable, "-m", "venv", place)
    run(
        place / "bin/pip",
        "install",
        "-q",
        "-c",
        ROOT / "requirements.lock",
        f"{archives[0]}[model]",
    )
    run(place / "bin/aam", "example", "--output-dir", tmp_path / "study")
    table = tmp_path / "study/table.biom"
    assert "samples" in run(place / "bin/aam", "inspect", table)


def test_version_changelog_and_citation_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    plugin = ROOT / "plugins/q2-aam"
    assert f'__version__ = "{__version__}"' in (plugin / "q2_aam/__init__.py").read_text()
    assert f"attention-all-microbes=={__version__}" in (plugin / "pyproject.toml").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{__version__}]" in changelog
