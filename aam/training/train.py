"""Training run: from input files to a run folder, with one split or one model for each fold."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from aam.console import info
from aam.contract.errors import Interrupted
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Train
from aam.data.batches import reading_plan
from aam.data.covariates import fit_encoder
from aam.data.metrics import ScoredPredictions
from aam.data.splits import Split, write_splits
from aam.distributed import state_dict
from aam.distributed.communicator import Communicator, identity
from aam.distributed.process_group import process_group
from aam.inference.model_config import ModelConfig, covariate_shape, load_network
from aam.inference.network_outputs import (
    apply_network,
    encode_asvs,
    fit_profile,
    write_study_embeddings,
)
from aam.inference.output_tables import (
    prediction_table,
    quantile_columns,
    write_table,
)
from aam.inference.target import Target
from aam.inference.training_summary import embedding_limit, reference_rows, summarize
from aam.model.network import Encoder, Predictor
from aam.numerics.backend_selection import TORCH_POLICY, BackendPolicy
from aam.training import fit
from aam.training.labelled_study import (
    LabelledStudy,
    fit_target,
    load_labelled_study,
    transformer_folds,
)
from aam.training.pretrained import (
    PretrainedEncoder,
    choose_length,
    choose_metric,
    choose_shape,
    read_pretrained_encoder,
)
from aam.training.run_files import checkpoints, run_folder
from aam.training.runtime import Runtime, check_resources, make_runtime, numbers_of_host
from aam.training.sample_selection import batch_plan
from aam.training.training_module import LossWeights, TrainingModule, score, target_metrics


@dataclass(frozen=True)
class FoldResult:
    """Result of the model of one fold, on its n held-out samples.

    Attributes:
        predictions_NC: in the units of the target, or class probabilities.
        labels_N: numbers in the units of the target, or class codes.
    """

    target: Target
    predictions_NC: npt.NDArray[np.float64]
    labels_N: npt.NDArray[np.float64]
    table: pd.DataFrame
    facts: dict[str, object]


@dataclass(frozen=True)
class HeldOut:
    """Predictions of the held-out samples of all folds.

    Attributes:
        scored: with the labels.
        quantiles: float64 [n] by column, `q_LEVEL`; empty without the quantile loss.
    """

    scored: ScoredPredictions
    quantiles: dict[str, npt.NDArray[np.float64]]


def train(options: Train, policy: BackendPolicy = TORCH_POLICY) -> HeldOut | None:
    """Train one model, or one per fold, and write the run folder.

    Returns:
        The predictions of the held-out samples of all folds; None on ranks other than the first.

    Raises:
        AamError: see the readers and `load_labelled_study`.
    """
    options = dataclasses.replace(options, folds=transformer_folds(options))
    with process_group(options.scale, options.device, options.loop.batch_samples) as communicator:
        results = _train(options, policy, communicator)
    if not results:
        return None
    folds = [str(k) for k, result in enumerate(results, 1) for _ in result.labels_N]
    predictions_NC = np.concatenate([result.predictions_NC for result in results])
    labels_N = np.concatenate([result.labels_N for result in results])
    target = results[0].target
    scored = score(target, predictions_NC, labels_N, folds if len(results) > 1 else ())
    return HeldOut(scored, quantile_columns(target, predictions_NC))


def _train(options: Train, policy: BackendPolicy, communicator: Communicator) -> list[FoldResult]:
    """Read and check the input, and train, as one of the ranks."""
    communicator.require_equal_options(options)
    check_resources(options)
    options = numbers_of_host(options)
    prepared = run_folder.prepare("train", options, communicator)
    base = read_pretrained_encoder(options.pretrained_encoder)
    length, splits = choose_length(base, options.sample), prepared.split_options(options.split)
    labelled = load_labelled_study(options, length, splits)
    if len(labelled.splits) > 1:
        checkpoints.check_folds(options.run)
    for split in labelled.splits:
        fit.check_split(split, options.loop)
        fit_target(options, labelled, split)
    sizes = base.config.shape if base else options.model
    runtime = make_runtime(options, sizes, policy, communicator)
    with run_folder.begin(prepared, communicator, attention=runtime.attention) as record:
        if base is not None and options.freeze_base:
            base = _encode_frozen(options, base, labelled, runtime)
        return _train_folds(options, labelled, base, record, runtime)


def _train_folds(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    record: run_folder.RunRecord,
    runtime: Runtime,
) -> list[FoldResult]:
    """Train the model of each split; a resumed run trains the rest of each.

    A completed fold is only applied to its samples.

    Raises:
        Interrupted: a stop request came after the training of a fold that is not the last.
    """
    folder, splits, communicator = options.run.output_dir, labelled.splits, runtime.communicator
    if communicator.ranks.is_main:
        write_splits(
            folder / "splits.tsv", labelled.study.table.sample_ids, splits, labelled.labels
        )
    results = []
    with runtime.stop.handled():
        for fold, split in enumerate(splits, start=1):
            result = train_fold(options, labelled, base, split, fold, record, runtime)
            if result is not None:
                results.append(result)
            if fold < len(splits) and communicator.any_rank(runtime.stop.pending):
                raise Interrupted(
                    f"Stopped after fold {fold} of {len(splits)}{runtime.stop.by_signal}",
                    f"the checkpoints in '{folder}' are complete",
                    "go on with --resume-from auto",
                )
    if not results:
        return []
    predictions = pd.concat([result.table for result in results], ignore_index=True)
    write_table(folder / "predictions.tsv", predictions)
    folds = [result.facts for result in results]
    record.finish(**labelled.facts, folds=folds, **results[0].facts)
    info(f"Model: {folder}")
    return results


def train_fold(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    fold: int,
    record: run_folder.RunRecord,
    runtime: Runtime,
) -> FoldResult | None:
    """Train the model of one split and apply it to its held-out samples.

    Only the first rank applies the model; the others return None.
    """
    study, folds, output_dir = labelled.study, len(labelled.splits), options.run.output_dir
    torch.manual_seed(options.loop.seed + fold - 1)
    target = fit_target(options, labelled, split)
    config = configure_model(options, labelled, base, split, target)
    network = _initialize(options, config, labelled, base, split, runtime)
    asv_vectors_FD = None if base is None else base.asv_vectors_FD
    runtime.communicator.require_equal_data(
        study=identity(study), values=labelled.values, split=split, weights=network.state_dict()
    )
    task = TrainingModule(
        network,
        LossWeights.of(options.task, options.target_penalty),
        options.loop,
        fit.optimizer_steps(len(split.train), options.loop),
        target,
        labelled.values,
        asv_vectors_FD,
        config.standard,
        options.speed.chunk_size,
        config.inputs(labelled.covariates),
    )
    folder = output_dir if folds == 1 else output_dir / f"fold-{fold}"
    settings = fit.FitConfig(options, config, folder, runtime, record.note, fold, folds)
    result = fit.fit_split(settings, task, study, split)
    if not runtime.communicator.ranks.is_main:
        return None
    return _apply_to_held_out(settings, labelled, split, result, asv_vectors_FD)


def _apply_to_held_out(
    settings: fit.FitConfig,
    labelled: LabelledStudy,
    split: Split,
    result: fit.FitResult,
    asv_vectors_FD: Tensor | None,
) -> FoldResult:
    """Predict the held-out samples of a fold, and add the training summary to its checkpoint.

    The first fold also writes the embeddings of the study.

    Args:
        settings: of the fit.
        labelled: the study.
        split: of the fold.
        result: of the fit.
        asv_vectors_FD: vectors of the ASVs by a frozen encoder; None if it was trained.
    """
    study, config, runtime = labelled.study, settings.config, settings.runtime
    fold, folds, target = settings.fold, settings.folds, settings.config.target
    trained = load_network(*checkpoints.read(result.checkpoint), runtime.backends)
    assert isinstance(trained, Predictor) and target is not None
    if asv_vectors_FD is None:
        asv_vectors_FD = encode_asvs(trained.encoder, study, runtime.device)
    plan, batch_size = reading_plan(config.plan), settings.options.loop.batch_samples
    covariates = config.inputs(labelled.covariates)
    device, reference = runtime.device, reference_rows(split.train, plan.seed)
    known = apply_network(
        trained.encoder, study, plan, reference, batch_size, device, asv_vectors_FD
    )
    limit = embedding_limit(known.embeddings_ND)
    checkpoints.add_training_summary(
        result.checkpoint, summarize(study, split, plan, reference, known.embeddings_ND, limit)
    )
    part, rows = split.held_out
    output = apply_network(
        trained, study, plan, rows, batch_size, device, asv_vectors_FD, covariates=covariates
    )
    assert output.outputs_NC is not None
    predictions_NC, labels_N = target.decode(output.outputs_NC), labelled.values[rows]
    ids = [study.table.sample_ids[row] for row in rows]
    table = prediction_table(target, ids, predictions_NC, labels_N)
    table.insert(1, "fold", fold)
    table.insert(2, "split", part)
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
    return FoldResult(target, predictions_NC, labels_N, table, facts)


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


def _initialize(
    options: Train,
    config: ModelConfig,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    runtime: Runtime,
) -> Predictor:
    """Return the network before its first step.

    It has the weights of a pretrained encoder, the best constant outputs, and the scale of
    the training samples' profiles.
    """
    network = config.network(runtime.backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Predictor) and config.target is not None
    if base is not None:
        state_dict.load_model(network.encoder, base.weights)
    network.start_from(config.target.initial_outputs(labelled.values[split.train]))
    fit_profile(network, labelled.study, reading_plan(config.plan), split.train)
    if options.freeze_base:
        network.encoder.requires_grad_(False)
    return network


def _encode_frozen(
    options: Train, base: PretrainedEncoder, labelled: LabelledStudy, runtime: Runtime
) -> PretrainedEncoder:
    """Add the vectors of the ASVs to a frozen encoder, which all folds have in common."""
    encoder = Encoder(base.config.shape, base.config.metric, runtime.backends)
    state_dict.load_model(encoder, base.weights)
    vectors_FD = encode_asvs(encoder, labelled.study, runtime.device, options.vectors)
    return dataclasses.replace(base, asv_vectors_FD=vectors_FD)
