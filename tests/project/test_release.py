"""Release: wheel and source archive, with all data files, installed in a clean environment."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aam.contract.version import RELEASED, URL, __version__
from tests.support.scripts import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = tmp_path_factory.mktemp("release") / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes((ROOT / name).read_bytes())
            (checkout / name).chmod((ROOT / name).stat().st_mode)
    return checkout


@pytest.fixture(scope="module")
def archives(checkout: Path) -> tuple[Path, Path]:
    """The wheel, built from the source archive, and the source archive of the tracked files."""
    folder = checkout.parent
    run(sys.executable, "-m", "build", "--outdir", folder, checkout)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files() -> set[str]:
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
    assert f'\ndate-released: "{RELEASED}"\n' in citation
    assert f'\nurl: "{URL}"\n' in citation
    assert '\ntitle: "AAM: Attention All Microbes"\n' in citation
    plugin = ROOT / "plugins/q2-aam"
    assert f'__version__ = "{__version__}"' in (plugin / "q2_aam/__init__.py").read_text()
    assert f"attention-all-microbes=={__version__}" in (plugin / "pyproject.toml").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{__version__}]" in changelog


# --- the steps of a release


SOURCE = "https://example.org/ada/aam"


def release(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(checkout / ".ci/release"), *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False)


@pytest.fixture
def tagged(checkout: Path) -> Iterator[Path]:
    """A checkout whose changelog has the version's heading."""
    changelog, readme = checkout / "CHANGELOG.md", checkout / "README.md"
    before = changelog.read_text(), readme.read_text()
    changelog.write_text(
        before[0].replace("## [Unreleased]", f"## [{__version__}] - 2026-12-01", 1)
    )
    yield checkout
    changelog.write_text(before[0])
    readme.write_text(before[1])
    shutil.rmtree(checkout / "published", ignore_errors=True)


def test_a_tag_is_refused_before_anything_is_built(checkout: Path) -> None:
    done = release(checkout, "plan", f"v{__version__}")
    assert done.returncode == 1
    assert f"::error::CHANGELOG.md has no entries under ## [{__version__}]" in done.stderr
    other = release(checkout, "plan", "v9.9.9")
    assert f"the tag is v9.9.9, the version v{__version__}" in other.stderr


def test_a_plan_lists_the_images(tagged: Path) -> None:
    done = release(tagged, "plan", f"v{__version__}")
    assert done.returncode == 0, done.stderr
    assert {"cpu", "cuda", "rocm63"} <= set(json.loads(done.stdout.removeprefix("images=")))


def test_a_link_that_leads_nowhere_is_refused(tagged: Path) -> None:
    with (tagged / "README.md").open("a") as readme:
        readme.write("[gone](docs/gone.md)\n")
    done = release(tagged, "plan", f"v{__version__}")
    assert (done.returncode, "links to docs/gone.md" in done.stderr) == (1, True), done.stderr


def test_links_of_the_package_index_are_those_of_the_tag() -> None:
    script = load_script(ROOT / ".ci/release")
    text = script.for_index((ROOT / "README.md").read_text(), SOURCE)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets
    assert all(target.startswith(("https://", "http://", "#")) for target in targets)
    assert "![" in text and f"]({SOURCE}/raw/v{__version__}/docs/images/" in text
    project = script.with_urls((ROOT / "pyproject.toml").read_text(), SOURCE)
    assert f'[project.urls]\nSource = "{SOURCE}"\n' in project


def test_a_failed_image_is_missing_on_the_page_and_a_required_one_stops_it(tagged: Path) -> None:
    (tagged / "published").mkdir()
    for name in ("cpu", "cuda"):
        (tagged / f"published/{name}.oci").write_text("sha256:1\n")
    refused = release(tagged, "packages", "ghcr.io/ada/aam", SOURCE)
    assert (refused.returncode, refused.stderr) == (1, "::error::no release without rocm63\n")
    images = {"cpu": {"oci": "sha256:1", "sif": "sha256:2"}, "rocm63": {"oci": "sha256:3"}}
    content = {"registry": "ghcr.io/ada/aam", "source": SOURCE, "images": images}
    (tagged / "launcher/images/published.json").write_text(json.dumps(content))
    page = release(tagged, "notes").stdout
    (tagged / "launcher/images/published.json").unlink()
    assert "| rocm63 | `sha256:3` | missing |" in page
    assert "because their builds failed: cuda" in page
    assert "### Added" in page


def test_workflows_pin_what_they_use() -> None:
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (\S+)(.*)", file.read_text())
        for action, comment in used:
            local = action.startswith("./")
            assert local or re.fullmatch(r"\S+@[0-9a-f]{40}", action), (file.name, action)
            assert local or re.search(r"# v\d", comment), (file.name, action)
