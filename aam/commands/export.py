"""`aam export`: ASV encoder and kernel readout of a model as ONNX."""

from __future__ import annotations

from aam.console import info
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Export
from aam.members.onnx_export import export, parts_of


def run(options: Export) -> dict[str, object]:
    """Write a file for each part of the model; return their differences for the run record.

    Raises:
        AamError: see `parts_of` and `export`; CannotCreate if a file exists.
    """
    folder = options.output_dir
    paths = {folder / f"{part.name}.onnx": part for part in parts_of(options.model)}
    for path in paths:
        refuse_existing(path, options.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    differences: dict[str, object] = {}
    for path, part in paths.items():
        differences[path.name] = difference = export(part, path)
        info(f"{path}: ONNX Runtime differs from PyTorch by {difference:.1g} of the largest output")
    return {"differences": differences}
