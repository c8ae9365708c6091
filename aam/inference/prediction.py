"""Application of the networks of a model to samples: one network, or one for each fold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.console import warn
from aam.contract.errors import DataError, first_few
from aam.contract.options.device import DeviceOptions
from aam.contract.options.study import AsvVectorOptions, TableOptions
from aam.data.batches import reading_plan
from aam.data.covariates import Covariates
from aam.data.study import Study, load_study
from aam.inference.asv_vectors import digest
from aam.inference.model_config import ModelConfig
from aam.inference.network_outputs import NetworkOutput, apply_network, encode_asvs
from aam.inference.settings import NO_VECTORS, InferenceSettings
from aam.inference.stored_networks import StoredNetwork
from aam.model.network import Encoder, Predictor
from aam.numerics.backend_selection import TORCH_POLICY, BackendPolicy, choose_attention
from aam.numerics.device import choose_device


@dataclass(frozen=True)
class LoadedNetwork:
    """A network with its weights and configuration.

    Attributes:
        stored: its configuration and weights.
        network: network with its weights, in any mode.
        device: device that computes.
        attention: entry of the run record about attention (`aam.numerics.backend_selection`).
    """

    stored: StoredNetwork
    network: Encoder | Predictor
    device: torch.device
    attention: dict[str, Any]

    @property
    def config(self) -> ModelConfig:
        """Configuration of the network."""
        return self.stored.config


def build_networks(
    stored: Sequence[StoredNetwork], device: DeviceOptions, policy: BackendPolicy = TORCH_POLICY
) -> list[LoadedNetwork]:
    """Build the networks of a model.

    Args:
        stored: configurations and weights, of one fold each.
        device: requested device and attention backend.
        policy: attention backends to choose from, and how they are checked.

    Raises:
        DataError: the networks have different shapes or targets.
        Unavailable: no attention backend computes correctly, or the GPU does not work.
    """
    first = _output_signature(stored[0].config)
    if any(_output_signature(network.config) != first for network in stored):
        evidence = f"{len(stored)} networks have different shapes or targets"
        raise DataError("The networks are of different runs", evidence, "train again")
    chosen_device = choose_device(device)
    chosen = choose_attention(device, chosen_device, stored[0].config.shape, policy)
    return [
        LoadedNetwork(network, network.build(chosen.backends), chosen_device, chosen.record)
        for network in stored
    ]


def _output_signature(config: ModelConfig) -> tuple[object, ...]:
    """Return the facts that networks must have in common for a mean of their predictions."""
    target = config.target
    # Categories differ: one that too few training samples of a fold have is unknown in that fold.
    columns = config.covariates and config.covariates.columns
    shape = dataclasses.replace(config.shape, covariates=None)
    outputs = target and (target.column, target.classes, target.quantiles, target.levels)
    return shape, columns, outputs


def load_samples(input: TableOptions, config: ModelConfig) -> Study:
    """Read a table for a network; samples below the rarefaction depth are kept and named."""
    study = load_study(input, max_bp=config.shape.max_bp)
    warn_of_shallow(study, config)
    return study


def warn_of_shallow(study: Study, config: ModelConfig) -> None:
    """Name the samples that have fewer reads than a network draws."""
    if below := study.shallow(config.plan.rarefy_depth):
        warn(
            f"Samples with fewer than the model's {config.plan.rarefy_depth} reads are read whole: "
            f"{first_few(below)}."
        )


def encode_for_networks(
    networks: Sequence[LoadedNetwork], study: Study, vectors: AsvVectorOptions = NO_VECTORS
) -> Iterator[Tensor]:
    """Yield the vectors [F, D] of all ASVs of a study for each network, see `encode_asvs`.

    Networks that follow each other share them where their weights are equal, as those of the folds
    of a run with a frozen encoder are.
    """
    last, vectors_FD = None, torch.empty(0)
    for loaded in networks:
        encoder = loaded.network.encoder
        if (weights := digest(encoder.nucleotides)) != last:
            last, vectors_FD = weights, encode_asvs(encoder, study, loaded.device, vectors)
        yield vectors_FD


def apply_to_study(
    loaded: LoadedNetwork,
    study: Study,
    settings: InferenceSettings,
    asv_vectors_FD: Tensor,
    covariates: Covariates | None = None,
) -> list[NetworkOutput]:
    """Apply a network to every sample of a study, once per rarefaction.

    Args:
        loaded: network on its device.
        study: N samples with F ASVs.
        settings: batch size and number of rarefactions.
        asv_vectors_FD: vectors of the ASVs, see `encode_for_networks`.
        covariates: metadata of the samples; None where the network reads none.

    Returns:
        The outputs of each rarefaction.
    """
    rows = np.arange(len(study.table.sample_ids))
    plan, inputs = reading_plan(loaded.config.plan), loaded.config.inputs(covariates)
    how = settings.batch_size, loaded.device, asv_vectors_FD
    return [
        apply_network(loaded.network, study, plan, rows, *how, k, inputs)
        for k in range(settings.passes)
    ]


def embed(
    loaded: LoadedNetwork, study: Study, settings: InferenceSettings
) -> npt.NDArray[np.float32]:
    """Return the embedding of every sample, float32 [N, D].

    The encoder alone is applied: no target is computed, and no covariate is read.
    """
    encoder = dataclasses.replace(loaded, network=loaded.network.encoder)
    asv_vectors_FD = encode_asvs(encoder.network.encoder, study, loaded.device, settings.vectors)
    one_pass = dataclasses.replace(settings, passes=1)
    (output,) = apply_to_study(encoder, study, one_pass, asv_vectors_FD)
    return output.embeddings_ND
