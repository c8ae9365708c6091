"""ONNX export: the ASV encoder of a network and the readout of the kernel, checked by ONNX Runtime.

`asv_encoder`: tokens uint8 [U, L] -> vectors float32 [U, D]. `kernel`: tokens uint8 [U, L] and
counts float32 [N, U], reads of the U ASVs in N samples -> predictions float64 [N, C], numbers in
the units of the target or class probabilities. Tokens are the codes of `aam.data.sequences`,
padded or cut to L nucleotides on the right. U ASVs; further shape suffixes: see `base`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from aam import __version__
from aam.contract.errors import DataError, Unavailable
from aam.contract.files import atomic_write
from aam.contract.installation import not_installed
from aam.data.sequences import VOCABULARY
from aam.data.target_transforms import TRANSFORMS
from aam.members.base import FINEST, Tokens
from aam.members.model import Outputs
from aam.members.relations import WIDTH
from aam.model.nucleotides import NucleotideEncoder

if TYPE_CHECKING:  # its method `onnx_parts` imports this module
    from aam.members.kernel import KernelModel

TOLERANCE = 1e-4
"""Largest difference between ONNX Runtime and PyTorch, relative to the largest output."""

_EXPORTED, _CHECKED = (5, 3), (17, 4)
"""ASVs and samples of the example of the export, and of the check.

They differ, so that the check fails where the exporter took a size of the example for constant.
"""


@dataclass(frozen=True)
class Part:
    """Module to export.

    Attributes:
        name: name of the file, without suffix.
        module: network from the inputs to one output.
        inputs: names of the inputs, and the names of the sizes that may vary, by dimension.
        output: name of the output.
        example: function from numbers of ASVs and samples to inputs.
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

    def __init__(self, model: KernelModel, reference_FL: Tensor, outputs: Outputs) -> None:
        super().__init__()
        landmarks = model.landmarks
        self.gamma, self.limits = model.gamma, outputs.scale.range.limits
        self.model_limits = model.limits.tolist()
        self.classes = bool(outputs.classes)
        self.logarithmic = TRANSFORMS[outputs.scale.transform].inverse is np.expm1
        self.reference_FL = reference_FL
        self.weights_RF = torch.from_numpy(landmarks.weights.toarray().astype(np.float64))
        self.norms_R = torch.from_numpy(landmarks.norms_R)
        self.dual_RC = torch.from_numpy(model.dual_RC)
        self.offset_C = torch.from_numpy(model.offset_C)
        self.logits = torch.from_numpy(model.logits)
        self.clades, clades = None, model.summands.clades
        if clades is not None:
            assert landmarks.clades_RG is not None
            first_G, last_G = (torch.from_numpy(each) for each in clades.spans())
            factors_G = model.summands.clade_scale * np.sqrt(clades.lengths_G)
            heights_G = torch.from_numpy(clades.heights_G)
            landmarks_RG = torch.from_numpy(landmarks.clades_RG.toarray())
            self.clades = first_G, last_G, heights_G, torch.from_numpy(factors_G), landmarks_RG

    def forward(self, tokens_UL: Tensor, counts_NU: Tensor) -> Tensor:
        """Map sequences [U, L] and their reads [N, U] to predictions [N, C]."""
        counts_NU = counts_NU.double()
        relative_NU = counts_NU / counts_NU.sum(dim=1, keepdim=True)
        weights_NU = torch.log10(1 + FINEST * relative_NU)
        mismatches_UF = _mismatches(tokens_UL, self.reference_FL)
        kernel_NR = weights_NU @ torch.exp(-mismatches_UF / WIDTH) @ self.weights_RF.T
        own_NU = weights_NU @ torch.exp(-_mismatches(tokens_UL, tokens_UL) / WIDTH)
        norms_N = (own_NU * weights_NU).sum(dim=1)
        if self.clades is not None:
            features_NG = self._clade_features(relative_NU, mismatches_UF)
            kernel_NR = kernel_NR + features_NG @ self.clades[-1].T
            norms_N = norms_N + (features_NG**2).sum(dim=1)
        if self.gamma:
            squared_NR = norms_N[:, None] + self.norms_R - 2 * kernel_NR
            kernel_NR = torch.exp(-self.gamma * squared_NR.clamp(min=0))
        outputs_NC = kernel_NR @ self.dual_RC + self.offset_C
        if self.classes:
            return torch.softmax(outputs_NC @ self.logits[:-1] + self.logits[-1], dim=1)
        if self.model_limits:
            outputs_NC = outputs_NC.clamp(*self.model_limits)
        if self.logarithmic:
            outputs_NC = torch.expm1(outputs_NC)
        return outputs_NC.clamp(*self.limits)

    def _clade_features(self, relative_NU: Tensor, mismatches_UF: Tensor) -> Tensor:
        """Return the scaled features of the clades, [N, G], see `aam.members.dendrogram`."""
        assert self.clades is not None
        first_G, last_G, heights_G, factors_G, _ = self.clades
        position_U = first_G[mismatches_UF.argmin(dim=1)][:, None]
        below_UG = (first_G <= position_U) & (position_U <= last_G)
        member_UG = below_UG & (heights_G >= mismatches_UF.amin(dim=1)[:, None])
        return torch.log10(1 + FINEST * relative_NU @ member_UG.double()) * factors_G


