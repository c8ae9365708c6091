"""The notebook of the Python interface runs as it is, from top to bottom."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "python_api.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel is this interpreter, with nothing of the user's settings.
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    errors = [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    # The simulation is a command, whose messages are the only ones.
    assert [out for out in errors if "simulated" not in out.get("text", "").lower()] == []
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == 2
    if kept := os.environ.get("AAM_KEEP_NOTEBOOK"):
        nbformat.write(notebook, kept)
