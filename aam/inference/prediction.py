"""Prediction for new samples from checkpoints: one model, or one per fold of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.console import info, warn
from aam.contract.errors import DataError, first_few
from aam.contract.options.device import DeviceOptions
from aam.contract.options.study import AsvVectorOptions, TableOptions
from aam.data.batches import reading_plan
from aam.data.covariates import Covariates
from aam.data.study import Study, load_study
from aam.inference.asv_vectors import NO_VECTORS, digest
from aam.inference.model_config import ModelConfig, load_network
from aam.inference.network_outputs import (
    NetworkOutput,
    apply_network,
    encode_asvs,
)
from aam.inference.training_summary import TrainingSummary
from aam.model.network import Encoder, Predictor
from aam.numerics.backend_selection import TORCH_POLICY, BackendPolicy, choose_attention
from aam.numerics.device import choose_device


@dataclass(frozen=True)
class LoadedModel:
    """A network with its weights and configuration.

    Attributes:
        config: of the model.
        network: with its weights.
        attention: entry of the run record about attention (`aam.numerics.backend_selection`).
        training: summary of its training samples; None in checkpoints of runs that have not ended.
    """

    config: ModelConfig
    network: Encoder | Predictor
    attention: dict[str, Any]
    training: TrainingSummary | None


@dataclass(frozen=True)
class InferenceSettings:
    """How models are applied to samples.

    Attributes:
        batch_size: samples at a time; the outputs depend on it by rounding alone.
        device: that computes.
        passes: number of rarefactions.
        vectors: folder of ASV vectors, see `encode_asvs`.
    """

    batch_size: int
    device: torch.device
    passes: int = 1
    vectors: AsvVectorOptions = NO_VECTORS


@dataclass(frozen=True)
class Predictions:
    """Predictions of N samples.

    Attributes:
        values_MNC: float64, of M models and passes, in the units of the target or as probabilities.
        distances_N: float64, distance of each sample from the training samples, relative to the
            limit, mean of the models; None if a model has no training summary.
    """

    values_MNC: npt.NDArray[np.float64]
    distances_N: npt.NDArray[np.float64] | None


def build_models(
    read: Sequence[tuple[ModelConfig, dict[str, Any]]],
    files: Sequence[Path],
    device: DeviceOptions,
    policy: BackendPolicy = TORCH_POLICY,
) -> list[LoadedModel]:
    """Build the networks of validated checkpoints, one for each fold; `files` are named in errors.

    Raises:
        DataError: the folds differ.
    """
    first = read[0][0]
    for file, (config, _) in zip(files, read, strict=True):
        if _output_signature(config) != _output_signature(first):
            raise DataError(
                "The folds are of different runs",
                f"'{file}' and '{files[0]}' have different shapes or targets",
                "name one checkpoint, or train all folds again",
            )
    chosen = choose_attention(device, choose_device(device), first.shape, policy)
    return [
        LoadedModel(
            config,
            load_network(config, content, chosen.backends),
            chosen.record,
            content["training"],
        )
        for config, content in read
    ]


def _output_signature(config: ModelConfig) -> tuple[object, ...]:
    """Return the facts that models must have in common for a mean of their predictions."""
    target = config.target
    # Categories that too few training samples of a fold have are unknown there.
    columns = config.covariates and config.covariates.columns
    shape = dataclasses.replace(config.shape, covariates=None)
    return (
        shape,
        columns,
        target
        and (
            target.column,
            target.classes,
            target.quantiles,
            target.levels,
        ),
    )


def load_samples(input: TableOptions, config: ModelConfig) -> Study:
    """Read the table to predict; samples below the rarefaction depth are kept and named."""
    study = load_study(input, max_bp=config.shape.max_bp)
    if below := study.shallow(config.plan.rarefy_depth):
        warn(
            f"Samples with fewer than the model's {config.plan.rarefy_depth} reads are read whole: "
            f"{first_few(below)}."
        )
    return study


def encode_for_models(
    models: Sequence[LoadedModel],
    study: Study,
    device: torch.device,
    vectors: AsvVectorOptions = NO_VECTORS,
) -> Iterator[Tensor]:
    """Yield the vectors [F, D] of all ASVs of a study for each model, see `encode_asvs`.

    Models that follow each other share them where their weights are equal, as those of the folds of
    a run with a frozen encoder are.
    """
    last, vectors_FD = None, torch.empty(0)
    for model in models:
        encoder = model.network.encoder
        if (weights := digest(encoder.nucleotides)) != last:
            last, vectors_FD = weights, encode_asvs(encoder, study, device, vectors)
        yield vectors_FD


def apply_model(
    model: LoadedModel,
    study: Study,
    settings: InferenceSettings,
    asv_vectors_FD: Tensor,
    covariates: Covariates | None = None,
) -> list[NetworkOutput]:
    """Apply a model to every sample of a study, once per rarefaction."""
    size, device = settings.batch_size, settings.device
    rows = np.arange(len(study.table.sample_ids))
    plan = reading_plan(model.config.plan)
    inputs = model.config.inputs(covariates)
    return [
        apply_network(model.network, study, plan, rows, size, device, asv_vectors_FD, k, inputs)
        for k in range(settings.passes)
    ]


def embed(model: LoadedModel, study: Study, settings: InferenceSettings) -> npt.NDArray[np.float32]:
    """Return the embedding of every sample, float32 [N, D].

    The encoder alone is applied: no target is computed, and no covariate is read.
    """
    encoder = dataclasses.replace(model, network=model.network.encoder)
    asv_vectors_FD = encode_asvs(model.network.encoder, study, settings.device, settings.vectors)
    (output,) = apply_model(encoder, study, settings, asv_vectors_FD)
    return output.embeddings_ND


def predict(
    models: Sequence[LoadedModel],
    study: Study,
    settings: InferenceSettings,
    covariates: Covariates | None = None,
) -> Predictions:
    """Predict the target of every sample of a study with each model.

    `covariates` are those of models that read metadata, see `ModelConfig.covariates`.

    Raises:
        DataError: a model was pretrained only and has no target.
    """
    values, distances = [], []
    encoded = encode_for_models(models, study, settings.device, settings.vectors)
    for model, asv_vectors_FD in zip(models, encoded, strict=True):
        target = model.config.target
        if target is None:
            raise DataError(
                "The model has no target", "it was only pretrained", "use `aam train` first"
            )
        outputs = apply_model(model, study, settings, asv_vectors_FD, covariates)
        for output in outputs:
            assert output.outputs_NC is not None
            values.append(target.decode(output.outputs_NC))
        if model.training is not None:
            distances.append(model.training.distances(outputs[0].embeddings_ND))
    if len(models) > 1:
        info(f"Predictions are the mean of {len(models)} models, one of each fold.")
    compared = np.mean(distances, axis=0) if len(distances) == len(models) else None
    return Predictions(np.stack(values), compared)
