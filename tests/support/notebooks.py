"""Notebooks that a real kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


class Notebook(NotebookClient):
    """Kernel that runs cells, and the texts that their outputs show one after the other."""

    def __init__(self, *cells: str, folder: Path) -> None:
        cells_of = [nbformat.v4.new_code_cell(cell) for cell in cells]
        super().__init__(
            nbformat.v4.new_notebook(cells=cells_of),
            resources={"metadata": {"path": str(folder)}},
            kernel_name="python3",
            timeout=300,
        )
        self.shown: list[str] = []

    def process_message(self, msg: dict[str, Any], *arguments: Any) -> Any:
        self.shown.append(msg["content"].get("data", {}).get("text/html", ""))
        return super().process_message(msg, *arguments)
