"""Image folders and package indexes of tests."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import USER, Engines
from tests.support.images import workshop


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Engines]:
    """Engines with an empty image folder of their own, which the test user may write."""
    engines = workshop()
    folder = Path("/var/tmp") / f"aam-images-{os.getpid()}"
    folder.mkdir()
    shutil.chown(folder, USER, USER)
    try:
        yield Engines(engines.folder, engines.state, folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index with the wheels of which the lock of rocm60 has no hash."""
    wheel = "pytorch_triton_rocm-3.0.0-cp311-cp311-linux_x86_64.whl"
    page = tmp_path / "served/pytorch-triton-rocm/index.html"
    page.parent.mkdir(parents=True)
    links = [(wheel.replace("cp311", "cp312"), "0" * 64), (wheel, "70" * 32)]
    page.write_text("".join(f'<a href="/x/{w}#sha256={h}">{w}</a>\n' for w, h in links))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
