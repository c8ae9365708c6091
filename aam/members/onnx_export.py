"""ONNX export: the ASV encoder of a network and the readout of the kernel, checked by ONNX Runtime.

`asv_encoder`: tokens uint8 [U, L] -> vectors float32 [U, D]. `kernel`: tokens uint8 [U, L] and
counts float32 [N, U], reads of the U ASVs in N samples -> predictions float64 [N, C], numbers in
the units of the target or class probabilities. Tokens are the codes of `aam.data.sequences`,
padded or cut to L nucleotides on the right. U ASVs; further shape suffixes: see `base`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aam import __version__
from aam.contract.errors import DataError, Unavailable
from aam.contract.files import atomic_write
from aam.contract.installation import not_installed
from aam.data.sequences import VOCABULARY
from aam.data.target_transforms import TRANSFORMS
from aam.inference.model_config import load_network
from aam.members import checkpoint
from aam.members.base import FINEST
from aam.members.checkpoint import EnsembleCheckpoint
from aam.members.kernel import KernelModel
from aam.members.relations import WIDTH
from aam.model.network import Predictor
from aam.model.nucleotides import NucleotideEncoder
from aam.training.run_files import checkpoints
from aam.training.run_files.checkpoints import checkpoint_files

TOLERANCE = 1e-4
"""Largest difference between ONNX Runtime and PyTorch, relative to the largest output."""

_EXPORTED, _CHECKED = (5, 3), (17, 4)
"""ASVs and samples of the example of the export, and of the check."""


@dataclass(frozen=True)
class Part:
    """Module to export.

    Attributes:
        name: of the file, without suffix.
        module: from the inputs to one output.
        inputs: names of the inputs, and the names of the sizes that may vary, by dimension.
        output: name of the output.
        example: from numbers of ASVs and samples to inputs.
        facts: written into the file.
    """

    name: str
    module: nn.Module
    inputs: dict[str, dict[int, str]]
    output: str
    example: Callable[[int, int], tuple[Tensor, ...]]
    facts: dict[str, Any]


class AsvEncoder(nn.Module):
    """Nucleotide encoder from sequences to one vector each."""

    def __init__(self, nucleotides: NucleotideEncoder) -> None:
        super().__init__()
        self.nucleotides = nucleotides

    def forward(self, tokens_UL: Tensor) -> Tensor:
        """Map [U, L] to [U, D]."""
        vectors_UD: Tensor = self.nucleotides(tokens_UL, True)[0]
        return vectors_UD


class KernelReadout(nn.Module):
    """Prediction of the kernel estimator, see `aam.members.kernel`, in double precision."""

    def __init__(self, loaded: EnsembleCheckpoint, model: KernelModel) -> None:
        super().__init__()
        stored, landmarks = loaded.stored, model.landmarks
        self.gamma, self.limits = model.gamma, stored.range.limits
        self.model_limits = model.limits.tolist()
        self.classes = bool(stored.classes)
        self.logarithmic = TRANSFORMS[stored.transform].inverse is np.expm1
        self.reference_FL = torch.from_numpy(loaded.tokens_FL)
        self.weights_MF = torch.from_numpy(landmarks.weights.toarray().astype(np.float64))
        self.norms_M = torch.from_numpy(landmarks.norms_M)
        self.dual_MC = torch.from_numpy(model.dual_MC)
        self.offset_C = torch.from_numpy(model.offset_C)
        self.logits = torch.from_numpy(model.logits)
        self.clades, clades = None, model.summands.clades
        if clades is not None:
            assert landmarks.clades_MB is not None
            first_B, last_B = (torch.from_numpy(each) for each in clades.spans())
            factors_B = model.summands.clade_scale * np.sqrt(clades.lengths_B)
            heights_B = torch.from_numpy(clades.heights_B)
            landmarks_MB = torch.from_numpy(landmarks.clades_MB.toarray())
            self.clades = first_B, last_B, heights_B, torch.from_numpy(factors_B), landmarks_MB

    def forward(self, tokens_UL: Tensor, counts_NU: Tensor) -> Tensor:
        """Map sequences [U, L] and their reads [N, U] to predictions [N, C]."""
        counts_NU = counts_NU.double()
        relative_NU = counts_NU / counts_NU.sum(dim=1, keepdim=True)
        weights_NU = torch.log10(1 + FINEST * relative_NU)
        mismatches_UF = _mismatches(tokens_UL, self.reference_FL)
        kernel_NM = weights_NU @ torch.exp(-mismatches_UF / WIDTH) @ self.weights_MF.T
        own_NU = weights_NU @ torch.exp(-_mismatches(tokens_UL, tokens_UL) / WIDTH)
        norms_N = (own_NU * weights_NU).sum(dim=1)
        if self.clades is not None:
            features_NB = self._clade_features(relative_NU, mismatches_UF)
            kernel_NM = kernel_NM + features_NB @ self.clades[-1].T
            norms_N = norms_N + (features_NB**2).sum(dim=1)
        if self.gamma:
            squared_NM = norms_N[:, None] + self.norms_M - 2 * kernel_NM
            kernel_NM = torch.exp(-self.gamma * squared_NM.clamp(min=0))
        outputs_NC = kernel_NM @ self.dual_MC + self.offset_C
        if self.classes:
            return torch.softmax(outputs_NC @ self.logits[:-1] + self.logits[-1], dim=1)
        if self.model_limits:
            outputs_NC = outputs_NC.clamp(*self.model_limits)
        if self.logarithmic:
            outputs_NC = torch.expm1(outputs_NC)
        return outputs_NC.clamp(*self.limits)

    def _clade_features(self, relative_NU: Tensor, mismatches_UF: Tensor) -> Tensor:
        """Return the scaled features of the clades, [N, B], see `aam.members.dendrogram`."""
        assert self.clades is not None
        first_B, last_B, heights_B, factors_B, _ = self.clades
        position_U = first_B[mismatches_UF.argmin(dim=1)][:, None]
        below_UB = (first_B <= position_U) & (position_U <= last_B)
        member_UB = below_UB & (heights_B >= mismatches_UF.amin(dim=1)[:, None])
        return torch.log10(1 + FINEST * relative_NU @ member_UB.double()) * factors_B


def _mismatches(one_UL: Tensor, two_VL: Tensor) -> Tensor:
    """Return the mismatches of sequences, float64 [U, V], see `aam.members.similarity`."""
    (one, one_U), (two, two_V) = _letters(one_UL), _letters(two_VL)
    return (one_U[:, None] + two_V) / 2 - one @ two.T


def _letters(tokens_UL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indicators of A, C, G, T, float64 [U, 4 L], and their number in each sequence."""
    codes = torch.arange(1, 5, dtype=torch.uint8)
    codes_UP = (tokens_UL[:, :, None] == codes).double().flatten(1)
    return codes_UP, codes_UP.sum(dim=1)


