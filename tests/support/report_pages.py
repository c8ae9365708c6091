"""The page of a report, parsed and opened in a browser, for tests of reports."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from aam.cli import main


def report(folder: Path, *more: str) -> str:
    assert main(["report", "--run-dir", str(folder), *more]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Checks that tags are closed in order, and gathers ids, labels and addresses."""

    void = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [str(found["id"])] if "id" in found else []
        self.addresses += [str(found[k]) for k in ("src", "href", "xlink:href") if k in found]
        if tag == "svg":
            self.labels.append(str(found["aria-label"]))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_own_script_alone(text: str) -> None:
    """The page has the copy buttons' script, and its policy allows no other."""
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-"
    assert f"{policy}{digest}'" in text


def downloads(text: str) -> dict[str, str]:
    """Return the content of each data link by the name of its file."""
    links = re.findall(r'download="([^"]*)" href="data:[^,]*;base64,([^"]*)"', text)
    return {name: base64.b64decode(content).decode() for name, content in links}


def chromium(page: Path, picture: Path, size: tuple[int, int], dark: bool) -> str:
    """Photograph a page; returns what the browser logged of its console."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    flags = [*scheme, "--hide-scrollbars", "--enable-logging=stderr", f"--screenshot={picture}"]
    done = browse(page, size, *flags)
    assert picture.is_file(), done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def browse(page: Path, size: tuple[int, int], *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page in Chromium without a window; its narrowest width is 500 pixels."""
    if shutil.which("chromium") is None and not os.environ.get("CI"):
        pytest.skip("chromium is not installed")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", f"--user-data-dir={page.parent / 'profile'}"]
    command += [f"--window-size={size[0]},{size[1]}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def scroll_width(text: str, folder: Path) -> int:
    """Return the width of a page in a window of 500 pixels, the least that Chromium has."""
    return in_browser(text, folder, "document.documentElement.scrollWidth", 500)


def hidden_width(text: str, folder: Path) -> int:
    """Return the pixels to which tables scroll in a window of 1,280 pixels, the most of any."""
    opened = "document.querySelectorAll('details').forEach(part => { part.open = true; })"
    tables = "[...document.querySelectorAll('main > section:not(#part-training) .wide')]"
    widths = f"{tables}.map(each => each.scrollWidth - each.clientWidth)"
    return in_browser(text, folder, f"({opened}, Math.max(...{widths}))", 1280)


def in_browser(text: str, folder: Path, expression: str, width: int) -> int:
    """Return a number that a script computes in a page, in a window of so many pixels."""
    probe = f"<script>document.title = {expression}</script>"
    text = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", probe + "</body>")
    (folder / "page.html").write_text(text, encoding="utf-8")
    done = browse(folder / "page.html", (width, 900), "--dump-dom")
    found = re.search(r"<title>(-?\d+)</title>", done.stdout)
    assert found is not None
    return int(found[1])
