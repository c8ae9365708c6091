"""torch.compile of the nucleotide encoder, with a check of its results.

A compiled module is used only if a forward and a backward pass on this device give the results of
the eager module, since the compiler of a stack (Triton or C++) may be missing, broken or wrong.
"""

from __future__ import annotations

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
from aam.network.training.module import GradientStep
from aam.pipeline.run_folder import RecordFact


def compile_encoder(
    step: GradientStep, mode: CompileModel, record_fact: RecordFact, batch: Batch
) -> None:
    """Compile the nucleotide encoder, if it passes a test on the sequences of a batch."""
    fault, encoder = compile_fault(), step.task.encoder
    if fault and mode == "auto":
        reason = f"{fault}; --compile-model force tries it"
    elif step.task.frozen:
        reason = "the encoder is frozen, so every ASV is encoded once"
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
    """Compile a module in place and compare its results; return why it stays eager, or ""."""

    def outputs() -> tuple[Tensor, ...]:
        result = module(*arguments)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    device, training = next(module.parameters()).device, module.training
    with torch.random.fork_rng([device] if is_gpu(device) else []):
        try:
            # Without dropout: its random numbers differ between the compiled and the eager module.
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
            tolerance = product_tolerance(precision, products, inner)
            # `not <=` instead of `>`: a comparison with NaN is false.
            if not difference <= tolerance:
                raise ArithmeticError(
                    f"its values differ by {difference:.1g} of the largest value, "
                    f"rounding explains {tolerance:.1g}"
                )
            learned = [p for p in module.parameters() if p.requires_grad]
            torch.autograd.grad(total, learned, allow_unused=True)
        # A compiler raises errors of any type; an error of the network itself will occur again.
        except Exception as error:
            eager_again(module)
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            lines = [line.strip().rstrip(".") for line in str(cause).splitlines() if line.strip()]
            # PyTorch puts the line "backend='inductor' raised:" before the message itself.
            message = next((line for line in lines if not line.endswith("raised:")), "")
            name = type(cause).__name__
            return f"{name}: {message[:300]}" if message else name
        finally:
            module.train(training)
    return ""


def eager_again(module: nn.Module) -> None:
    """Undo `nn.Module.compile`."""
    # PyTorch has no public function for this; `nn.Module.compile` sets only this attribute.
    module._compiled_call_impl = None