def _mismatches(one_UL: Tensor, two_VL: Tensor) -> Tensor:
    """Return the mismatches of sequences, float64 [U, V], see `aam.members.similarity`."""
    (one, one_U), (two, two_V) = _letters(one_UL), _letters(two_VL)
    # A matrix product instead of a comparison of the letters of all pairs, [U, V, L] in memory.
    return (one_U[:, None] + two_V) / 2 - one @ two.T


def _letters(tokens_UL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indicators of A, C, G, T, float64 [U, 4 L], and their number in each sequence."""
    codes = torch.arange(1, 5, dtype=torch.uint8)
    codes_UP = (tokens_UL[:, :, None] == codes).double().flatten(1)
    return codes_UP, codes_UP.sum(dim=1)


def kernel_part(model: KernelModel, tokens_FL: Tokens, outputs: Outputs) -> Part:
    """Return the readout of a kernel.

    Raises:
        DataError: it reads metadata columns.
    """
    if model.encoder is not None:
        raise DataError(
            "The kernel reads metadata columns, which have no form in ONNX",
            ", ".join(model.encoder.columns),
            "export a model of the counts alone",
        )
    tokens = torch.from_numpy(tokens_FL)

    def example(asvs: int, samples: int) -> tuple[Tensor, ...]:
        rng = torch.Generator().manual_seed(asvs)
        rows = torch.randint(len(tokens), (asvs,), generator=rng)
        return tokens[rows], torch.rand(samples, asvs, generator=rng)

    inputs = {"tokens": {0: "asvs"}, "counts": {0: "samples", 1: "asvs"}}
    length = tokens_FL.shape[1]
    facts = {"column": outputs.column, "classes": outputs.classes, "length": length}
    readout = KernelReadout(model, tokens, outputs)
    return Part("kernel", readout, inputs, "predictions", example, facts)


def encoder_parts(encoders: Sequence[NucleotideEncoder], length: int) -> list[Part]:
    """Return the ASV encoder of each network, for sequences of `length` nucleotides."""

    def example(asvs: int, samples: int) -> tuple[Tensor, ...]:
        rng = torch.Generator().manual_seed(asvs)
        tokens_UL = torch.randint(1, 5, (asvs, length), generator=rng, dtype=torch.uint8)
        tokens_UL[asvs // 2 :, length // 2 :] = 0  # shorter sequences
        return (tokens_UL,)

    name, inputs = "asv_encoder", {"tokens": {0: "asvs"}}
    names = [name] if len(encoders) == 1 else [f"{name}-fold-{k + 1}" for k in range(len(encoders))]
    return [
        Part(name, AsvEncoder(encoder), inputs, "vectors", example, {"length": length})
        for name, encoder in zip(names, encoders, strict=True)
    ]


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
        # The check reads the temporary file: a file that computes other values never gets its name.
        program.save(temporary)
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(temporary), quiet)
        given = {name: one.numpy() for name, one in zip(part.inputs, inputs, strict=True)}
        computed = session.run(None, given)[0]
        difference = float(np.abs(computed - expected).max() / np.abs(expected).max())
        # `not <=` also refuses NaN.
        if not difference <= TOLERANCE:
            raise Unavailable(
                "ONNX Runtime computes other values than PyTorch",
                f"'{path.name}', difference {difference:.2g} of the largest output",
                "use other versions of onnxruntime and onnxscript",
            )
    return difference
