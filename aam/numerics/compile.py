"""torch.compile with a trial: a compiled module is used only if it reproduces the eager one.

The trial is one forward and backward pass on this device, since the compiler of a stack (Triton or
C++) may be absent, broken or wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from aam.contract.options.device import CompileModel
from aam.numerics.device import is_gpu
from aam.numerics.precision import Precision
from aam.numerics.tolerance import product_tolerance


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
