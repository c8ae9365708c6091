"""Batch plan of a run, and the scale of Faith PD in its training samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.study import Metric
from aam.contract.options.training import MaskOptions
from aam.data.batches import BatchPlan
from aam.data.study import Study
from aam.data.unifrac.batch import faith_pd
from aam.inference.model_config import DiversityScale

HIDDEN_RATIO = 0.15
"""Fraction of the abundances that are hidden with --count-penalty."""

_AT_ONCE = 256
"""Samples whose Faith PD is computed together: their tree branches are dense in memory."""


def batch_plan(
    options: Pretrain | Train, task: MaskOptions, study: Study, depth: int, metric: Metric
) -> BatchPlan:
    """Build the batch plan of a run; loss terms whose weight in `task` is 0 are not prepared.

    Args:
        options: options of the run, with its seed and token limit.
        task: weights of the loss terms; those of a frozen encoder are 0.
        study: study of the run; without phylogeny and distances there is no phylogenetic loss.
        depth: rarefaction depth; 0 takes all reads.
        metric: phylogenetic metric of the run.
    """
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
    """Return mean and spread of Faith PD in the training samples, if it is the metric.

    Args:
        study: study with its phylogeny; without one the scale is the identity.
        plan: batch plan, whose metric decides.
        rows: int64 [n], training samples.
    """
    if plan.metric != "faith_pd" or study.phylogeny is None:
        return DiversityScale()
    chunks = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
    parts = [
        faith_pd(study.table.counts[chunk], study.phylogeny, torch.float64) for chunk in chunks
    ]
    values = torch.cat(parts)
    return DiversityScale(float(values.mean()), float(values.std()) or 1.0)
