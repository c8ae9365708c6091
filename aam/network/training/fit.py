"""Fit of a network: module, optimizer, resumption, training loop, chosen checkpoint."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from aam.arrays import F64
from aam.console import info, warn
from aam.contract.files import atomic_write
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import CompileModel, LoopOptions
from aam.contract.records import Mismatch
from aam.data.study import Study
from aam.network.batches import Batch, BatchPlan, FixedBatches, RunSampler, TrainingBatches, loader
from aam.network.distributed.collectives import parallelize
from aam.network.inference.outputs import LoadedNetwork
from aam.network.inference.stored_networks import ModelConfig
from aam.network.model.network import Predictor
from aam.network.model.transformer import FEED_FORWARD, PRODUCTS
from aam.network.numerics.device import (
    Precision,
    compile_fault,
    device_name,
    is_gpu,
    product_tolerance,
)
from aam.network.training import checkpoints
from aam.network.training.checkpoints import FIRST_COLUMNS, START
from aam.network.training.configuration import Runtime
from aam.network.training.finite import FiniteCheck, eager_again
from aam.network.training.loop import TrainingLoop
from aam.network.training.module import GradientStep, TrainingModule
from aam.network.training.observers import Fp32Report, LoggedMetrics, Observer, Progress, StepLog
from aam.pipeline import run_folder
from aam.pipeline.run_folder import BEST, LAST, RecordFact


@dataclass(frozen=True)
class Fit:
    """Result of the fit of a network."""

    network: LoadedNetwork  # network of the chosen checkpoint
    # parameters, epochs, optimizer steps and best metrics, for the run record
    facts: dict[str, Any]
    # predictions [n, C], in the units of the target or class probabilities, by the name of the set
    # of samples (test, validation); empty for pretraining
    predictions: dict[str, F64] = field(default_factory=dict)


def fit(
    task: TrainingModule,
    config: ModelConfig,
    training: TrainingBatches,
    validation: FixedBatches | None,
    options: Pretrain | Train,
    runtime: Runtime,
    record_fact: RecordFact,
    fold: int = 1,
    folds: int = 1,
    more: Sequence[Observer] = (),
) -> Fit | None:
    """Train a module, from the start or resumed; return its best checkpoint on the first rank."""
    communicator, device, speed = runtime.communicator, runtime.device, options.speed
    folder = options.run.output_dir if folds == 1 else options.run.output_dir / f"fold-{fold}"
    is_main, ids = communicator.ranks.is_main, training.study.table.sample_ids
    record_fact("precision", runtime.precision)

    # Module.
    freeze_unused(task, training.plan, training.study)
    model = parallelize(task, options.scale, communicator.ranks, device)
    step = GradientStep(task, model, runtime.precision)

    # Optimizer. A resumed run loads the states of the module and of the optimizer.
    optimizer, state = make_optimizer(task, options.loop), START
    # Rank 0 decides: on a network file system other ranks may see an earlier state of the folder.
    resumed = communicator.broadcast(run_folder.checkpoint_to_resume(options.run, folder))
    if resumed is not None:
        stored = checkpoints.read(resumed)
        if stored.resume is None:
            raise checkpoints.unusable(resumed, "it has no resume state")
        state = stored.resume
        try:
            if state.progress.batch >= training.steps:
                raise Mismatch(f"resume.progress.batch is {state.progress.batch}, beyond the epoch")
            weights = {f"network.{name}": weight for name, weight in stored.weights.items()}
            checkpoints.load_model(task, weights)
            checkpoints.load_optimizer(task, optimizer, state.optimizer)
            if state.scaler and step.scaler.is_enabled():  # a run may change its precision
                if step.scaler.state_dict().keys() != state.scaler.keys():
                    raise Mismatch("resume.scaler has the state of another loss scaler")
                step.scaler.load_state_dict(state.scaler)
        except Mismatch as error:
            raise checkpoints.unusable(resumed, error) from error
        # The best checkpoint is beside the resumed one, perhaps in another folder: copy it.
        best = folder / BEST
        source = resumed.with_name(best.name)
        if is_main and source.exists() and source.resolve() != best.resolve():
            with atomic_write(best) as temporary:
                shutil.copyfile(source, temporary)
        if not communicator.broadcast(best.exists()):
            # The best epoch cannot be chosen without its weights, so only epochs of this process
            # are compared.
            state = dataclasses.replace(state, best=None)
    schedule = make_schedule(optimizer, options.loop, task.steps, state.progress.step)

    # Observers. Only the first rank writes files and prints.
    observers: list[Observer] = []
    report = Fp32Report(runtime.precision, record_fact) if speed.report_fp32_fallbacks else None
    if report is not None:
        observers.append(report)
    if is_main:
        run, samples, name = options.run.output_dir, len(training.rows), device_name(device)
        progress, table = run / "progress.json", folder / "metrics.csv"
        observers.append(Progress(progress, table, samples, name, fold, folds))
        title = run.name if folds == 1 else f"{run.name}/fold-{fold}"
        observers.append(LoggedMetrics(options.run, config.options, folder, title))
    if os.environ.get("AAM_STEP_LOG"):
        observers.append(StepLog(os.environ, is_main))

    def prepare(batch: Batch) -> bool:
        # Compilation drops the hooks of the fp32 report, so it waits until the report is done.
        if report is not None and not report.done:
            return False
        if speed.compile_model != "off":
            compile_encoder(step, speed.compile_model, record_fact, batch)
        return True

    # Loop.
    load = partial(
        loader,
        workers=runtime.workers,
        pin=is_gpu(device),
        prefetch=speed.prefetch_factor,
        ranks=communicator.ranks,
        sequences=task.target is not None,  # its community profile reads them
    )
    metric = options.best_metric if isinstance(options, Train) else "val_loss"
    monitor = metric if metric.startswith("val_") else f"val_{metric}"
    first_batch = state.progress.epoch, state.progress.batch
    loop = TrainingLoop(
        step,
        FiniteCheck(step, ids, folder / LAST, record_fact, communicator),
        optimizer,
        schedule,
        load(training, RunSampler(training.steps, options.loop.epochs, first_batch)),
        validation=None if validation is None else load(validation, None),
        monitor=monitor,
        save=lambda name, *state: checkpoints.write(folder / name, config, *state),
        checkpoint_interval=options.run.checkpoint_every_n_steps or 0,
        stop=runtime.stop,
        prepare=prepare,
        observers=[*observers, *more],
        state=state,
    )
    # A complete run that is resumed into another folder trains no step, so it is written here.
    if loop.complete and not communicator.broadcast((folder / LAST).exists()):
        loop.write(LAST)
    try:
        with runtime.stop.handled():
            loop.run()
    finally:
        eager_again(task.encoder.nucleotides)  # tensors after training have other shapes

    # Chosen checkpoint.
    epochs, chosen = loop.progress.epoch, LAST if loop.best is None else BEST
    if loop.best is None:
        latest = loop.history[-1] if loop.history else {}
        best_metrics = {name: value for name, value in latest.items() if name not in FIRST_COLUMNS}
    else:
        best_metrics = {f"best_{monitor}": loop.best}
        # No row has the best value if the value is NaN in all rows.
        if rows := [row for row in loop.history if row.get(monitor) == loop.best]:
            best_metrics["best_epoch"] = best_epoch = int(rows[0]["epoch"]) + 1
            sentence = f"Chosen: epoch {best_epoch} of {epochs}, {monitor} {loop.best:.4g}."
            if epochs < options.loop.epochs:
                sentence = (
                    f"Stopped early after epoch {epochs} of {options.loop.epochs}: no better "
                    f"{monitor} in {options.loop.patience} epochs (--patience). {sentence}"
                )
            info(sentence)
    if not is_main:
        return None
    # Read from the file, since the module has the weights of the last epoch, or shards of them.
    network = checkpoints.read(folder / chosen).network
    trained = network.build(runtime.backends)
    facts = {
        "parameters": sum(p.numel() for p in trained.parameters()),
        "epochs": epochs,
        "steps": loop.progress.step,
        "best": best_metrics,
    }
    return Fit(LoadedNetwork(network, trained, device, runtime.attention), facts)


def make_optimizer(task: torch.nn.Module, loop: LoopOptions) -> Optimizer:
    """Build the AdamW optimizer (Loshchilov and Hutter 2019); only linear layers decay."""
    linear = {id(module.weight) for module in task.modules() if isinstance(module, torch.nn.Linear)}
    trainable = [p for p in task.parameters() if p.requires_grad]
    decayed = [p for p in trainable if id(p) in linear]
    groups = [
        {"params": decayed, "weight_decay": loop.weight_decay},
        {"params": [p for p in trainable if id(p) not in linear], "weight_decay": 0.0},
    ]
    for group in groups:
        group["initial_lr"] = loop.lr  # the schedule of a resumed run needs it
    # The fused kernel of a GPU can skip a step by a flag on the device. On a CPU fused results
    # would differ in the last bits.
    return torch.optim.AdamW(groups, lr=loop.lr, fused=is_gpu(trainable[0].device) or None)


def make_schedule(optimizer: Optimizer, loop: LoopOptions, steps: int, done: int = 0) -> LambdaLR:
    """Build the learning-rate schedule: linear warm-up, then half a cosine to 0.

    Loshchilov and Hutter 2017. `done` steps of a resumed run come before.

    >>> optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> schedule = make_schedule(optimizer, LoopOptions(warmup_fraction=0.1), steps=100)
    >>> [round(schedule.lr_lambdas[0](step), 3) for step in (10, 55, 100)]
    [1.0, 0.5, 0.0]
    """
    warmup = max(1, round(loop.warmup_fraction * steps))

    def factor(step: int) -> float:
        if step < warmup:
            # Not from 0, which would waste the first step, and not to 1, where the cosine begins.
            return (step + 1) / (warmup + 1)
        fraction = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0)))

    return LambdaLR(optimizer, factor, last_epoch=done - 1)


def freeze_unused(task: TrainingModule, plan: BatchPlan, study: Study) -> None:
    """Freeze the parameters that no loss term of this run reaches."""
    # DDP gives such parameters no gradient, but FSDP gives them zeros, and weight decay applies to
    # these: the weights would depend on the strategy.
    encoder, samples, weights = task.encoder, task.encoder.samples, task.weights
    related = plan.metric is not None and weights.unifrac > 0 and not task.frozen
    by_diversity = plan.metric == "faith_pd" and study.distances is None
    target, counts = task.target is not None and weights.target > 0, plan.hidden_ratio > 0
    unused: list[nn.Module] = []
    if task.frozen or plan.mask_ratio == 0 or weights.nucleotide == 0:
        unused.append(encoder.nucleotides.head)
    if not (related and by_diversity):
        unused.append(encoder.diversity)
    if not related or by_diversity:
        unused.append(encoder.distance)
    if not related and not target:
        unused += [samples.pooling, samples.out] if counts else [samples]
    if samples.counts is not None and not counts:
        unused.append(samples.counts)
    if isinstance(task.network, Predictor) and not target:
        unused += [child for child in task.network.children() if child is not encoder]
    for module in unused:
        module.requires_grad_(False)


def compile_encoder(
    step: GradientStep, mode: CompileModel, record_fact: RecordFact, batch: Batch
) -> None:
    """Compile the nucleotide encoder, if it passes a test on the sequences of a batch.

    The test compares a forward and a backward pass with the eager module, since the compiler of a
    stack (Triton or C++) may be missing, broken or wrong.
    """
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
