"""Golden runs (`aam golden`): the same small computation on two stacks, compared stage by stage.

A small network with all its modules trains with the real losses and optimizer on two batches:
"even" has sequences of one length and sets of one size, so no mask is passed; in "ragged" every
sequence and every sample has a mask of its own. Weights and inputs follow from the raw stream of
NumPy's PCG64, equal on every machine and version. One safetensors file stores the outputs of all
stages, the gradients, and the losses of the training steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from aam.console import info
from aam.contract.errors import DataError, MissingInput, NotFinite, reason_of
from aam.contract.files import atomic_write, dump_json, refuse_existing, require
from aam.contract.options.commands.measure import GoldenCompare, GoldenGenerate
from aam.contract.options.groups import DeviceOptions, LoopOptions
from aam.contract.version import __version__
from aam.data.targets import TargetTransform
from aam.network.batches import Batch, shortest
from aam.network.inference.stored_networks import Target
from aam.network.model.attention import AUTO, Backends
from aam.network.model.network import Predictor
from aam.network.model.shape import NetworkShape
from aam.network.model.transformer import FEED_FORWARD, AttentionPooling, TransformerBlock
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import (
    Precision,
    arch_of,
    choose_device,
    choose_precision,
    is_gpu,
    product_tolerance,
)
from aam.network.training.fit import make_optimizer, make_schedule
from aam.network.training.module import LossWeights, TrainingModule
from aam.nucleotide_codes import BASES, MASK, PAD
from aam.report.terminal import Table, print_table

FORMAT = "2"  # version of the file and the case; only equal versions can be compared
FILE = "golden.safetensors"
STEPS = 50  # training steps of the loss curve; even and ragged batches alternate
SHAPE = NetworkShape(
    max_bp=60,
    embedding_dim=16,
    attention_heads=2,
    attention_layers=2,
    nucleotide_patch=5,
    dropout=0.0,
    outputs=1,
    profile_features=16,
    profile_dropout=0.0,
)
SAMPLES = {"even": (6, 6, 6, 6), "ragged": (9, 2, 7, 4, 5)}  # case -> ASVs of each sample
_ASVS = 14
_LOOP = LoopOptions(lr=3e-3)
_LOSS_SCALE = {"none": 1.0, "bf16": 1.0, "fp16": 1024.0}
"""Factor that keeps gradients in the range of fp16 (in training GradScaler chooses it)."""
_ATTENTION = 2  # matrix products inside attention: scores and mix

Kind = Literal["output", "gradient", "loss"]
Tensors = dict[str, Tensor]


def _bits(name: str, number: int) -> npt.NDArray[np.uint64]:
    """Return random 64-bit integers that depend on the name alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    # The raw stream: NumPy may change its distributions from version to version (NEP 19).
    return np.random.PCG64(seed).random_raw(number)


def _uniform(name: str, *shape: int) -> Tensor:
    """Return float32 numbers in [-1, 1): exact multiples of 2^-23."""
    bits = _bits(name, math.prod(shape)) >> np.uint64(40)
    return torch.from_numpy((bits.astype(np.float32) / np.float32(2**23) - 1).reshape(shape))


def _integers(name: str, low: int, high: int, *shape: int) -> Tensor:
    """Return int64 numbers in [low, high)."""
    bits = _bits(name, math.prod(shape)) >> np.uint64(33)
    return torch.from_numpy((bits.astype(np.int64) % (high - low) + low).reshape(shape))


def weights() -> Tensors:
    """Return fixed weights and buffers of the network, scaled as after some training."""
    tensors = {}
    for name, value in Predictor(SHAPE, "unweighted", AUTO).state_dict().items():
        shape, last = value.shape, name.rpartition(".")[2]
        noise = _uniform(name, *shape)
        if last == "scale":
            tensors[name] = torch.full(shape, 0.5)
        elif last in ("phases", "spread"):
            tensors[name] = (noise + 1) * math.pi if last == "phases" else 4 + noise
        elif value.ndim == 1:
            scaled = last == "weight" and "norm" in name
            tensors[name] = 1 + noise / 8 if scaled else noise / 8
        else:
            # Variance 1 / inputs, as after the initialisation of a linear layer.
            tensors[name] = noise * math.sqrt(3 / shape[-1])
    return tensors


