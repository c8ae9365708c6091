"""Measurement of the golden case on a device: outputs of every stage, gradients, loss curve.

The steps are written out (forward, backward, clip, step, as in `aam.training.loop`): the comparison
needs the gradients before they are clipped, and a constant loss scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.contract.options.commands.stack import GoldenOptions
from aam.contract.options.device import DeviceOptions
from aam.data.batches import Batch
from aam.data.sequences import PAD
from aam.golden import case as golden_case
from aam.model.attention import Backends
from aam.model.transformer import AttentionPooling, TransformerBlock
from aam.numerics.backends import TORCH_POLICY, choose_attention
from aam.numerics.device import Precision, arch_of, choose_device, choose_precision
from aam.training.loop import make_optimizer, make_schedule
from aam.training.module import TrainingModule

_ATTENTION = 2
"""Matrix products inside attention: scores and mix."""
_LOSS_SCALE = {"none": 1.0, "bf16": 1.0, "fp16": 1024.0}
"""Factor that keeps gradients in the range of fp16; in training GradScaler finds it."""


@dataclass
class GoldenResult:
    """Outputs, gradients and losses of the golden case.

    Attributes:
        stages: output of each stage by "CASE/STAGE", in the order in which they were computed.
        products: number of matrix products before the output of each stage.
        gradients: gradient of each parameter by "CASE/PARAMETER", in backward order.
        losses: loss of each step of the curve.
    """

    stages: dict[str, Tensor] = field(default_factory=dict)
    products: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def measure(
    weights: dict[str, Tensor],
    batches: dict[str, Batch],
    device: torch.device,
    backends: Backends,
    precision: Precision,
) -> GoldenResult:
    """Compute outputs and gradients of each batch from `weights`, then the loss curve.

    Args:
        weights: initial weights of the network, by name.
        batches: batches of the golden case, by name.
        device: device of the computation.
        backends: attention backends without and with a mask.
        precision: "none" (fp32), "bf16" or "fp16".
    """
    measured = GoldenResult()
    here = {name: batch.to(device) for name, batch in batches.items()}
    task = _fresh(weights, device, backends)
    for name, batch in here.items():
        task.zero_grad()
        with _recorded(task, measured, name, batch):
            torch.autograd.backward(_loss(task, batch, precision) * _LOSS_SCALE[precision])
        found = [(n, p.grad) for n, p in task.network.named_parameters() if p.grad is not None]
        for parameter, gradient in reversed(found):
            unscaled = gradient.float().cpu() / _LOSS_SCALE[precision]
            measured.gradients[f"{name}/{parameter}"] = unscaled
    measured.losses = list(_curve(_fresh(weights, device, backends), here, precision))
    return measured


def _fresh(weights: dict[str, Tensor], device: torch.device, backends: Backends) -> TrainingModule:
    net = golden_case.network(backends)
    net.load_state_dict(weights)
    return golden_case.task(net).to(device).train()


def _loss(task: TrainingModule, batch: Batch, precision: Precision) -> Tensor:
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    autocast = torch.autocast(batch.counts_BS.device.type, dtype, enabled=precision != "none")
    with autocast:
        loss: Tensor = task(batch)
    return loss


def _curve(
    task: TrainingModule, batches: dict[str, Batch], precision: Precision
) -> Iterator[float]:
    """Yield the loss of each step."""
    optimizer = make_optimizer(task, task.loop)
    schedule = make_schedule(optimizer, task.loop, task.steps)
    turns = list(batches.values())
    for step in range(golden_case.STEPS):
        optimizer.zero_grad()
        loss = _loss(task, turns[step % len(turns)], precision)
        torch.autograd.backward(loss * _LOSS_SCALE[precision])
        learned = [p for p in task.parameters() if p.grad is not None]
        for parameter in learned:
            assert parameter.grad is not None
            parameter.grad /= _LOSS_SCALE[precision]
        nn.utils.clip_grad_norm_(learned, golden_case.max_grad_norm())
        optimizer.step()
        schedule.step()
        yield loss.item()


@contextmanager
def _recorded(
    task: TrainingModule, measured: GoldenResult, case: str, batch: Batch
) -> Iterator[None]:
    """Record the output of every stage while the block runs, and count matrix products."""
    products = 0

    def count(number: int) -> None:
        nonlocal products
        products += number

    def record(stage: str, value: Tensor) -> None:
        key = f"{case}/{stage}"
        measured.stages[key] = value.detach().float().cpu()
        measured.products[key] = max(products, 1)

    # Before the output layer of a block: there its input is the result of the attention alone.
    def attended(stage: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        count(_ATTENTION)
        record(f"{stage}.attention", inputs[0])

    def done(stage: str, module: nn.Module, inputs: Any, output: Any) -> None:
        count(1 if isinstance(module, AttentionPooling) else 0)
        value = output if isinstance(output, Tensor) else output[0]
        record(stage, _scored_patches(value, batch) if module is head else value)

    def counted(module: nn.Module, inputs: Any, output: Tensor) -> None:
        count(1)

    head = task.encoder.nucleotides.head
    with ExitStack() as hooks:
        for name, module in task.network.named_modules():
            stage = stage_of(name)
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_hook(counted))
            if isinstance(module, TransformerBlock):
                hook = partial(attended, stage)
                hooks.enter_context(module.out.register_forward_pre_hook(hook))
            if is_stage(name, module):
                hooks.enter_context(module.register_forward_hook(partial(done, stage)))
        yield


def _scored_patches(logits_UTC: Tensor, batch: Batch) -> Tensor:
    """Return the logits [patches, C] of the patches with a masked nucleotide."""
    assert batch.labels_UL is not None
    scored_UL, tokens = batch.labels_UL != PAD, logits_UTC.shape[1]
    patch = -(-scored_UL.shape[1] // tokens)
    padded = F.pad(scored_UL, (0, tokens * patch - scored_UL.shape[1]))
    return logits_UTC[padded.view(-1, tokens, patch).any(dim=-1)]


_STAGES = ("abundance", "distance", "head", "nucleotides", "profile", "profile_head", "samples")
"""Modules whose output is a stage, beside the blocks and poolings of transformers."""


def is_stage(name: str, module: nn.Module) -> bool:
    """Return whether the output of a module is recorded."""
    return name.rpartition(".")[2] in _STAGES or isinstance(
        module, AttentionPooling | TransformerBlock
    )


def stage_of(name: str) -> str:
    """Return the name of the stage of a module of the network.

    >>> stage_of("encoder.samples.transformer.blocks.1")
    'samples.blocks.1'
    >>> stage_of("transformer.blocks.0")
    'target.blocks.0'
    """
    whose, _, rest = name.partition(".")
    within = rest if whose == "encoder" else f"target.{name}"
    return ".".join(part for part in within.split(".") if part != "transformer")


def first_not_finite(measured: GoldenResult) -> str | None:
    """Return the first output, gradient or step whose values are not finite; None if all are."""
    for kind, tensors in (("output", measured.stages), ("gradient", measured.gradients)):
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                return f"{kind} {name}"
    steps = (step for step, loss in enumerate(measured.losses, 1) if not math.isfinite(loss))
    step = next(steps, None)
    return None if step is None else f"loss of step {step}"


def device_of(options: GoldenOptions) -> tuple[torch.device, Precision, Backends]:
    """Return device, precision and backends; a backend is replaced where it cannot run at all.

    Args:
        options: options of `aam golden`.

    Raises:
        UsageError, Unavailable: a device or precision that is not there.
    """
    # Without the check: a wrong backend is kept, since the comparison is made to find it.
    requested = DeviceOptions(
        device=options.device, attn_implementation=options.attn_implementation, check=False
    )
    device = choose_device(requested)
    precision = choose_precision(options.mixed_precision, arch_of(device))
    selected = choose_attention(requested, device, golden_case.SHAPE, TORCH_POLICY, precision)
    return device, precision, selected.backends
