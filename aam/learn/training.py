"""A whole training run, from files to a run folder: one split, or one model for each fold."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from aam.console import say, warn
from aam.errors import DataError, UsageError
from aam.learn import checkpoints, fit, run_folder
from aam.learn.devices import check_precision, choose_attention, choose_device
from aam.learn.inference import fit_profile, read_out, remember_asvs
from aam.learn.loaders import FixedBatches, TrainingBatches
from aam.learn.outputs import prediction_table, write_table
from aam.learn.pretraining import check_shape, shape_of, write_all_embeddings
from aam.learn.recipe import Recipe
from aam.learn.samples import (
    batch_plan,
    canonical,
    choose_depth,
    deep_enough,
    longest,
    reading_plan,
    standardise,
)
from aam.learn.target import Target
from aam.learn.task import Task, Weights, judge
from aam.learn.transforms import fit_transform
from aam.model.network import Predictor
from aam.options import to_plain
from aam.options.commands import Train
from aam.study.batches import BatchPlan
from aam.study.metadata import read_metadata
from aam.study.question import read_answers, split_samples
from aam.study.splits import Split, write_splits
from aam.study.study import Study, load_study


@dataclass(frozen=True)
class Question:
    """A study with the answer of every sample.

    Attributes:
        study: the samples that have an answer and are deep enough.
        values: float64 [N], numbers or class codes.
        classes: names of the classes; empty for numbers.
        splits: one a fold.
        labels: group of each sample; None without groups.
        depth: rarefaction depth.
    """

    study: Study
    values: npt.NDArray[np.float64]
    classes: tuple[str, ...]
    splits: tuple[Split, ...]
    labels: list[str] | None
    depth: int


@dataclass(frozen=True)
class Base:
    """The pretrained encoder that training starts from."""

    recipe: Recipe
    weights: dict[str, torch.Tensor]


def train(options: Train) -> None:
    """Train one model, or one a fold, and write the run folder.

    Raises:
        AamError: see the readers and `ask`.
    """
    _check_options(options)
    folder = options.run.output_dir
    run_folder.prepare(folder, options.run.overwrite, options.run.resume_from is not None)
    base = read_base(options)
    asked = ask(options, base)
    if len(asked.splits) > 1 and options.run.resume_from is not None:
        raise UsageError(
            "Cross-validation is not resumed", "several folds with --resume-from", "start it again"
        )
    for split in asked.splits:
        fit.check_sizes(len(split.train), options.loop)
        _target(options, asked, split)
    record = run_folder.begin("train", options, folder)
    write_splits(folder / "splits.tsv", asked.study.table.sample_ids, asked.splits, asked.labels)
    results = [
        train_fold(options, asked, base, split, fold, _fold_folder(folder, asked.splits, fold))
        for fold, split in enumerate(asked.splits, start=1)
    ]
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


def read_base(options: Train) -> Base | None:
    """Read the pretrained encoder, if one was named."""
    if options.pretrained_encoder is None:
        return None
    recipe, content = checkpoints.read(checkpoints.find(options.pretrained_encoder, "best.ckpt"))
    shape = recipe.shape
    say(
        f"Pretrained encoder: width {shape.embedding_dim}, {shape.attention_layers} layers, patch "
        f"{shape.nucleotide_patch}, from '{options.pretrained_encoder}'."
    )
    return Base(recipe, checkpoints.encoder_weights(recipe, content))


def ask(options: Train, base: Base | None) -> Question:
    """Read the study and the target, and decide splits.

    Raises:
        AamError: see the readers; DataError if the samples or their values do not serve.
    """
    max_bp = base.recipe.shape.max_bp if base else longest(options.sample)
    study = load_study(options.input, options.phylogeny, max_bp)
    metadata = read_metadata(options.target.metadata)
    found = read_answers(options.target, metadata, study.table.sample_ids)
    study = study.take_samples(found.rows)
    depth = choose_depth(study, options.sample)
    deep = deep_enough(study, depth)
    study, values = study.take_samples(deep), found.values[deep]
    if len(np.unique(values)) < 2:
        raise DataError(
            f"The column '{options.target.metadata_column}' has one value in the samples left",
            f"{len(values)} samples",
            "choose a lower --rarefy-depth or another column",
        )
    splits, labels = split_samples(
        options.split,
        options.folds,
        options.loop.seed,
        study.table.sample_ids,
        metadata,
        values.astype(np.int64) if found.classes else None,
    )
    return Question(study, values, found.classes, splits, labels, depth)


def train_fold(
    options: Train, asked: Question, base: Base | None, split: Split, fold: int, folder: Path
) -> tuple[pd.DataFrame, dict[str, object]]:
    """Train the model of one split; returns its predictions and what is worth recording."""
    torch.manual_seed(options.loop.seed + fold - 1)
    device = choose_device(options.device)
    target = _target(options, asked, split)
    recipe = _recipe(options, asked, base, split, target)
    network = recipe.network(
        choose_attention(options.device, device), options.speed.gradient_checkpointing
    )
    assert isinstance(network, Predictor)
    if base is not None:
        network.encoder.load_state_dict(base.weights)
    network.start_from(target.guess(asked.values[split.train]))
    fit_profile(network, asked.study, reading_plan(recipe.plan), split.train)
    remembered_FD = None
    if options.freeze_base:
        network.encoder.requires_grad_(False)
        remembered_FD = remember_asvs(network.encoder, asked.study, device)
    task = Task(
        network,
        Weights.of(options.task, options.target_penalty),
        options.loop,
        fit.optimiser_steps(len(split.train), options.loop),
        target,
        asked.values,
        remembered_FD,
        recipe.standard,
    )
    batch_size, plan = options.loop.batch_size, recipe.plan
    fresh = options.sample.rarefy_each_epoch
    given = fit.Fit(
        recipe,
        options.loop,
        options.speed,
        options.device,
        options.run,
        folder,
        options.best_metric,
    )
    outcome = fit.run(
        given,
        task,
        TrainingBatches(asked.study, plan, split.train, batch_size, fresh),
        FixedBatches(asked.study, plan, split.validation, batch_size)
        if len(split.validation)
        else None,
    )
    _, content = checkpoints.read(outcome.checkpoint)
    checkpoints.load_weights(network, content)
    if not options.freeze_base:
        remembered_FD = remember_asvs(network.encoder, asked.study, device)
    assert remembered_FD is not None
    part, rows = split.judged
    found = read_out(
        network, asked.study, reading_plan(plan), rows, batch_size, device, remembered_FD
    )
    assert found.outputs_NC is not None
    answers, values = target.answer(found.outputs_NC), asked.values[rows]
    table = prediction_table(
        target, [asked.study.table.sample_ids[r] for r in rows], answers, values
    )
    table.insert(1, "fold", fold)
    table.insert(2, "split", part)
    if fold == 1:
        write_all_embeddings(
            options.run.output_dir, recipe, network, asked.study, batch_size, device
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


def _check_options(options: Train) -> None:
    check_precision(options.speed, choose_device(options.device))
    if options.pretrained_encoder is None:
        check_shape(options.model)
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


def _target(options: Train, asked: Question, split: Split) -> Target:
    """Fit what the target needs to the training samples."""
    values = asked.values[split.train]
    column = options.target.metadata_column
    if asked.classes:
        number = np.bincount(values.astype(int), minlength=len(asked.classes))
        if (number == 0).any():
            absent = [asked.classes[i] for i in np.flatnonzero(number == 0)]
            raise DataError(
                "A class has no training sample",
                ", ".join(absent),
                "add --stratify or merge classes",
            )
        weights = len(values) / (len(number) * number)
        balanced = options.class_weights == "balanced"
        return Target(column, asked.classes, tuple(weights.tolist()) if balanced else ())
    return Target(
        column,
        transform=fit_transform(options.target_transform, values),
        loss_type=options.loss_type,
        quantiles=tuple(sorted(options.quantiles)) if options.loss_type == "quantile" else (),
        over_penalty=options.over_penalty,
        under_penalty=options.under_penalty,
    )


def _recipe(
    options: Train, asked: Question, base: Base | None, split: Split, target: Target
) -> Recipe:
    metric = canonical(options.phylogeny.unifrac_metric)
    if base is not None and base.recipe.metric != metric:
        warn(f"UniFrac metric of the pretrained encoder is kept: {base.recipe.metric}.")
        metric = base.recipe.metric
    task = options.task
    if options.freeze_base:
        # A frozen encoder learns nothing from its own tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0)
    plan: BatchPlan = batch_plan(
        asked.depth, options.sample, options.loop, task, options.phylogeny, metric
    )
    if base is not None:
        shape = base.recipe.shape
        standard = base.recipe.standard
    else:
        shape = shape_of(asked.study, options.model)
        standard = standardise(asked.study, plan, split.train)
    shape = dataclasses.replace(
        shape,
        outputs=target.outputs,
        dropout=options.model.dropout,
        profile_features=options.profile_features,
        profile_dropout=options.profile_dropout,
    )
    return Recipe("train", shape, metric, plan, standard, target, to_plain(options))


def _fold_folder(folder: Path, splits: tuple[Split, ...], fold: int) -> Path:
    return folder if len(splits) == 1 else folder / f"fold-{fold}"