def parts_of(model: Path) -> list[Part]:
    """Return what can be exported of a run folder or a checkpoint.

    Raises:
        MissingInput: there is no checkpoint.
        DataError: it cannot be read; a forest alone; a kernel that reads metadata columns.
    """
    parts: list[Part] = []
    file = checkpoint.find(model)
    if file is None:
        networks = [checkpoints.read(one) for one in checkpoint_files(model)]
    else:
        loaded = checkpoint.read(file)
        networks = loaded.networks
        if isinstance(kernel := loaded.models.get("kernel"), KernelModel):
            if kernel.encoder is not None:
                raise DataError(
                    "The kernel reads metadata columns, which have no form in ONNX",
                    ", ".join(kernel.encoder.columns),
                    "export a model of the counts alone",
                )
            parts.append(_kernel_part(loaded, kernel))
    for fold, (config, content) in enumerate(networks, start=1):
        network = load_network(config, content).eval()
        encoder = network.encoder if isinstance(network, Predictor) else network
        name = "asv_encoder" if len(networks) == 1 else f"asv_encoder-fold-{fold}"
        parts.append(_encoder_part(name, encoder.nucleotides, config.shape.max_bp))
    if not parts:
        remedy = "export a model with the member kernel or transformer"
        raise DataError("Nothing that can be exported", f"'{model}' has a forest alone", remedy)
    return parts


def _kernel_part(loaded: EnsembleCheckpoint, model: KernelModel) -> Part:
    tokens_FL, stored = torch.from_numpy(loaded.tokens_FL), loaded.stored

    def example(asvs: int, samples: int) -> tuple[Tensor, ...]:
        rng = torch.Generator().manual_seed(asvs)
        rows = torch.randint(len(tokens_FL), (asvs,), generator=rng)
        return tokens_FL[rows], torch.rand(samples, asvs, generator=rng)

    inputs = {"tokens": {0: "asvs"}, "counts": {0: "samples", 1: "asvs"}}
    facts = {"column": stored.column, "classes": stored.classes, "length": tokens_FL.shape[1]}
    return Part("kernel", KernelReadout(loaded, model), inputs, "predictions", example, facts)


def _encoder_part(name: str, nucleotides: NucleotideEncoder, length: int) -> Part:
    def example(asvs: int, samples: int) -> tuple[Tensor, ...]:
        rng = torch.Generator().manual_seed(asvs)
        tokens_UL = torch.randint(1, 5, (asvs, length), generator=rng, dtype=torch.uint8)
        tokens_UL[asvs // 2 :, length // 2 :] = 0  # shorter sequences
        return (tokens_UL,)

    inputs = {"tokens": {0: "asvs"}}
    return Part(name, AsvEncoder(nucleotides), inputs, "vectors", example, {"length": length})


def export(part: Part, path: Path) -> float:
    """Write a part as ONNX, run it, and return its largest difference from PyTorch.

    The difference is relative to the largest output.

    Raises:
        Unavailable: a package is missing, or ONNX Runtime computes other values.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - PyTorch's exporter needs it
    except ImportError as error:
        raise not_installed("The export needs onnxruntime and onnxscript", error, "onnx") from error
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sizes = {name for axes in part.inputs.values() for name in axes.values()}
    # PyTorch 2.7 excludes the largest integer from the sizes, so they need a maximum.
    dims = {name: torch.export.Dim(name, max=2**31 - 1) for name in sizes}
    shapes = tuple({k: dims[name] for k, name in axes.items()} for axes in part.inputs.values())
    with torch.no_grad():
        graph = torch.export.export(part.module, part.example(*_EXPORTED), dynamic_shapes=shapes)
        program = torch.onnx.export(
            graph,
            dynamo=True,
            input_names=list(part.inputs),
            output_names=[part.output],
            verbose=False,
        )
        assert program is not None
        facts = part.facts | {"aam": __version__, "letters": "".join(VOCABULARY)}
        program.model.metadata_props["aam"] = json.dumps(facts)
        inputs = part.example(*_CHECKED)
        expected = part.module(*inputs).numpy()
    with atomic_write(path) as temporary:
        program.save(temporary)
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(temporary), quiet)
        given = {name: one.numpy() for name, one in zip(part.inputs, inputs, strict=True)}
        computed = session.run(None, given)[0]
        difference = float(np.abs(computed - expected).max() / np.abs(expected).max())
        if not difference <= TOLERANCE:
            raise Unavailable(
                "ONNX Runtime computes other values than PyTorch",
                f"'{path.name}', difference {difference:.2g} of the largest output",
                "use other versions of onnxruntime and onnxscript",
            )
    return difference
