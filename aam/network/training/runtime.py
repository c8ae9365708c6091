"""Runtime of a run: device, precision, attention backends, workers, ranks, torch.compile.

The compiled encoder is used only if a forward and a backward pass on this device give the results
of the eager module, since the compiler of a stack (Triton or C++) may be missing, broken or wrong.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from aam.console import info, warn
from aam.contract.errors import UsageError
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import CompileModel, ModelOptions
from aam.contract.version import __version__
from aam.environment import read_environment
from aam.memory import memory_available, shown_size
from aam.network.batches import Batch
from aam.network.distributed.collectives import SINGLE_PROCESS, Communicator
from aam.network.model.attention import AUTO, Backends
from aam.network.model.shape import NetworkShape
from aam.network.model.transformer import FEED_FORWARD, PRODUCTS
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import (
    Precision,
    arch_of,
    choose_device,
    choose_precision,
    compile_fault,
    hardware_name,
    is_gpu,
    product_tolerance,
)
from aam.network.training.module import GradientStep
from aam.pipeline.run_folder import RecordFact
from aam.pipeline.stop_requests import StopRequests
from aam.run_record import input_file

Learn = TypeVar("Learn", Pretrain, Train)

_SEPARATOR = "; "  # separator in the value of --tuned-for

_TRAINING_BYTES = 4 * 4
"""Bytes of a weight in training: the weight, its gradient and two moments of Adam in fp32."""


@dataclass(frozen=True)
class Runtime:
    """Runtime of a run: device, precision, attention backends, workers and ranks."""

    device: torch.device
    precision: Precision = "none"  # precision of training; inference uses fp32
    backends: Backends = AUTO
    # entry of the run record about the attention backends
    attention: dict[str, Any] = field(default_factory=dict)
    workers: int = 0  # number of data-loading processes of this rank; 0: no separate process
    communicator: Communicator = SINGLE_PROCESS
    stop: StopRequests = field(default_factory=StopRequests)

    @classmethod
    def choose(
        cls,
        options: Learn,
        sizes: NetworkShape | ModelOptions,
        policy: BackendPolicy | None,
        communicator: Communicator,
    ) -> Runtime:
        """Choose the runtime for options without `auto`; attention is measured with these sizes."""
        device, precision = choose_device(options.device), options.speed.mixed_precision
        assert precision != "auto"
        backends, record = (policy or BackendPolicy()).choose_attention(
            options.device, device, sizes, precision, options.speed.recomputes
        )
        workers = int(options.device.num_workers)
        return cls(device, precision, backends, record, workers, communicator)


def check_resources(options: Learn) -> Learn:
    """Replace `auto` for this host; refuse options tuned elsewhere, and too large a network."""
    options = numbers_of_host(options)
    device, model = choose_device(options.device), options.model
    if (stated := options.speed.tuned_for) is not None:
        current = tuned_for(options.input.table, torch.__version__, hardware_name(device))
        tuned = stated.split(_SEPARATOR)
        if differing := [fact for fact in current.split(_SEPARATOR) if fact not in tuned]:
            raise UsageError(
                "The settings of `aam tune` are for another study, device or version",
                f"they are for {stated}; this run has {', '.join(differing)}",
                "run `aam tune` again, or remove `tuned_for` from the file to use them anyway",
            )
    # The sizes of a pretrained encoder do not follow from the options.
    if options.pretrained_encoder is not None:
        return options
    check_heads(model)
    if is_gpu(device):
        memory, kind = torch.cuda.get_device_properties(device).total_memory, "on the GPU"
    else:
        memory, kind = memory_available(), "available"
    # Only the transformer layers, without activations: only what cannot be built is refused.
    weights = least_weights(model.embedding_dim, model.attention_layers)
    # With DDP each rank holds the whole state; FSDP divides weights, gradients and moments.
    shards = read_environment(os.environ).world_size if options.scale.fsdp else 1
    needed = _TRAINING_BYTES * weights // shards
    if needed > memory:
        raise UsageError(
            "The network does not fit into memory",
            f"--embedding-dim {model.embedding_dim} --attention-layers {model.attention_layers}: "
            f"{weights:,} weights need {shown_size(needed)} with gradients and optimizer; "
            f"{shown_size(memory)} {kind}",
            "choose a smaller width or fewer layers",
        )
    return options


def least_weights(embedding_dim: int, attention_layers: int) -> int:
    """Return the number of weights in the transformer layers of both encoders, a lower bound.

    A layer of width D has 3 D^2 weights for queries, keys and values, D^2 for the output of the
    attention, 8 D^2 for the feed-forward network, and 13 D for biases and norms.

    >>> least_weights(embedding_dim=128, attention_layers=4)
    1586176
    """
    return 2 * attention_layers * embedding_dim * (12 * embedding_dim + 13)


def numbers_of_host(options: Learn) -> Learn:
    """Replace `auto` in the options by the numbers of this host, for the run record too."""
    device, speed = choose_device(options.device), options.speed
    gpu, host = is_gpu(device), options.device
    if host.num_workers == "auto":
        # On a CPU the network itself uses all cores; a GPU needs processes that prepare batches.
        workers = min(4, len(os.sched_getaffinity(0))) if gpu else 0
        host = dataclasses.replace(host, num_workers=workers)
    if host.cpu_threads == "auto":
        host = dataclasses.replace(host, cpu_threads=torch.get_num_threads())
    precision = choose_precision(speed.mixed_precision, arch_of(device))
    groups: dict[str, Any] = {
        "device": dataclasses.replace(host, device="cuda" if gpu else "cpu"),
        "speed": dataclasses.replace(speed, mixed_precision=precision),
    }
    return dataclasses.replace(options, **groups)


def check_heads(model: ModelOptions) -> None:
    """Refuse a number of attention heads that does not divide the embedding width."""
    if model.embedding_dim % model.attention_heads:
        raise UsageError(
            "The heads do not divide the width",
            f"--embedding-dim {model.embedding_dim} --attention-heads {model.attention_heads}",
            "choose a width that is a multiple of the heads",
        )


def tuned_for(table: Path, torch_version: str, hardware: str) -> str:
    """Return the value of --tuned-for: versions, hardware and table of a run of `aam tune`."""
    facts = [f"aam {__version__}", f"PyTorch {torch_version}", hardware]
    if file := input_file(table):  # a missing table is reported when it is read
        facts.append(f"table {file['sha256'][:12]}")
    return _SEPARATOR.join(facts)


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
