"""Command `aam export`: the ASV encoders of a model as ONNX files."""

from __future__ import annotations

from aam.console import info
from aam.contract.errors import DataError
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Export
from aam.contract.options.groups import DeviceOptions
from aam.members.model_file import read


def run_export(options: Export) -> dict[str, object]:
    """Run `aam export`: write an ONNX file for each network of the model."""
    # ONNX Runtime is compared with PyTorch on the CPU.
    folder, model = options.output_dir, read(options.model, DeviceOptions(device="cpu"))
    encoders = [encoder for member in model.models.values() for encoder in member.asv_encoders()]
    if not encoders:
        evidence = f"'{options.model}' has {', '.join(model.models)}"
        remedy = "export a model with the member transformer, or a pretrained encoder"
        raise DataError("The model has no network to export", evidence, remedy)
    number = len(encoders)
    names = [f"asv_encoder-fold-{fold}" for fold in range(1, number + 1)]
    paths = [folder / f"{name}.onnx" for name in (names if number > 1 else ["asv_encoder"])]
    for path in paths:
        refuse_existing(path, options.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    # The import of PyTorch takes 2 CPU-seconds, so refusals come first.
    from aam.network.inference.onnx_export import export

    differences: dict[str, object] = {}
    for path, encoder in zip(paths, encoders, strict=True):
        differences[path.name] = difference = export(encoder, model.max_bp, path)
        info(f"{path}: ONNX Runtime differs from PyTorch by {difference:.1g} of the largest output")
    return {"differences": differences}
