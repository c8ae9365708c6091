"""What a model starts from: a pretrained encoder or fresh weights, and what is fitted first."""

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
from aam.training.checkpoint_content import Recipe
from aam.training.inference import fit_profile, remember_asvs
from aam.training.labelled_study import Question
from aam.training.pretrained import Base, choose_metric, choose_shape
from aam.training.sample_selection import batch_plan, reading_plan
from aam.training.target import Target


@dataclass(frozen=True)
class Start:
    """A model before its first step.

    Attributes:
        recipe: what it is.
        network: with the encoder's weights, the training mean and the profile's scale in place.
        remembered_FD: vectors of the study's ASVs if the encoder is frozen.
    """

    recipe: Recipe
    network: Predictor
    remembered_FD: Tensor | None


def start(
    options: Train,
    asked: Question,
    base: Base | None,
    split: Split,
    target: Target,
    device: torch.device,
    backends: Backends,
) -> Start:
    """Build the model of one split."""
    recipe = _recipe(options, asked, base, split, target)
    network = recipe.network(backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Predictor)
    if base is not None:
        state_dict.load_model(network.encoder, base.weights)
    network.start_from(target.guess(asked.values[split.train]))
    fit_profile(network, asked.study, reading_plan(recipe.plan), split.train)
    remembered_FD = None
    if options.freeze_base:
        network.encoder.requires_grad_(False)
        remembered_FD = remember_asvs(network.encoder, asked.study, device)
    return Start(recipe, network, remembered_FD)


def _recipe(
    options: Train, asked: Question, base: Base | None, split: Split, target: Target
) -> Recipe:
    metric = choose_metric(base, options.phylogeny.unifrac_metric)
    task = options.task
    if options.freeze_base:
        # A frozen encoder learns nothing from its own tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0)
    alpha = options.phylogeny.unifrac_alpha
    plan = batch_plan(asked.depth, options.sample, options.loop, task, asked.study, metric, alpha)
    shape, standard = choose_shape(base, asked.study, options.model, plan, split.train)
    shape = dataclasses.replace(
        shape,
        outputs=target.outputs,
        profile_features=options.profile_features,
        profile_dropout=options.profile_dropout,
    )
    return Recipe("train", shape, metric, plan, standard, target, to_plain(options))
