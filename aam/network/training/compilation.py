"""First steps of training: torch.compile of the encoder, report of the modules that output fp32.

A compiled module is used only if it reproduces the eager one in a forward and a backward pass on
this device, since the compiler of a stack (Triton or C++) may be absent, broken or wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from aam.console import info, warn
from aam.contract.options.groups import CompileModel
from aam.network.batches import Batch
from aam.network.model.transformer import FEED_FORWARD, PRODUCTS
from aam.network.numerics.device import Precision, compile_fault, is_gpu, product_tolerance
from aam.network.training.checkpoints import TrainingProgress
from aam.network.training.module import GradientStep, TrainingModule
from aam.network.training.observers import Observer
from aam.pipeline.loggers import Status
from aam.pipeline.run_folder import RecordFact


class Fp32Report(Observer):
    """Report of the modules that output fp32 in the first steps under mixed precision."""

    STEPS = 3

    def __init__(self, precision: Precision, record_fact: RecordFact) -> None:
        self.precision, self.record_fact = precision, record_fact
        self.done = False
        self._left = self.STEPS
        self._class_names: dict[str, str] = {}
        self._fp32: set[str] = set()
        self._hooks: list[Any] = []

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        if self.precision == "none":
            warn("--report-fp32-fallbacks: all runs in fp32 without --mixed-precision.")
            self.done = True
            return
        names = {module: name for name, module in task.network.named_modules()}

        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            self._class_names[names[module]] = type(module).__name__
            if isinstance(output, Tensor) and output.dtype == torch.float32:
                self._fp32.add(names[module])

        for module in names:
            if not list(module.children()):
                self._hooks.append(module.register_forward_hook(record))

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        self._left -= 1
        if self._left == 0 and not self.done:
            self._finish()

    def end(self, status: Status) -> None:
        if not self.done:  # a run of fewer steps
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
        self.record_fact("fp32_fallbacks", dict(sorted(by_class.items())))


def compile_encoder(
    step: GradientStep, mode: CompileModel, record_fact: RecordFact, batch: Batch
) -> None:
    """Compile the nucleotide encoder, if it passes its test with the sequences of a batch."""
    fault, encoder = compile_fault(), step.task.encoder
    if fault and mode == "auto":
        reason = f"{fault}; --compile-model force tries it"
    elif step.task.frozen:
        reason = "the encoder is frozen, every ASV is encoded once"
    else:
        info("Compiling the nucleotide encoder; this can take some minutes.")
        reason = compile_in_place(
            encoder.nucleotides,
            (batch.tokens_UL, batch.ragged(encoder.nucleotides.patch)),
            step.autocast,
            step.precision,
            PRODUCTS * encoder.shape.attention_layers + 2,
            FEED_FORWARD * encoder.shape.embedding_dim,
        )
    if reason:
        warn(f"--compile-model: the network runs without torch.compile: {reason}.")
    record_fact("compile", {"requested": mode, "used": not reason, "reason": reason})


def compile_in_place(
    module: nn.Module,
    arguments: tuple[Any, ...],
    context: Callable[[], AbstractContextManager[Any]],
    precision: Precision,
    products: int,
    inner: int,
) -> str:
    """Compile `module` in place and compare it with itself; return why it stays eager, or ""."""

    def outputs() -> tuple[Tensor, ...]:
        result = module(*arguments)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    device, training = next(module.parameters()).device, module.training
    with torch.random.fork_rng([device] if is_gpu(device) else []):
        try:
            # Without dropout, whose draws differ between the compiled and the eager network.
            module.eval()
            with torch.no_grad(), context():
                expected = outputs()
            module.compile(dynamic=True)
            with torch.enable_grad(), context():
                compiled = outputs()
                total = torch.stack([tensor.float().sum() for tensor in compiled]).sum()
            smallest = torch.finfo(torch.float32).tiny
            difference = max(
                float(((a - b).abs().max() / a.abs().max().clamp_min(smallest)).float())
                for a, b in zip(expected, compiled, strict=True)
            )
            allowed = product_tolerance(precision, products, inner)
            # `not <=` and no `>`: a comparison with NaN is false.
            if not difference <= allowed:
                raise ArithmeticError(
                    f"its values differ by {difference:.1g} of the largest; rounding: {allowed:.1g}"
                )
            learned = [p for p in module.parameters() if p.requires_grad]
            torch.autograd.grad(total, learned, allow_unused=True)
        # A compiler raises errors of any type; one of the network itself is raised again later.
        except Exception as error:
            eager_again(module)
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            lines = [line.strip().rstrip(".") for line in str(cause).splitlines() if line.strip()]
            # torch puts "backend='inductor' raised:" on a line before what was raised.
            message = next((line for line in lines if not line.endswith("raised:")), "")
            name = type(cause).__name__
            return f"{name}: {message[:300]}" if message else name
        finally:
            module.train(training)
    return ""


def eager_again(module: nn.Module) -> None:
    """Undo `nn.Module.compile`."""
    # PyTorch has no public function for it; `nn.Module.compile` sets this attribute alone.
    module._compiled_call_impl = None
