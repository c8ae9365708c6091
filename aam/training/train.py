"""A whole training run, from files to a run folder: one split, or one model for each fold."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from aam.console import say
from aam.contract.errors import UsageError
from aam.contract.options.commands import Train
from aam.contract.precision import choose_precision
from aam.data.splits import Split, write_splits
from aam.distributed.communicator import Communicator, identity
from aam.distributed.process_group import process_group
from aam.model.attention import Backends
from aam.model.network import Predictor
from aam.numerics.backend_selection import GUARD, Guard, Guarded
from aam.numerics.device import arch_of, choose_device
from aam.training import checkpoints, fit, run_folder
from aam.training.data_loader import FixedBatches, TrainingBatches
from aam.training.inference import apply_network, encode_asvs
from aam.training.initialization import InitialModel, initialize
from aam.training.labelled_study import LabelledStudy, fit_target, load_labelled_study
from aam.training.lightning_module import LossWeights, TrainingModule, target_metrics
from aam.training.output_tables import prediction_table, write_table
from aam.training.pretrain import check_shape, write_all_embeddings
from aam.training.pretrained import PretrainedEncoder, choose_length, read_pretrained_encoder
from aam.training.runtime import choose_attention
from aam.training.sample_selection import reading_plan
from aam.training.target import Target


def train(options: Train, guard: Guard = GUARD) -> None:
    """Train one model, or one a fold, and write the run folder.

    `guard` holds the attention backends that may compute.

    Raises:
        AamError: see the readers and `load_labelled_study`.
    """
    with process_group(options.scale, options.device, options.loop.batch_size) as communicator:
        _train(options, guard, communicator)


def _train(options: Train, guard: Guard, communicator: Communicator) -> None:
    """Do what `train` says, as one of several processes."""
    communicator.require_equal_options(options)
    _check_options(options)
    prepared = run_folder.prepare("train", options, communicator.ranks)
    base = read_pretrained_encoder(options.pretrained_encoder)
    labelled = load_labelled_study(options, choose_length(base, options.sample), prepared.splits)
    if len(labelled.splits) > 1:
        checkpoints.check_folds(options.run)
    for split in labelled.splits:
        fit.check_split(split, options.loop)
        fit_target(options, labelled, split)
    chosen = _attention(options, base, guard)
    with run_folder.begin(prepared, communicator.ranks, attention=chosen.record) as record:
        _train_folds(options, labelled, base, record, chosen.backends, communicator)


def _train_folds(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    record: run_folder.RunRecord,
    backends: Backends,
    communicator: Communicator,
) -> None:
    """Train the model of each split; of a run that is resumed, what is left of each.

    A fold that has ended is only applied again.
    """
    folder = options.run.output_dir
    if communicator.ranks.is_main:
        write_splits(
            folder / "splits.tsv", labelled.study.table.sample_ids, labelled.splits, labelled.labels
        )
    found = [
        train_fold(
            options,
            labelled,
            base,
            split,
            fold,
            _fold_folder(folder, labelled.splits, fold),
            record,
            backends,
            communicator,
        )
        for fold, split in enumerate(labelled.splits, start=1)
    ]
    results = [result for result in found if result is not None]
    if not results:
        return
    tables = [table for table, _ in results]
    predictions = pd.concat(tables, ignore_index=True)
    write_table(folder / "predictions.tsv", predictions)
    record.finish(
        samples={
            part: len(getattr(labelled.splits[0], part)) for part in ("train", "validation", "test")
        },
        asvs=len(labelled.study.table.feature_ids),
        rarefy_depth=labelled.depth,
        classes=labelled.classes,
        folds=[facts for _, facts in results],
        **results[0][1],
    )
    say(f"Model: {folder}")


def train_fold(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    fold: int,
    folder: Path,
    record: run_folder.RunRecord,
    backends: Backends,
    communicator: Communicator,
) -> tuple[pd.DataFrame, dict[str, object]] | None:
    """Train the model of one split; returns its predictions and what is worth recording.

    Of several processes only the first one applies the model; the others return None.
    """
    torch.manual_seed(options.loop.seed + fold - 1)
    device = choose_device(options.device)
    target = fit_target(options, labelled, split)
    initial = initialize(options, labelled, base, split, target, device, backends)
    communicator.require_equal_data(
        study=identity(labelled.study),
        values=labelled.values,
        split=split,
        weights=initial.network.state_dict(),
    )
    outcome = _fit(options, labelled, initial, target, split, fold, folder, record, communicator)
    if not communicator.ranks.is_main:
        return None
    network = initial.config.network(backends)
    assert isinstance(network, Predictor)
    _, content = checkpoints.read(outcome.checkpoint)
    checkpoints.load_weights(network, content)
    asv_vectors_FD = initial.asv_vectors_FD
    if asv_vectors_FD is None:
        asv_vectors_FD = encode_asvs(network.encoder, labelled.study, device)
    part, rows = split.held_out
    plan, batch_size = reading_plan(initial.config.plan), options.loop.batch_size
    found = apply_network(network, labelled.study, plan, rows, batch_size, device, asv_vectors_FD)
    assert found.outputs_NC is not None
    answers, values = target.decode(found.outputs_NC), labelled.values[rows]
    ids = [labelled.study.table.sample_ids[row] for row in rows]
    table = prediction_table(target, ids, answers, values)
    table.insert(1, "fold", fold)
    table.insert(2, "split", part)
    if fold == 1:
        write_all_embeddings(
            options.run.output_dir,
            initial.config,
            network,
            labelled.study,
            batch_size,
            device,
            asv_vectors_FD,
        )
    figures = target_metrics(target, answers, values)
    whose = (
        f"Fold {fold} of {len(labelled.splits)}, {part}"
        if len(labelled.splits) > 1
        else part.title()
    )
    say(f"{whose}: " + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    facts = {
        "parameters": sum(p.numel() for p in network.parameters()),
        "epochs": outcome.epochs,
        "steps": outcome.steps,
        "best": outcome.best | {f"{part}_{name}": value for name, value in figures.items()},
    }
    return table, facts


def _fit(
    options: Train,
    labelled: LabelledStudy,
    initial: InitialModel,
    target: Target,
    split: Split,
    fold: int,
    folder: Path,
    record: run_folder.RunRecord,
    communicator: Communicator,
) -> fit.FitResult:
    """Run the loop for one split."""
    loop, plan = options.loop, initial.config.plan
    task = TrainingModule(
        initial.network,
        LossWeights.of(options.task, options.target_penalty),
        loop,
        fit.optimizer_steps(len(split.train), loop),
        target,
        labelled.values,
        initial.asv_vectors_FD,
        initial.config.standard,
    )
    fresh = options.sample.rarefy_each_epoch
    training = TrainingBatches(
        labelled.study, plan, split.train, loop.batch_size, fresh, loop.even_batches
    )
    judging = FixedBatches(labelled.study, plan, split.validation, loop.batch_size)
    given = fit.FitConfig(
        initial.config,
        loop,
        options.speed,
        options.device,
        options.run,
        folder,
        options.best_metric,
        record.note,
        options.scale,
        communicator,
        fold,
        len(labelled.splits),
    )
    return fit.run(given, task, training, judging if len(split.validation) else None)


def _attention(options: Train, base: PretrainedEncoder | None, guard: Guard) -> Guarded:
    """Choose the attention backends of all folds."""
    device = choose_device(options.device)
    precision = choose_precision(options.speed.mixed_precision, arch_of(device))
    sizes = base.config.shape if base else options.model
    recompute = options.speed.gradient_checkpointing
    return choose_attention(options.device, device, sizes, guard, precision, recompute)


def _check_options(options: Train) -> None:
    choose_precision(options.speed.mixed_precision, arch_of(choose_device(options.device)))
    if options.pretrained_encoder is None:
        check_shape(options.model, options.device, options.scale)
    if options.freeze_base and options.pretrained_encoder is None:
        raise UsageError(
            "Nothing to freeze", "--freeze-base without --pretrained-encoder", "name an encoder"
        )
    regression_only = options.best_metric in ("r2", "mae")
    if regression_only == options.target.classifier and options.best_metric != "val_loss":
        raise UsageError(
            "The metric does not fit the target",
            f"--best-metric {options.best_metric}",
            "r2 and mae are for numbers, accuracy and f1 for classes",
        )
    if options.loss_type == "quantile" and not all(0 < q < 1 for q in options.quantiles):
        raise UsageError("No quantiles", f"--quantiles {options.quantiles}", "give 0 to 1")


def _fold_folder(folder: Path, splits: tuple[Split, ...], fold: int) -> Path:
    return folder if len(splits) == 1 else folder / f"fold-{fold}"
