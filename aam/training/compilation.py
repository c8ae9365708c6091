"""What is settled in the first steps of a fit: the compiled encoder, the report of fp32 modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from aam.console import say, warn
from aam.contract.options.groups import CompileModel
from aam.contract.precision import Precision
from aam.data.batches import Batch
from aam.model.transformer import FEED_FORWARD, PRODUCTS
from aam.numerics.compile import Compilation, compile_in_place, eager_again, refusal
from aam.training.lightning_module import TrainingModule

Note = Callable[[str, Any], None]
"""Puts a fact under a name into the record of the run."""


def unrecorded(name: str, fact: Any) -> None:
    """Note nothing: a fit without a record."""


class Fp32Report(Callback):
    """Names the modules whose output is fp32 in the first steps, in spite of mixed precision."""

    STEPS = 3

    def __init__(self, precision: Precision, note: Note) -> None:
        self.precision, self.note = precision, note
        self.done = False
        self._left = self.STEPS
        self._kinds: dict[str, str] = {}
        self._wide: set[str] = set()
        self._hooks: list[Any] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hook every module that has none below it."""
        assert isinstance(pl_module, TrainingModule)
        if self.precision == "none":
            warn("--report-fp32-fallbacks: all runs in fp32 without --mixed-precision.")
            self.done = True
            return
        for name, module in pl_module.network.named_modules():
            if not list(module.children()):
                self._hooks.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            self._kinds[name] = type(module).__name__
            if isinstance(output, Tensor) and output.dtype == torch.float32:
                self._wide.add(name)

        return look

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, idx: int
    ) -> None:
        """Take the hooks off after a few steps and say what they saw."""
        self._left -= 1
        if self._left == 0 and not self.done:
            self._finish()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report on a run that is shorter than that."""
        if not self.done:
            self._finish()

    def _finish(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.done = True
        by_kind = defaultdict(list)
        for name in self._kinds:
            if name in self._wide:
                by_kind[self._kinds[name]].append(name)
        say(f"{len(self._wide)} of {len(self._kinds)} modules ran in fp32 under {self.precision}:")
        for kind, names in sorted(by_kind.items()):
            say(f"  {kind}: {', '.join(names)}")
        self.note("fp32_fallbacks", dict(sorted(by_kind.items())))


class CompiledEncoder(Callback):
    """Compiles the nucleotide encoder before the first step, if the compiler passes its trial.

    Where modules are being watched by `Fp32Report`, it waits until their hooks are gone.
    """

    def __init__(
        self, asked: CompileModel, precision: Precision, note: Note, after: Fp32Report | None
    ) -> None:
        self.asked, self.precision, self.note, self.after = asked, precision, note, after
        self._tried = False

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Try the compiler on the sequences of the first batch."""
        if self._tried or (self.after is not None and not self.after.done):
            return
        self._tried = True
        assert isinstance(pl_module, TrainingModule)
        reason = refusal(self.asked, torch.version.hip)
        if not reason and pl_module.frozen:
            reason = "the encoder is frozen, every ASV is encoded once"
        if not reason:
            encoder = pl_module.encoder
            say("Compiling the nucleotide encoder; this can take some minutes.")
            reason = compile_in_place(
                encoder.nucleotides,
                (batch.tokens_UL, batch.ragged(encoder.nucleotides.patch)),
                trainer.precision_plugin.forward_context,
                self.precision,
                PRODUCTS * encoder.shape.attention_layers + 2,
                FEED_FORWARD * encoder.shape.embedding_dim,
            )
        if reason:
            warn(f"--compile-model: the network runs without torch.compile: {reason}.")
        self.note("compile", vars(Compilation(self.asked, not reason, reason)))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Leave an eager network: what comes after training has other shapes."""
        assert isinstance(pl_module, TrainingModule)
        eager_again(pl_module.encoder.nucleotides)
