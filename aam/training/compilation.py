"""First steps of training: torch.compile of the encoder, report of the modules that output fp32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from aam.console import info, warn
from aam.contract.options.device import CompileModel
from aam.data.batches import Batch
from aam.model.transformer import FEED_FORWARD, PRODUCTS
from aam.numerics.device import Precision, compile_fault, is_gpu, product_tolerance
from aam.training.checkpoints import Position
from aam.training.module import GradientStep, TrainingModule
from aam.training.observers import Observer
from aam.training.run_folder import Note


def refusal(requested: CompileModel, fault: str) -> str:
    """Return why the compiler is not tried here; empty if it is.

    Args:
        requested: value of --compile-model.
        fault: known fault of this stack, see `aam.numerics.device.compile_fault`.

    >>> refusal("auto", ""), refusal("off", "")
    ('', 'not requested')
    """
    if requested == "off":
        return "not requested"
    return f"{fault}; --compile-model force tries it" if fault and requested == "auto" else ""


def compile_in_place(
    module: nn.Module,
    arguments: tuple[Any, ...],
    context: Callable[[], AbstractContextManager[Any]],
    precision: Precision,
    products: int,
    inner: int,
) -> str:
    """Compile `module` in place and compare it with itself; return why it stays eager, or "".

    Its mode, its gradients and the random state do not change.

    Args:
        module: module that returns a tensor or a tuple of tensors.
        arguments: arguments of the call; the shapes may differ later.
        context: autocast context of the precision in which it will run.
        precision: precision of that context, for the tolerance.
        products: matrix products in a row of the module, for the tolerance.
        inner: inner dimension of the largest of them.
    """
    device = next(module.parameters()).device
    training = module.training
    with torch.random.fork_rng([device] if is_gpu(device) else []):
        try:
            # Without dropout, whose draws differ between the compiled and the eager network.
            module.eval()
            with torch.no_grad(), context():
                expected = _tensors(module(*arguments))
            module.compile(dynamic=True)
            with torch.enable_grad(), context():
                found = _tensors(module(*arguments))
                total = torch.stack([tensor.float().sum() for tensor in found]).sum()
            difference = max(map(_relative_difference, expected, found))
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
            return _shortly(error)
        finally:
            module.train(training)
    return ""


def eager_again(module: nn.Module) -> None:
    """Undo `nn.Module.compile`."""
    # PyTorch has no public function for it; `nn.Module.compile` sets this attribute alone.
    module._compiled_call_impl = None


def _tensors(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def _relative_difference(expected: Tensor, found: Tensor) -> float:
    """Largest difference relative to the largest value."""
    scale = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float(((expected - found).abs().max() / scale).float())


def _shortly(error: BaseException) -> str:
    """Return the root cause of an error on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    # torch puts "backend='inductor' raised:" on a line before what was raised.
    message = next((line for line in lines if not line.endswith("raised:")), "")
    return f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__


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
