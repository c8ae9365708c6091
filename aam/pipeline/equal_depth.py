"""Score at equal depth: the held-out score of a model whose samples all have the same reads.

Where the sequencing depth alone predicts the target, a model may read how many ASVs a sample has.
Rarefied to one depth, samples no longer differ in it. Kernel and forest are fitted to rarefied
samples; a transformer reads rarefied samples in any case, so its predictions stay.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import sparse

from aam.arrays import Rows
from aam.contract.options.groups import MEMBERS
from aam.data.table import auto_depth, rarefy
from aam.evaluation.intervals import TITLES
from aam.evaluation.scores import EqualDepthScore
from aam.evaluation.splits import Split
from aam.members.member import CrossValidated, TrainingSamples, combine_results, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.number_format import fixed
from aam.pipeline.cross_validation import Result
from aam.pipeline.labelled_study import LabelledStudy


def score_at_equal_depth(
    labelled: LabelledStudy, result: Result, confounder: bool
) -> EqualDepthScore | None:
    """Score the model on rarefied samples, and on the same samples with all reads.

    The depth is chosen as by --rarefy-depth auto; shallower samples are left out of both scores.
    None if all members read rarefied samples already, or too few samples reach the depth.
    """
    depth = labelled.depth or auto_depth(labelled.study.reads)
    estimators = [name for name in result.members if not MEMBERS[name].network]
    rows = np.flatnonzero(labelled.study.reads >= depth)
    splits = [_kept(split, rows) for split in result.folds.splits]
    if not estimators or any(
        not len(split.train) or not len(split.held_out[1]) for split in splits
    ):
        return None
    folds = dataclasses.replace(
        result.folds, labels=result.folds.labels.take(rows), splits=tuple(splits)
    )
    samples = _rarefied(result.samples.samples.take(rows), depth, folds.seed)
    scored_M = np.isin(result.folds.rows_M, rows)
    members: dict[str, CrossValidated] = {}
    for name, member in result.members.items():
        if name in estimators:
            members[name] = estimator(name).cross_validate(
                samples, folds, False, "equal depth", len(result.members) > 1
            )
        else:
            left_out = tuple(
                each_NC if each_NC is None else each_NC[np.isin(fitted, rows)]
                for each_NC, fitted in zip(member.left_out, result.folds.fitted_rows, strict=False)
            )
            scored_MC = member.predictions_MC[scored_M]
            members[name] = dataclasses.replace(member, predictions_MC=scored_MC, left_out=left_out)
    equal = folds.resampled(combine_results(members, folds).predictions_MC)
    metric, score = next(iter(equal.score().items()))
    plain = folds.resampled(result.combined.predictions_MC[scored_M]).values[metric]
    if score.value is None or math.isnan(plain):
        return None
    ahead = equal.paired_difference(folds.resampled(folds.baseline_MC))[1]
    better = ahead.excludes_zero and ahead.value is not None and ahead.value > 0
    claim = "" if better else ", not shown to be better than the baseline"
    scored = len(equal.scored.first.actual)
    text = (
        f"On tables of equal depth ({depth} reads, {scored} samples) the model has "
        f"{TITLES[metric]} {score.text()}{claim}; on all reads of these samples "
        f"{fixed(plain, score.digits)}"
    )
    return EqualDepthScore(
        text, confounder, depth, scored, metric, plain, score.value, score.lower, score.upper,
        better,
    )  # fmt: skip


def _kept(split: Split, rows: Rows) -> Split:
    """Return the samples of a split that are among `rows`, by their place there."""
    all_rows = (split.train, split.validation, split.test)
    train, validation, test = (np.flatnonzero(np.isin(rows, part_rows)) for part_rows in all_rows)
    return Split(train, validation, test, split.repeat)


def _rarefied(samples: Samples, depth: int, seed: int) -> TrainingSamples:
    """Draw `depth` reads of each sample, without ASVs that have none then."""
    counts = samples.counts.copy()
    for row, name in enumerate(samples.sample_ids):
        nonzeros = slice(counts.indptr[row], counts.indptr[row + 1])
        counts.data[nonzeros] = rarefy(counts.data[nonzeros], depth, name, seed, draw=0)
    counts.eliminate_zeros()
    present, _ = dataclasses.replace(samples, counts=sparse.csr_array(counts)).present
    return TrainingSamples(present, AsvRelations(present.tokens_FL))
