"""Import of scikit-bio without PyTorch, which takes 2 CPU-seconds to import."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder


class _NoTorch(MetaPathFinder):
    """Finder of modules that does not find PyTorch."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "torch":
            raise ModuleNotFoundError("PyTorch is not imported here", name=fullname)


@contextmanager
def without_torch() -> Iterator[None]:
    """Let the imports of the block find no PyTorch, unless it is imported already.

    scikit-bio imports it where it is installed, for tests of its own (skbio/util/_testing.py).
    """
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
