"""Training of the network on one split, and its predictions of the held-out samples."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.console import info
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.data.batches import reading_plan
from aam.data.covariates import fit_encoder
from aam.data.targets import output_range
from aam.distributed import strategies
from aam.distributed.collectives import identity
from aam.evaluation.splits import Split
from aam.inference.outputs import (
    LoadedNetwork,
    apply_network,
    encode_asvs,
    fit_profile,
    write_study_embeddings,
)
from aam.inference.stored_networks import ModelConfig, Target, covariate_shape
from aam.inference.tables import require_finite
from aam.model.network import Encoder, Predictor
from aam.training import checkpoints
from aam.training.labelled_study import LabelledStudy, fit_labels
from aam.training.loop import FitConfig, FitResult, fit_split, optimizer_steps
from aam.training.module import LossWeights, TrainingModule, target_metrics
from aam.training.pretrain import PretrainedEncoder, batch_plan, choose_metric, choose_shape
from aam.training.run_folder import RecordFact
from aam.training.runtime import Runtime


@dataclass(frozen=True)
class FoldResult:
    """Result of the network of one fold, on its held-out samples.

    Attributes:
        target: target that was fitted to the training samples of the fold.
        predictions_NC: predictions in the units of the target, or class probabilities.
        validation_NC: the same of the validation samples of an ordered target; else None.
        facts: results for the run record.
    """

    target: Target
    network: LoadedNetwork
    predictions_NC: npt.NDArray[np.float64]
    validation_NC: npt.NDArray[np.float64] | None
    facts: dict[str, Any]


def train_fold(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    fold: int,
    record_fact: RecordFact,
    runtime: Runtime,
) -> FoldResult | None:
    """Train the network of one split and apply it to its held-out samples.

    A resumed run trains the rest of it; a complete network is only applied. Only the first rank
    applies the network; the others return None. The number of the fold, from 1, sets the seed.

    Raises:
        DataError: fewer training samples than a batch.
        AamError: the ranks differ in study, labels, split or initial weights.
    """
    study, folds, output_dir = labelled.study, len(labelled.splits), options.run.output_dir
    torch.manual_seed(options.loop.seed + fold - 1)
    target = fit_target(options, labelled, split)
    config = configure_model(options, labelled, base, split, target)
    network = config.network(runtime.backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Predictor)
    if base is not None:
        strategies.load_model(network.encoder, base.weights)
    # The best constant: the first steps then learn differences instead of the mean of the target.
    network.start_from(target.initial_outputs(labelled.values[split.train]))
    fit_profile(network, study, reading_plan(config.plan), split.train)
    if options.freeze_base:
        network.encoder.requires_grad_(False)
    asv_vectors_FD = None if base is None else base.asv_vectors_FD
    runtime.communicator.require_equal_data(
        study=identity(study), values=labelled.values, split=split, weights=network.state_dict()
    )
    task = TrainingModule(
        network,
        LossWeights.of(options.task, options.target_penalty),
        options.loop,
        optimizer_steps(len(split.train), options.loop),
        target,
        labelled.values,
        asv_vectors_FD,
        config.standard,
        options.speed.chunk_size,
        config.inputs(labelled.covariates),
    )
    folder = output_dir if folds == 1 else output_dir / f"fold-{fold}"
    settings = FitConfig(options, config, folder, runtime, record_fact, fold, folds)
    result = fit_split(settings, task, study, split)
    if not runtime.communicator.ranks.is_main:
        return None
    return _apply_to_held_out(settings, labelled, split, result, asv_vectors_FD)


def fit_target(options: Train, labelled: LabelledStudy, split: Split) -> Target:
    """Build the target, with class weights or transform fitted to the training samples."""
    weights, transform = fit_labels(options, labelled, split)
    column = options.target.metadata_column
    if labelled.classes:
        return Target(column, labelled.classes, weights)
    return Target(
        column,
        transform=transform,
        loss_type=options.loss_type,
        quantiles=tuple(sorted(options.quantiles)) if options.loss_type == "quantile" else (),
        over_penalty=options.over_penalty,
        under_penalty=options.under_penalty,
        range=output_range(options),
        levels=options.target.levels,
    )


def _apply_to_held_out(
    settings: FitConfig,
    labelled: LabelledStudy,
    split: Split,
    result: FitResult,
    asv_vectors_FD: Tensor | None,
) -> FoldResult:
    """Predict the held-out samples of a fold.

    The first fold also writes the embeddings of the study.
    """
    study, config, runtime = labelled.study, settings.config, settings.runtime
    fold, folds, target = settings.fold, settings.folds, settings.config.target
    # From the file: the module has the weights of the last epoch, or shards of them, and the
    # checkpoint those of the chosen one.
    stored = checkpoints.read(result.checkpoint).network
    trained = stored.build(runtime.backends)
    assert isinstance(trained, Predictor) and target is not None
    if asv_vectors_FD is None:
        asv_vectors_FD = encode_asvs(trained.encoder, study, runtime.device)
    plan, batch_size = reading_plan(config.plan), settings.options.loop.batch_samples
    covariates = config.inputs(labelled.covariates)
    part, rows = split.held_out
    how = batch_size, runtime.device, asv_vectors_FD
    predictions = {}
    # The levels of an ordered target are fitted to the validation samples.
    for name in (part, "validation") if target.levels else (part,):
        _, outputs_NC = apply_network(
            trained, study, plan, getattr(split, name), *how, covariates=covariates
        )
        assert outputs_NC is not None
        predictions[name] = target.decode(outputs_NC)
    predictions_NC, labels_N = predictions[part], labelled.values[rows]
    require_finite("predictions", [study.table.sample_ids[row] for row in rows], predictions_NC)
    if fold == 1:
        output_dir = settings.options.run.output_dir
        write_study_embeddings(output_dir, trained, study, plan, batch_size, asv_vectors_FD)
    metrics = target_metrics(target, predictions_NC, labels_N)
    title = f"Fold {fold} of {folds}, {part}" if folds > 1 else part.title()
    info(f"{title}: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    facts = {
        "parameters": sum(p.numel() for p in trained.parameters()),
        "epochs": result.epochs,
        "steps": result.steps,
        "best": result.best | {f"{part}_{name}": value for name, value in metrics.items()},
    }
    network = LoadedNetwork(stored, trained, runtime.device, runtime.attention)
    return FoldResult(target, network, predictions_NC, predictions.get("validation"), facts)


def configure_model(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    target: Target,
) -> ModelConfig:
    """Return the configuration of the model of one split."""
    metric = choose_metric(base, options.phylogeny)
    task = options.task
    if options.freeze_base:
        # A frozen encoder learns nothing from its own tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0, count_penalty=0.0)
    plan = batch_plan(options, task, labelled.study, labelled.depth, metric)
    encoder = None
    if labelled.covariates is not None:
        encoder = fit_encoder(labelled.covariates.take(split.train))
    shape, standard = choose_shape(base, labelled.study, options.model, plan, split.train)
    shape = dataclasses.replace(
        shape,
        outputs=target.outputs,
        profile_features=options.profile_features,
        profile_dropout=options.profile_dropout,
        covariates=covariate_shape(encoder, options.covariates),
    )
    return ModelConfig("train", shape, metric, plan, standard, target, to_plain(options), encoder)


def encode_frozen(
    options: Train, base: PretrainedEncoder, labelled: LabelledStudy, runtime: Runtime
) -> PretrainedEncoder:
    """Add the vectors of the ASVs to a frozen encoder, which all folds have in common."""
    encoder = Encoder(base.config.shape, base.config.metric, runtime.backends)
    strategies.load_model(encoder, base.weights)
    vectors_FD = encode_asvs(encoder, labelled.study, runtime.device, options.vectors)
    return dataclasses.replace(base, asv_vectors_FD=vectors_FD)
