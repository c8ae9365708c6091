"""Import of scikit-bio without PyTorch, which takes 2 CPU-seconds to import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_torch() -> Iterator[None]:
    """Let the imports of the block find no PyTorch, unless it is imported already.

    scikit-bio imports it where it is installed, for tests of its own (skbio/util/_testing.py).
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
