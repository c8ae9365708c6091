"""Command `aam export`: the ASV encoders of a model as ONNX files, checked by ONNX Runtime.

A file maps tokens, uint8 [U, L], to vectors, float32 [U, D], of U ASVs. Tokens are the codes of
`aam.data.sequences`, padded or cut on the right to L nucleotides.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from aam.console import info
from aam.contract.errors import DataError, Unavailable
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.installation import not_installed
from aam.contract.options.commands.use import Export
from aam.contract.options.groups import DeviceOptions
from aam.contract.version import __version__
from aam.members.model_file import read
from aam.network.model.encoders import NucleotideEncoder
from aam.nucleotide_codes import VOCABULARY

TOLERANCE = 1e-4
"""Largest difference between ONNX Runtime and PyTorch, relative to the largest output."""


class AsvEncoder(nn.Module):
    """Nucleotide encoder that returns the vectors alone."""

    def __init__(self, nucleotides: NucleotideEncoder) -> None:
        super().__init__()
        self.nucleotides = nucleotides

    def forward(self, tokens_UL: Tensor) -> Tensor:
        """Map [U, L] to [U, D]."""
        vectors_UD: Tensor = self.nucleotides(tokens_UL, True)[0]
        return vectors_UD


def export(encoder: NucleotideEncoder, length: int, path: Path) -> float:
    """Write an ASV encoder as ONNX, run it, and return its largest relative difference."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - PyTorch's exporter needs it
    except ImportError as error:
        raise not_installed("The export needs onnxruntime and onnxscript", error, "onnx") from error
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def example(asvs: int) -> Tensor:
        rng = torch.Generator().manual_seed(asvs)
        tokens_UL = torch.randint(1, 5, (asvs, length), generator=rng, dtype=torch.uint8)
        tokens_UL[asvs // 2 :, length // 2 :] = 0  # shorter sequences
        return tokens_UL

    module = AsvEncoder(encoder).eval()
    # The check has another number of ASVs than the export, so that it fails if the exporter took
    # this number for a constant. The number needs a maximum: PyTorch 2.7 excludes the largest
    # integer.
    shapes = ({0: torch.export.Dim("asvs", max=2**31 - 1)},)
    tokens_UL = example(17)
    with torch.no_grad():
        graph = torch.export.export(module, (example(5),), dynamic_shapes=shapes)
        program = torch.onnx.export(
            graph, dynamo=True, input_names=["tokens"], output_names=["vectors"], verbose=False
        )
        assert program is not None
        expected_UD = module(tokens_UL).numpy()
    facts = {"length": length, "aam": __version__, "letters": "".join(VOCABULARY)}
    program.model.metadata_props["aam"] = json.dumps(facts)
    with atomic_write(path) as temporary:
        # The check reads the temporary file, so a file that computes wrong values is never renamed.
        program.save(temporary)
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(temporary), quiet)
        computed_UD = session.run(None, {"tokens": tokens_UL.numpy()})[0]
        difference = float(np.abs(computed_UD - expected_UD).max() / np.abs(expected_UD).max())
        # `not <=` also refuses NaN.
        if not difference <= TOLERANCE:
            raise Unavailable(
                "ONNX Runtime and PyTorch compute different values",
                f"'{path.name}', difference {difference:.2g} of the largest output",
                "use other versions of onnxruntime and onnxscript",
            )
    return difference


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
    differences: dict[str, object] = {}
    for path, encoder in zip(paths, encoders, strict=True):
        differences[path.name] = difference = export(encoder, model.max_bp, path)
        info(f"{path}: ONNX Runtime differs from PyTorch by {difference:.1g} of the largest output")
    return {"differences": differences}