def batch(case: str) -> Batch:
    """Return the batch "even" or "ragged".

    >>> batch("even").attend_BS is None, batch("ragged").attend_BS is None
    (True, False)
    """
    sizes = SAMPLES[case]
    tokens_UL = _integers(f"{case} tokens", 1, 1 + BASES, _ASVS, SHAPE.max_bp)
    if case == "ragged":
        lengths_U = _integers("ragged lengths", 23, SHAPE.max_bp + 1, _ASVS)
        lengths_U[0] = SHAPE.max_bp
        tokens_UL[torch.arange(SHAPE.max_bp) >= lengths_U[:, None]] = PAD
    masked_UL = _uniform(f"{case} masks", _ASVS, SHAPE.max_bp) < 0.3 - 1
    masked_UL &= tokens_UL != PAD
    labels_UL = torch.where(masked_UL, tokens_UL, PAD)
    tokens_UL[masked_UL] = MASK
    slots_BS = torch.zeros(len(sizes), max(sizes), dtype=torch.int64)
    counts_BS = torch.zeros(len(sizes), max(sizes))
    for row, size in enumerate(sizes):
        # The result of a stable sort does not depend on the version of NumPy.
        order = np.argsort(_bits(f"{case} slots {row}", _ASVS), kind="stable")
        slots_BS[row, :size] = torch.from_numpy(order)[:size]
        counts_BS[row, :size] = _integers(f"{case} counts {row}", 1, 400, size).float()
    attend_BS = counts_BS > 0
    distances_BB = (_uniform(f"{case} distances", len(sizes), len(sizes)) + 1) / 2
    first_row = 0 if case == "even" else len(SAMPLES["even"])
    return Batch(
        rows_B=torch.arange(len(sizes)) + first_row,
        asvs_U=torch.arange(_ASVS),
        tokens_UL=tokens_UL.to(torch.uint8),
        labels_UL=labels_UL.to(torch.uint8),
        shortest=shortest(tokens_UL),
        slots_BS=slots_BS,
        counts_BS=counts_BS,
        attend_BS=None if attend_BS.all() else attend_BS,
        distances_BB=distances_BB.triu(1) + distances_BB.triu(1).T,
    )


@dataclass
class GoldenResult:
    """Outputs, gradients and losses of the golden case."""

    # "output/CASE/STAGE" and "gradient/CASE/PARAMETER" in the order of computation, and "loss" of
    # each training step
    tensors: Tensors = field(default_factory=dict)
    # stage -> number of matrix products before its output
    products: dict[str, int] = field(default_factory=dict)
    # stage -> its parameters, from the losses backwards
    groups: dict[str, list[str]] = field(default_factory=dict)

    def record(self, case: str, stage: str, output: Tensor, products: int) -> None:
        """Store the output of a stage."""
        self.tensors[f"output/{case}/{stage}"] = output.detach().float().cpu()
        self.products[stage] = max(products, 1)


_STAGES = ("abundance", "distance", "head", "nucleotides", "profile", "profile_head", "samples")
"""Modules whose output is a stage, besides transformer blocks and poolings."""


def stage_of(name: str) -> str:
    """Return the stage of a module of the network, by its name.

    >>> stage_of("encoder.samples.transformer.blocks.1"), stage_of("transformer.blocks.0")
    ('samples.blocks.1', 'target.blocks.0')
    """
    top, _, path = name.partition(".")
    path = path if top == "encoder" else f"target.{name}"
    return ".".join(module for module in path.split(".") if module != "transformer")


def measure(
    initial: Tensors,
    batches: dict[str, Batch],
    device: torch.device,
    backends: Backends,
    precision: Precision,
) -> GoldenResult:
    """Compute outputs and gradients of each batch from initial weights, then the loss curve.

    The steps are written out (forward, backward, clip, step, as in `network.training.loop`),
    because the comparison needs gradients before clipping and a constant loss scale.
    """
    task, measured = _training_module(initial, device, backends), GoldenResult()
    stages = {
        name for name, module in task.network.named_modules()
        if name.rpartition(".")[2] in _STAGES
        or isinstance(module, (AttentionPooling, TransformerBlock))
    }  # fmt: skip
    for parameter, _ in reversed([*task.network.named_parameters()]):
        # The innermost stage around the parameter; an encoder as a whole is no stage.
        owner = parameter.rpartition(".")[0]
        above = [name for name in stages if owner == name or owner.startswith(f"{name}.")]
        within = [name for name in above if name.count(".") > 1 or not name.startswith("encoder.")]
        stage = stage_of(max(within, key=len) if within else owner)
        measured.groups.setdefault(stage, []).append(parameter)
    on_device = {case: batch.to(device) for case, batch in batches.items()}
    for case, batch in on_device.items():
        with _recorded(task, case, batch, stages, measured):
            _, learned = _backward(task, batch, precision)
        for name, weight in reversed(learned.items()):
            assert weight.grad is not None
            measured.tensors[f"gradient/{case}/{name}"] = weight.grad.float().cpu()
    task, turns, losses = _training_module(initial, device, backends), [*on_device.values()], []
    optimizer = make_optimizer(task, task.loop)
    schedule = make_schedule(optimizer, task.loop, task.steps)
    for step in range(STEPS):
        loss, learned = _backward(task, turns[step % len(turns)], precision)
        nn.utils.clip_grad_norm_(learned.values(), _LOOP.max_grad_norm)
        optimizer.step()
        schedule.step()
        losses.append(loss)
    measured.tensors["loss"] = torch.tensor(losses, dtype=torch.float64)
    return measured


