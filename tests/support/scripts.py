"""Scripts of the project as modules, for tests of their functions."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace


def load_script(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(path), run_name=path.stem))
