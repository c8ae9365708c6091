"""Pretrained encoder: weights, shape and scale of Faith PD taken from a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.console import info, warn
from aam.contract.errors import UsageError
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.study import Metric, PhylogenyOptions, SampleOptions
from aam.contract.options.training import MaskOptions, ModelOptions
from aam.data.batches import BatchPlan
from aam.data.study import Study
from aam.data.unifrac import faith_pd
from aam.inference.stored_networks import DiversityScale, ModelConfig, read_networks
from aam.model.shape import NetworkShape

HIDDEN_RATIO = 0.15
"""Fraction of the abundances that are hidden with --count-penalty."""

_AT_ONCE = 256
"""Samples whose Faith PD is computed together: their tree branches are dense in memory."""


def batch_plan(
    options: Pretrain | Train, task: MaskOptions, study: Study, depth: int, metric: Metric
) -> BatchPlan:
    """Build the batch plan of a run; loss terms whose weight in `task` is 0 are not prepared."""
    related = study.phylogeny is not None or study.distances is not None
    return BatchPlan(
        seed=options.loop.seed,
        rarefy_depth=depth,
        token_limit=options.sample.token_limit,
        mask_ratio=task.nuc_mask_ratio if task.nuc_penalty else 0.0,
        metric=metric if related and task.penalty else None,
        alpha=options.phylogeny.unifrac_alpha,
        hidden_ratio=HIDDEN_RATIO if task.count_penalty else 0.0,
    )


def diversity_scale(study: Study, plan: BatchPlan, rows: npt.NDArray[np.int64]) -> DiversityScale:
    """Return mean and spread of Faith PD in the training samples, if it is the metric."""
    if plan.metric != "faith_pd" or study.phylogeny is None:
        return DiversityScale()
    chunks = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
    parts = [faith_pd(study.table.counts[chunk], study.phylogeny) for chunk in chunks]
    values = torch.from_numpy(np.concatenate(parts))
    return DiversityScale(float(values.mean()), float(values.std()) or 1.0)


@dataclass(frozen=True)
class PretrainedEncoder:
    """Configuration and encoder weights of the model of --pretrained-encoder.

    Attributes:
        config: configuration of the model.
        weights: weights of the encoder, by name.
        asv_vectors_FD: vectors of the ASVs of the study; None unless the encoder is frozen.
    """

    config: ModelConfig
    weights: dict[str, Tensor]
    asv_vectors_FD: Tensor | None = None


def read_pretrained_encoder(path: Path | None) -> PretrainedEncoder | None:
    """Read the encoder of a model, of several folds the first; None without a path."""
    if path is None:
        return None
    stored = read_networks(path)[0]
    shape = stored.config.shape
    info(
        f"Pretrained encoder: width {shape.embedding_dim}, {shape.attention_layers} layers, patch "
        f"{shape.nucleotide_patch}, from '{path}'."
    )
    return PretrainedEncoder(stored.config, stored.encoder_weights)


def choose_length(base: PretrainedEncoder | None, options: SampleOptions) -> int | None:
    """Return the longest sequence to keep; None for the longest of the table."""
    if base is not None:
        return base.config.shape.max_bp
    return None if options.max_bp == "auto" else options.max_bp


def choose_metric(base: PretrainedEncoder | None, options: PhylogenyOptions) -> Metric:
    """Return the phylogenetic metric of a run; a pretrained encoder keeps its metric."""
    requested = options.unifrac_metric
    metric: Metric = "unweighted" if requested == "unifrac" else requested  # an alias
    if base is not None and base.config.metric != metric:
        warn(f"UniFrac metric of the pretrained encoder is kept: {base.config.metric}.")
        return base.config.metric
    return metric


def choose_shape(
    base: PretrainedEncoder | None,
    study: Study,
    model: ModelOptions,
    plan: BatchPlan,
    rows: npt.NDArray[np.int64],
) -> tuple[NetworkShape, DiversityScale]:
    """Return the sizes of the encoder, and the scale of Faith PD in its training samples `rows`.

    A pretrained encoder keeps both, except for the dropout.

    Args:
        base: pretrained encoder; None for one that is trained from the beginning.
        study: study of the run, which gives the length of the sequences.
        model: options of the sizes, which a pretrained encoder overrides.
        plan: batch plan of the run.
        rows: int64 [n], training samples.

    Raises:
        UsageError: abundances are to be predicted, but the pretrained encoder has no head for it.
    """
    if base is None:
        sizes = {
            name: getattr(model, name)
            for name in ("embedding_dim", "attention_heads", "attention_layers", "nucleotide_patch")
        }
        length, counts = study.tokens_FL.shape[1], plan.hidden_ratio > 0
        shape = NetworkShape(length, **sizes, dropout=model.dropout, predicts_counts=counts)
        return shape, diversity_scale(study, plan, rows)
    if plan.hidden_ratio and not base.config.shape.predicts_counts:
        raise UsageError(
            "The pretrained encoder cannot predict abundances",
            "it was pretrained without --count-penalty",
            "leave out --count-penalty, or pretrain with it",
        )
    # The heads of the base's target are no part of the encoder; `configure_model` adds those of
    # this run.
    shape = dataclasses.replace(
        base.config.shape,
        dropout=model.dropout,
        outputs=0,
        profile_features=0,
        profile_dropout=NetworkShape.profile_dropout,
        covariates=None,
    )
    return shape, base.config.standard
