"""The site of docs/: MkDocs builds it without a warning, and a broken link fails the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aam.contract.options import specs
from aam.contract.options.commands import find, names
from launcher import commands
from launcher.plan.settings import LAUNCHER_OPTIONS

ROOT = Path(__file__).parents[2]
SOURCES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "mkdocs.yml", "docs"]


def build(root: Path, site: Path, report: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "AAM_SAMPLE_REPORT": report}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    report = folder.with_name("report.html")
    report.write_text("<html><body>R² 0.9 of <b>ph</b></body></html>")
    done = build(ROOT, folder, str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", names())
def test_each_command_has_a_page_with_its_options(site: Path, name: str) -> None:
    page = (site / "reference" / f"{'-'.join(name.split())}.html").read_text()
    missing = [s.flag for s in specs(find(name) or object) if f"<code>{s.flag}</code>" not in page]
    assert not missing


@pytest.mark.parametrize("name", commands.NAMES)
def test_the_page_of_the_launcher_has_the_options_of_each_command(site: Path, name: str) -> None:
    page = (site / "reference" / "aam-launch.html").read_text()
    flags = [*LAUNCHER_OPTIONS, *(spec.flag for spec in specs(commands.find(name)))]
    assert f">aam-launch {name}<" in page
    assert not [flag for flag in flags if f"<code>{flag}</code>" not in page]


def test_pages_need_no_other_host(site: Path) -> None:
    pages = [page.read_text() for page in site.rglob("*.html")]
    assert len(pages) > 30
    assert not [page for page in pages if '<script src="http' in page or "fonts.googleapis" in page]


def test_the_page_of_the_report_shows_it_as_it_is(site: Path) -> None:
    page = (site / "sample_report.html").read_text()
    (source,) = re.findall(r'<iframe src="([^"]*)"', page)
    assert (site / source).read_text() == "<html><body>R² 0.9 of <b>ph</b></body></html>"


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    root.mkdir()
    for source in SOURCES:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, root / source)
    with (root / "docs" / "troubleshooting.md").open("a") as page:
        page.write("\n[missing](glossary.md#no-such-heading)\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-heading" in done.stdout + done.stderr