def _training_module(initial: Tensors, device: torch.device, backends: Backends) -> TrainingModule:
    target = Target("golden", transform=TargetTransform("none", 0.0, 1.0))
    labels = _uniform("target", sum(map(len, SAMPLES.values()))).double().numpy()
    network = Predictor(SHAPE, "unweighted", backends)
    network.load_state_dict(initial)
    task = TrainingModule(network, LossWeights(), _LOOP, STEPS, target, labels)
    return task.to(device).train()


def _backward(
    task: TrainingModule, batch: Batch, precision: Precision
) -> tuple[float, dict[str, nn.Parameter]]:
    """Compute the loss, and the gradients of the unscaled loss in the returned parameters."""
    task.zero_grad()
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    with torch.autocast(task.device.type, dtype, enabled=precision != "none"):
        loss: Tensor = task(batch)
    torch.autograd.backward(loss * _LOSS_SCALE[precision])
    learned = {n: p for n, p in task.network.named_parameters() if p.grad is not None}
    for parameter in learned.values():
        assert parameter.grad is not None
        parameter.grad /= _LOSS_SCALE[precision]
    return loss.item(), learned


@contextmanager
def _recorded(
    task: TrainingModule, case: str, batch: Batch, stages: set[str], measured: GoldenResult
) -> Iterator[None]:
    """Record the output of each stage, and the number of matrix products before it."""
    products = 0

    # The input of a block's output layer is the result of the attention.
    def attended(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal products
        products += _ATTENTION
        measured.record(case, f"{stage_of(name)}.attention", inputs[0], products)

    def done(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal products
        products += isinstance(module, (nn.Linear, AttentionPooling))
        if name not in stages:
            return
        value = output if isinstance(output, Tensor) else output[0]
        if module is task.encoder.nucleotides.head:
            # Only the logits [patches, C] of patches with a masked nucleotide.
            assert batch.labels_UL is not None
            scored_UL, tokens = batch.labels_UL != PAD, value.shape[1]
            patch = -(-scored_UL.shape[1] // tokens)
            padded = F.pad(scored_UL, (0, tokens * patch - scored_UL.shape[1]))
            value = value[padded.view(-1, tokens, patch).any(dim=-1)]
        measured.record(case, stage_of(name), value, products)

    with ExitStack() as hooks:
        for name, module in task.network.named_modules():
            if isinstance(module, TransformerBlock):
                hook = partial(attended, name)
                hooks.enter_context(module.out.register_forward_pre_hook(hook))
            hooks.enter_context(module.register_forward_hook(partial(done, name)))
        yield


@dataclass(frozen=True)
class Stack:
    """Stack that computed a golden run: versions, device, precision, attention backends."""

    version: str
    pytorch: str
    rocm: str | None
    cuda: str | None
    arch: str
    device: str
    precision: Precision
    attention: tuple[str, str]

    @classmethod
    def here(cls, device: torch.device, precision: Precision, attention: tuple[str, str]) -> Stack:
        """Identify the stack of this process."""
        name = torch.cuda.get_device_name(device) if is_gpu(device) else platform.machine()
        versions = str(torch.__version__), torch.version.hip, torch.version.cuda
        return cls(__version__, *versions, arch_of(device), name, precision, attention)

    def __str__(self) -> str:
        plain, masked = self.attention
        attention = plain if plain == masked else f"{plain}, {masked} with masks"
        precision = "fp32" if self.precision == "none" else self.precision
        device = self.arch if self.arch == "cpu" else f"{self.device} ({self.arch})"
        versions = f"aam {self.version}, torch {self.pytorch}"
        return f"{versions}, {device}, {precision}, attention {attention}"


def _digest(tensors: Tensors) -> str:
    return hashlib.sha256(save(tensors)).hexdigest()


def case_digest() -> str:
    """Return the SHA-256 of the weights and inputs; another model has another digest."""
    tensors = {f"weight/{name}": value for name, value in weights().items()}
    for case in SAMPLES:
        arrays = {name: v for name, v in vars(batch(case)).items() if isinstance(v, Tensor)}
        tensors |= {f"{case}/{name}": value.contiguous() for name, value in arrays.items()}
    return _digest(tensors)


def write(folder: Path, stack: Stack, measured: GoldenResult) -> None:
    """Write the golden file of a folder atomically."""
    tensors = {name: value.contiguous() for name, value in measured.tensors.items()}
    facts = {"format": FORMAT, "case": case_digest(), "stack": json.dumps(asdict(stack))}
    with atomic_write(folder / FILE) as temporary:
        # safetensors' own writer makes files that only their owner may read.
        temporary.write_bytes(save(tensors, {**facts, "sha256": _digest(tensors)}))


def read(folder: Path) -> tuple[Stack, Tensors]:
    """Read the golden file of a folder; another version or another model is refused."""
    if not folder.is_dir():
        raise MissingInput("No golden folder", f"'{folder}' is not there", "check the path")
    file = require(folder / FILE, "golden run")
    remedy = "create it again with `aam golden generate`"
    try:
        with safe_open(file, "pt") as content:
            facts = content.metadata() or {}
            if facts.get("format") == FORMAT:
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
                if facts.get("sha256") != _digest(tensors):
                    raise ValueError("its checksum does not match its content")
                stack = msgspec.json.decode(facts.get("stack", ""), type=Stack)
    except (SafetensorError, ValueError, OSError) as error:
        evidence = f"'{file}', {reason_of(error)}"
        raise DataError("The golden run is damaged", evidence, remedy) from error
    remedy = "make it with the same aam on both sides"
    if facts.get("format") != FORMAT:
        version = f"format {facts.get('format')}, aam {__version__} compares format {FORMAT}"
        raise DataError("The golden run has another version", f"'{file}' has {version}", remedy)
    if facts.get("case") != case_digest():
        evidence = f"'{file}' has other weights or inputs than aam {__version__}"
        raise DataError("The golden run is from another model", evidence, remedy)
    return stack, tensors


@dataclass(frozen=True)
class StageDifference:
    """Difference of a stage between two stacks: a line of the comparison."""

    kind: Kind
    stage: str  # stage, or range of steps of the loss curve
    # case -> largest difference, relative to the largest value (losses: to each value); NaN if a
    # value is absent or not finite
    difference: dict[str, float]
    allowed: float  # difference that rounding explains
    differs: tuple[str, ...]  # cases with a larger difference


def compare(
    golden: Tensors, measured: GoldenResult, precisions: Iterable[Precision]
) -> list[StageDifference]:
    """Compare stages in the order of computation; the coarser precision sets the tolerance."""
    used, inner = [*precisions], FEED_FORWARD * SHAPE.embedding_dim

    def allowed(products: int) -> float:
        return max(product_tolerance(precision, products, inner) for precision in used)

    def row(kind: Kind, stage: str, pairs: dict[str, Any], bound: float) -> StageDifference:
        differences = dict.fromkeys(pairs, math.nan)
        for case, (expected, actual, scale) in pairs.items():
            if actual.shape == expected.shape:
                differences[case] = float(((actual - expected).abs() / scale).max())
        differs = tuple(case for case in pairs if not differences[case] <= bound)  # NaN differs
        return StageDifference(kind, stage, differences, bound, differs)

    def pairs(kind: Kind, names: list[str]) -> dict[str, Any]:
        result = {}
        for case in SAMPLES:
            if keys := [key for name in names if (key := f"{kind}/{case}/{name}") in golden]:
                expected = torch.cat([golden[key].flatten() for key in keys])
                values = [measured.tensors.get(key, torch.empty(0)).flatten() for key in keys]
                actual = torch.cat(values)
                scale = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
                result[case] = expected, actual, scale
        return result

    depth = max(measured.products.values())
    rows = [
        row("output", stage, pairs("output", [stage]), allowed(products))
        for stage, products in measured.products.items()
    ]
    # One bound for all gradients: forward to the losses and back to the first layer.
    for stage, names in measured.groups.items():
        if compared := pairs("gradient", names):
            rows.append(row("gradient", stage, compared, allowed(3 * depth)))
    # Losses are means, and training does not amplify rounding: over the 50 steps, with other
    # kernels and in bf16, the measured differences are below a fifth of one forward pass' bound.
    interval = STEPS // 5
    for start in range(0, STEPS, interval):
        curves: dict[str, Any] = {}
        for turn, case in enumerate(SAMPLES):
            steps = [k for k in range(start, start + interval) if k % len(SAMPLES) == turn]
            expected, actual = golden["loss"][steps], measured.tensors["loss"][steps]
            curves[case] = expected, actual, expected.abs()
        rows.append(row("loss", f"steps {start + 1}-{start + interval}", curves, allowed(depth)))
    return rows


def first_difference(rows: Iterable[StageDifference]) -> StageDifference | None:
    """Return the first stage, in the order of computation, that differs beyond rounding."""
    return next((row for row in rows if row.differs), None)


def conclusion(rows: list[StageDifference]) -> str:
    """State whether two golden runs agree, and the first stage that differs."""
    first = first_difference(rows)
    if first is None:
        numbers = [sum(row.kind == kind for row in rows) for kind in ("output", "gradient")]
        return (
            f"They agree within rounding: outputs of {numbers[0]} stages, gradients of "
            f"{numbers[1]}, losses of {STEPS} steps."
        )
    notes = {"ragged": " with masks (not without)", "even": " without masks (not with)"}
    masks = notes.get("".join(first.differs), "")
    stage = f"the {first.kind} of {first.stage}" if first.kind != "loss" else f"the {first.stage}"
    worst = max(first.difference.values(), key=lambda v: math.inf if math.isnan(v) else v)
    difference = "is not finite" if math.isnan(worst) else f"differs by {worst:.1e}"
    return (
        f"They first differ at {stage}{masks}: {difference} (rounding: {first.allowed:.1e}). "
        "`aam check` measures attention in more detail."
    )


def table(rows: list[StageDifference]) -> Table:
    """Make the table of the comparison."""

    def figure(value: float | None) -> str:
        if not value:
            return "" if value is None else "0"
        return "not finite" if math.isnan(value) else f"{value:.1e}"

    heads = ["largest difference", *SAMPLES, "rounding", ""]
    cells = [
        [f"{row.kind} {row.stage}", *(figure(row.difference.get(case)) for case in SAMPLES),
         f"{row.allowed:.1e}", "differs" if row.differs else ""]
        for row in rows
    ]  # fmt: skip
    return Table("", heads, cells)


def as_plain(rows: list[StageDifference], golden: Stack, current: Stack) -> dict[str, Any]:
    """Convert the comparison to JSON values."""
    first = first_difference(rows)
    return {
        "agree": first is None,
        "first_difference": first and {"kind": first.kind, "stage": first.stage},
        "verdict": conclusion(rows),
        "golden": vars(golden),
        "here": vars(current),
        "rows": [asdict(row) for row in rows],
    }


def run_golden(options: GoldenGenerate | GoldenCompare) -> int:
    """Run `aam golden generate` or `aam golden compare`."""
    folder, stack = options.golden_dir, options.stack
    if isinstance(options, GoldenGenerate):
        refuse_existing(folder / FILE, options.overwrite)
    else:
        golden, reference = read(folder)
    # Without the check: the comparison must be able to find a wrong backend.
    requested = DeviceOptions(
        device=stack.device, attn_implementation=stack.attn_implementation, check=False
    )
    device = choose_device(requested)
    precision = choose_precision(stack.mixed_precision, arch_of(device))
    backends, _ = BackendPolicy().choose_attention(requested, device, SHAPE, precision)
    current = Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    batches = {name: batch(name) for name in SAMPLES}
    measured = measure(weights(), batches, device, backends, precision)
    if isinstance(options, GoldenGenerate):
        # No stack agrees with a reference that has NaN.
        for name, tensor in measured.tensors.items():
            if not tensor.isfinite().all():
                cause = "This stack computes values that are not finite"
                raise NotFinite(cause, name, "run `aam check`")
        write(folder, current, measured)
        info(f"{current}: {folder}")
        return 0
    rows = compare(reference, measured, (golden.precision, precision))
    if options.json:
        print(dump_json(as_plain(rows, golden, current), indent=2))
    else:
        print(f"golden: {golden}\nhere:   {current}")
        print_table(table(rows))
        print(f"\n{conclusion(rows)}")
    return 0 if first_difference(rows) is None else 1
