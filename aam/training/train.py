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
from aam.distributed.consensus import Team, identity
from aam.distributed.process_group import joined
from aam.model.attention import Backends
from aam.model.network import Predictor
from aam.numerics.backend_selection import GUARD, Guard, Guarded
from aam.numerics.device import arch_of, choose_device
from aam.training import checkpoints, fit, run_folder
from aam.training.data_loader import FixedBatches, TrainingBatches
from aam.training.inference import read_out, remember_asvs
from aam.training.initialization import Start, start
from aam.training.labelled_study import Question, ask, fit_target
from aam.training.lightning_module import Task, Weights, judge
from aam.training.output_tables import prediction_table, write_table
from aam.training.pretrain import check_shape, write_all_embeddings
from aam.training.pretrained import Base, choose_length, read_base
from aam.training.runtime import choose_attention
from aam.training.sample_selection import reading_plan
from aam.training.target import Target


def train(options: Train, guard: Guard = GUARD) -> None:
    """Train one model, or one a fold, and write the run folder.

    `guard` holds the attention backends that may compute.

    Raises:
        AamError: see the readers and `ask`.
    """
    with joined(options.scale, options.device, options.loop.batch_size) as team:
        _train(options, guard, team)


def _train(options: Train, guard: Guard, team: Team) -> None:
    """Do what `train` says, as one of several processes."""
    team.same_options(options)
    _check_options(options)
    prepared = run_folder.prepare("train", options, team.ranks)
    base = read_base(options.pretrained_encoder)
    asked = ask(options, choose_length(base, options.sample), prepared.splits)
    if len(asked.splits) > 1:
        checkpoints.check_folds(options.run)
    for split in asked.splits:
        fit.check_split(split, options.loop)
        fit_target(options, asked, split)
    chosen = _attention(options, base, guard)
    with run_folder.begin(prepared, team.ranks, attention=chosen.record) as record:
        _train_folds(options, asked, base, record, chosen.backends, team)


def _train_folds(
    options: Train,
    asked: Question,
    base: Base | None,
    record: run_folder.RunRecord,
    backends: Backends,
    team: Team,
) -> None:
    """Train the model of each split; of a run that is resumed, what is left of each.

    A fold that has ended is only applied again.
    """
    folder = options.run.output_dir
    if team.ranks.first:
        write_splits(
            folder / "splits.tsv", asked.study.table.sample_ids, asked.splits, asked.labels
        )
    found = [
        train_fold(
            options,
            asked,
            base,
            split,
            fold,
            _fold_folder(folder, asked.splits, fold),
            record,
            backends,
            team,
        )
        for fold, split in enumerate(asked.splits, start=1)
    ]
    results = [result for result in found if result is not None]
    if not results:
        return
    tables = [table for table, _ in results]
    predictions = pd.concat(tables, ignore_index=True)
    write_table(folder / "predictions.tsv", predictions)
    record.finish(
        samples={
            part: len(getattr(asked.splits[0], part)) for part in ("train", "validation", "test")
        },
        asvs=len(asked.study.table.feature_ids),
        rarefy_depth=asked.depth,
        classes=asked.classes,
        folds=[facts for _, facts in results],
        **results[0][1],
    )
    say(f"Model: {folder}")


def train_fold(
    options: Train,
    asked: Question,
    base: Base | None,
    split: Split,
    fold: int,
    folder: Path,
    record: run_folder.RunRecord,
    backends: Backends,
    team: Team,
) -> tuple[pd.DataFrame, dict[str, object]] | None:
    """Train the model of one split; returns its predictions and what is worth recording.

    Of several processes only the first one applies the model; the others return None.
    """
    torch.manual_seed(options.loop.seed + fold - 1)
    device = choose_device(options.device)
    target = fit_target(options, asked, split)
    begun = start(options, asked, base, split, target, device, backends)
    team.same_data(
        study=identity(asked.study),
        values=asked.values,
        split=split,
        weights=begun.network.state_dict(),
    )
    outcome = _fit(options, asked, begun, target, split, fold, folder, record, team)
    if not team.ranks.first:
        return None
    network = begun.recipe.network(backends)
    assert isinstance(network, Predictor)
    _, content = checkpoints.read(outcome.checkpoint)
    checkpoints.load_weights(network, content)
    remembered_FD = begun.remembered_FD
    if remembered_FD is None:
        remembered_FD = remember_asvs(network.encoder, asked.study, device)
    part, rows = split.held_out
    plan, batch_size = reading_plan(begun.recipe.plan), options.loop.batch_size
    found = read_out(network, asked.study, plan, rows, batch_size, device, remembered_FD)
    assert found.outputs_NC is not None
    answers, values = target.answer(found.outputs_NC), asked.values[rows]
    ids = [asked.study.table.sample_ids[row] for row in rows]
    table = prediction_table(target, ids, answers, values)
    table.insert(1, "fold", fold)
    table.insert(2, "split", part)
    if fold == 1:
        write_all_embeddings(
            options.run.output_dir,
            begun.recipe,
            network,
            asked.study,
            batch_size,
            device,
            remembered_FD,
        )
    figures = judge(target, answers, values)
    whose = f"Fold {fold} of {len(asked.splits)}, {part}" if len(asked.splits) > 1 else part.title()
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
    asked: Question,
    begun: Start,
    target: Target,
    split: Split,
    fold: int,
    folder: Path,
    record: run_folder.RunRecord,
    team: Team,
) -> fit.Outcome:
    """Run the loop for one split."""
    loop, plan = options.loop, begun.recipe.plan
    task = Task(
        begun.network,
        Weights.of(options.task, options.target_penalty),
        loop,
        fit.optimiser_steps(len(split.train), loop),
        target,
        asked.values,
        begun.remembered_FD,
        begun.recipe.standard,
    )
    fresh = options.sample.rarefy_each_epoch
    training = TrainingBatches(
        asked.study, plan, split.train, loop.batch_size, fresh, loop.even_batches
    )
    judging = FixedBatches(asked.study, plan, split.validation, loop.batch_size)
    given = fit.Fit(
        begun.recipe,
        loop,
        options.speed,
        options.device,
        options.run,
        folder,
        options.best_metric,
        record.note,
        options.scale,
        team,
        fold,
        len(asked.splits),
    )
    return fit.run(given, task, training, judging if len(split.validation) else None)


def _attention(options: Train, base: Base | None, guard: Guard) -> Guarded:
    """Choose the attention backends of all folds."""
    device = choose_device(options.device)
    precision = choose_precision(options.speed.mixed_precision, arch_of(device))
    sizes = base.recipe.shape if base else options.model
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
