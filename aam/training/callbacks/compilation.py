"""First steps of training: torch.compile of the encoder, report of the modules that output fp32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aam.console import info, warn
from aam.contract.options.device import CompileModel
from aam.data.batches import Batch
from aam.model.transformer import FEED_FORWARD, PRODUCTS
from aam.numerics.compile import compile_in_place, refusal
from aam.numerics.device import compile_fault
from aam.numerics.precision import Precision
from aam.training.callbacks.observer import Observer
from aam.training.run_files.resume import Position
from aam.training.run_files.run_folder import Note
from aam.training.step import GradientStep
from aam.training.training_module import TrainingModule


class Fp32Report(Observer):
    """Report of the modules that output fp32 in the first steps under mixed precision."""

    STEPS = 3

    def __init__(self, precision: Precision, note: Note) -> None:
        self.precision, self.note = precision, note
        self.done = False
        self._left = self.STEPS
        self._class_names: dict[str, str] = {}
        self._fp32: set[str] = set()
        self._hooks: list[Any] = []

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Register a forward hook on every leaf module."""
        if self.precision == "none":
            warn("--report-fp32-fallbacks: all runs in fp32 without --mixed-precision.")
            self.done = True
            return
        for name, module in task.network.named_modules():
            if not list(module.children()):
                self._hooks.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            self._class_names[name] = type(module).__name__
            if isinstance(output, Tensor) and output.dtype == torch.float32:
                self._fp32.add(name)

        return record

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        """Remove the hooks after a few steps and print the report."""
        self._left -= 1
        if self._left == 0 and not self.done:
            self._finish()

    def end(self, complete: bool) -> None:
        """Print the report of a run that is shorter."""
        if not self.done:
            self._finish()

    def _finish(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.done = True
        by_class = defaultdict(list)
        for name in self._class_names:
            if name in self._fp32:
                by_class[self._class_names[name]].append(name)
        info(
            f"{len(self._fp32)} of {len(self._class_names)} modules ran in fp32 "
            f"under {self.precision}:"
        )
        for class_name, names in sorted(by_class.items()):
            info(f"  {class_name}: {', '.join(names)}")
        self.note("fp32_fallbacks", dict(sorted(by_class.items())))


class EncoderCompilation:
    """Compilation of the nucleotide encoder before the first step, if the result passes its test.

    With an `Fp32Report`, compilation waits until the hooks of the report are removed.
    """

    def __init__(
        self, step: GradientStep, mode: CompileModel, note: Note, after: Fp32Report | None
    ) -> None:
        self.step, self.mode, self.note, self.after = step, mode, note, after
        self._tried = False

    def __call__(self, batch: Batch, position: Position) -> None:
        """Compile and test the encoder with the sequences of the first batch."""
        if self._tried or (self.after is not None and not self.after.done):
            return
        self._tried = True
        reason = refusal(self.mode, compile_fault())
        if not reason and self.step.task.frozen:
            reason = "the encoder is frozen, every ASV is encoded once"
        if not reason:
            encoder = self.step.task.encoder
            info("Compiling the nucleotide encoder; this can take some minutes.")
            reason = compile_in_place(
                encoder.nucleotides,
                (batch.tokens_UL, batch.ragged(encoder.nucleotides.patch)),
                self.step.autocast,
                self.step.precision,
                PRODUCTS * encoder.shape.attention_layers + 2,
                FEED_FORWARD * encoder.shape.embedding_dim,
            )
        if reason:
            warn(f"--compile-model: the network runs without torch.compile: {reason}.")
        self.note("compile", {"requested": self.mode, "used": not reason, "reason": reason})
