"""Initialization of a predictor: pretrained encoder or new weights, output bias, profile scale."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from aam.contract.options import to_plain
from aam.contract.options.commands import Train
from aam.data.splits import Split
from aam.distributed import state_dict
from aam.model.attention import Backends
from aam.model.network import Predictor
from aam.training.inference import encode_asvs, fit_profile
from aam.training.labelled_study import LabelledStudy
from aam.training.model_config import ModelConfig
from aam.training.pretrained import PretrainedEncoder, choose_metric, choose_shape
from aam.training.sample_selection import batch_plan, reading_plan
from aam.training.target import Target


@dataclass(frozen=True)
class InitialModel:
    """A model before its first training step.

    Attributes:
        config: of the model.
        network: with the weights of the encoder, the initial outputs and the scale of the profile.
        asv_vectors_FD: vectors of the study's ASVs if the encoder is frozen.
    """

    config: ModelConfig
    network: Predictor
    asv_vectors_FD: Tensor | None


def initialize(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    target: Target,
    device: torch.device,
    backends: Backends,
) -> InitialModel:
    """Build and initialize the model of one split."""
    config = _model_config(options, labelled, base, split, target)
    network = config.network(backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Predictor)
    if base is not None:
        state_dict.load_model(network.encoder, base.weights)
    network.start_from(target.initial_outputs(labelled.values[split.train]))
    fit_profile(network, labelled.study, reading_plan(config.plan), split.train)
    asv_vectors_FD = None
    if options.freeze_base:
        network.encoder.requires_grad_(False)
        asv_vectors_FD = encode_asvs(network.encoder, labelled.study, device)
    return InitialModel(config, network, asv_vectors_FD)


def _model_config(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    target: Target,
) -> ModelConfig:
    metric = choose_metric(base, options.phylogeny.unifrac_metric)
    task = options.task
    if options.freeze_base:
        # A frozen encoder learns nothing from its own tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0)
    alpha = options.phylogeny.unifrac_alpha
    plan = batch_plan(
        labelled.depth, options.sample, options.loop, task, labelled.study, metric, alpha
    )
    shape, standard = choose_shape(base, labelled.study, options.model, plan, split.train)
    shape = dataclasses.replace(
        shape,
        outputs=target.outputs,
        profile_features=options.profile_features,
        profile_dropout=options.profile_dropout,
    )
    return ModelConfig("train", shape, metric, plan, standard, target, to_plain(options))
