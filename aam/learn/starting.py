"""What a model starts from: a pretrained encoder or fresh weights, and what is fitted first."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from aam.console import say, warn
from aam.learn import checkpoints
from aam.learn.asking import Question
from aam.learn.inference import fit_profile, remember_asvs
from aam.learn.pretraining import shape_of
from aam.learn.recipe import Recipe
from aam.learn.samples import batch_plan, canonical, reading_plan, standardise
from aam.learn.target import Target
from aam.model.attention import Backends
from aam.model.network import Predictor
from aam.options import to_plain
from aam.options.commands import Train
from aam.ranks import portable
from aam.study.splits import Split


@dataclass(frozen=True)
class Base:
    """The pretrained encoder that training starts from."""

    recipe: Recipe
    weights: dict[str, torch.Tensor]


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
        portable.load_model(network.encoder, base.weights)
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
    metric = canonical(options.phylogeny.unifrac_metric)
    if base is not None and base.recipe.metric != metric:
        warn(f"UniFrac metric of the pretrained encoder is kept: {base.recipe.metric}.")
        metric = base.recipe.metric
    task = options.task
    if options.freeze_base:
        # A frozen encoder learns nothing from its own tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0)
    alpha = options.phylogeny.unifrac_alpha
    plan = batch_plan(asked.depth, options.sample, options.loop, task, asked.study, metric, alpha)
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
