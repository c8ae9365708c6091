"""Scores of a run: the ensemble's, by input, adjusted, at equal depth, by training size, by study.

Where the sequencing depth predicts the target by itself, a model may read how many ASVs a sample
has. Samples that are rarefied to equal depth no longer differ in it: kernel and forest are fitted
to them once more. A transformer reads rarefied samples in any case, so its predictions stay.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from aam.arrays import F64, Rows
from aam.console import later_step
from aam.contract.errors import DataError
from aam.contract.options.groups import KERNEL, MEMBERS, default_members
from aam.data.covariates import Covariates
from aam.data.table import auto_depth, rarefy
from aam.evaluation.confounding import DEPTH, confounders
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import COMPARED, TITLES
from aam.evaluation.learning_curve import learning_curve
from aam.evaluation.permutation import EXACT_KERNEL, permutation_test
from aam.evaluation.scores import (
    EqualDepthScore,
    InputScores,
    PairedDifference,
    RepeatedScore,
    Scores,
    evaluate,
)
from aam.evaluation.splits import FOLDS, Split, make_splits
from aam.evaluation.study_transfer import study_differences, transfer_matrix
from aam.members.member import TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.number_format import fixed
from aam.pipeline.cross_validation import Result, ensemble_predictions
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.plan import TrainingPlan
from aam.pipeline.preview import Leaks
from aam.pipeline.repeated_samples import RepeatedSamples

_BOTH = "metadata and counts"


def scores_of_run(planned: TrainingPlan, result: Result, leaks: Leaks, equal_depth: bool) -> Scores:
    """Score the held-out predictions of a run; a score that fails costs no other.

    `equal_depth` requests the score at equal depth; a confounding depth also does.
    """
    labelled, folds, column = planned.study, planned.folds, planned.study.column
    predictions_MC, kernel = result.combined.predictions_MC, result.members.get(KERNEL)
    seconds = {name: member.cpu_seconds for name, member in result.members.items()}
    test, grouped = permutation_test(folds, predictions_MC), None
    if leaks.repeated is not None:
        ungrouped_MC = None if kernel is None else kernel.predictions_MC
        grouped = _score_with_groups(planned, result.samples, leaks.repeated, ungrouped_MC)
    scores = evaluate(column, folds, result.combined, seconds, test, grouped, leaks.divided_studies)
    fields: dict[str, Any] = {}
    if result.by_input and labelled.covariates is not None:
        predictions_of = {**result.by_input, _BOTH: predictions_MC}
        with later_step("comparison of metadata and counts"):
            names = labelled.covariates.columns
            fields["inputs"] = compare_inputs(names, predictions_of, _BOTH, folds, scores.is_better)
    if labelled.adjustment is not None:
        with later_step("score beyond the columns of --adjust-for"):
            fields["beyond"] = _beyond(labelled.adjustment, result)
    # A column that predicts as well as the ensemble may be what the ensemble learnt. The depth can
    # be ruled out: samples of equal depth are scored.
    with later_step("scores of the metadata columns"):
        fields["confounders"] = confounders(leaks.associations, folds, predictions_MC)
    confounded = any(column.column == DEPTH for column in fields.get("confounders", ()))
    if equal_depth or confounded:
        with later_step("score at equal depth"):
            fields["equal_depth"] = _score_at_equal_depth(labelled, result, confounded)
    if len(labelled.values) <= EXACT_KERNEL:
        # A network takes too long to be fitted once more for each study and each training size.
        refitted = [name for name in result.members if not MEMBERS[name].network]
        name = KERNEL if kernel is not None else next(iter(refitted), KERNEL)

        def predict(smaller: Folds, title: str) -> F64:
            member = estimator(name)
            return member.cross_validate(result.samples, smaller, False, title).predictions_MC

        if kernel is not None:
            with later_step("learning curve"):
                curve = learning_curve(KERNEL, predict, folds, kernel.predictions_MC)
                fields["learning_curve"] = curve
        # How well each study can be told from the others, and predicts another study.
        if folds.study_column is not None:
            with later_step("comparison of the studies"):
                fields["study_differences"] = study_differences(name, predict, folds, column)
                if refitted:
                    left_out_MC = result.members[name].predictions_MC
                    fields["transfer"] = transfer_matrix(name, predict, folds, left_out_MC)
    return dataclasses.replace(scores, **fields)


def _beyond(adjustment: Covariates, result: Result) -> PairedDifference:
    """Compare estimators of counts and --adjust-for columns with estimators of these columns."""
    counts, folds = result.samples.samples, result.folds
    adjusted = dataclasses.replace(counts, covariates=adjustment)
    samples = TrainingSamples(adjusted, result.samples.relations)
    names = [name for name in result.members if not MEMBERS[name].network] or default_members()
    columns = ", ".join(adjustment.columns)
    step = f"counts with {columns}", f"{columns} alone"
    scored, alone = (
        folds.resampled(ensemble_predictions(names, inputs, folds, name))
        for name, inputs in zip(step, (samples, samples.metadata_alone), strict=True)
    )
    model, reference = f"The model of {step[0]}", f"the model of {step[1]}"
    return PairedDifference.of(model, reference, *scored.paired_difference(alone), folds.units)


def _score_at_equal_depth(
    labelled: LabelledStudy, result: Result, confounder: bool
) -> EqualDepthScore | None:
    """Score the model on rarefied samples, and on the same samples with all reads.

    The depth is chosen as by --rarefy-depth auto; shallower samples are left out of both scores.
    None if all members read rarefied samples already, or too few samples reach the depth.
    """
    depth = labelled.depth or auto_depth(labelled.study.reads)
    estimators = [name for name in result.members if not MEMBERS[name].network]
    rows = np.flatnonzero(labelled.study.reads >= depth)
    splits = tuple(_split_of(rows, split) for split in result.folds.splits)
    if not estimators or not all(len(s.train) and len(s.held_out[1]) for s in splits):
        return None
    folds = dataclasses.replace(result.folds, labels=result.folds.labels.take(rows), splits=splits)
    samples = rarefied(result.samples.samples.take(rows), depth, folds.seed)
    scored_M = np.isin(result.folds.rows_M, rows)
    networks = {}
    for name, member in result.members.items():
        if name not in estimators:
            left_out = tuple(
                left_NC if left_NC is None else left_NC[np.isin(fitted, rows)]
                for left_NC, fitted in zip(member.left_out, result.folds.fitted_rows, strict=False)
            )
            scored_MC = member.predictions_MC[scored_M]
            networks[name] = dataclasses.replace(
                member, predictions_MC=scored_MC, left_out=left_out
            )
    predictions_MC = ensemble_predictions(estimators, samples, folds, "equal depth", networks)
    equal = folds.resampled(predictions_MC)
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


def _split_of(rows: Rows, split: Split) -> Split:
    """Return the samples of a split that are among `rows`, as positions in `rows`."""
    in_split = split.train, split.validation, split.test
    train, validation, test = (np.flatnonzero(np.isin(rows, samples)) for samples in in_split)
    return Split(train, validation, test, split.repeat)


def rarefied(samples: Samples, depth: int, seed: int) -> TrainingSamples:
    """Draw `depth` reads of each sample, and leave out ASVs without reads."""
    counts = samples.counts.copy()
    for row, name in enumerate(samples.sample_ids):
        nonzeros = slice(counts.indptr[row], counts.indptr[row + 1])
        counts.data[nonzeros] = rarefy(counts.data[nonzeros], depth, name, seed, draw=0)
    counts.eliminate_zeros()
    present, _ = dataclasses.replace(samples, counts=sparse.csr_array(counts)).present
    return TrainingSamples(present, AsvRelations(present.tokens_FL))


def _score_with_groups(
    plan: TrainingPlan,
    samples: TrainingSamples,
    repeated: RepeatedSamples,
    ungrouped_MC: F64 | None,
) -> RepeatedScore | None:
    """Return the kernel's score with and without the subjects kept together, if possible.

    `ungrouped_MC` are its predictions without, if it is a member.
    """
    kernel, folds = estimator(KERNEL), plan.folds
    groups_N = np.unique(repeated.labels, return_inverse=True)[1]
    number = len(folds.first.splits) if len(folds.splits) > 1 else FOLDS
    try:
        splits = make_splits(
            len(groups_N), test_size=0, folds=min(number, int(groups_N.max()) + 1),
            seed=folds.seed, groups=repeated.labels, classes=plan.study.strata,
        )  # fmt: skip
        labels = dataclasses.replace(folds.labels, groups=groups_N, studies=None)
        apart = Folds(labels, splits, folds.seed, repeated.column, scale=folds.scale)
        grouped_MC = kernel.cross_validate(samples, apart, False, "groups").predictions_MC
    except DataError:  # fewer subjects than folds, or a class of one subject
        return None
    if ungrouped_MC is None:
        ungrouped_MC = kernel.cross_validate(samples, folds, False, "split").predictions_MC
    metric, function = COMPARED[folds.labels.type]
    value = folds.scored(ungrouped_MC).value(function)
    apart_scores = apart.resampled(grouped_MC)
    grouped = apart_scores.values[metric]
    if np.isnan(value) or np.isnan(grouped):
        return None
    ahead = apart_scores.paired_difference(apart.resampled(apart.baseline_MC))[1]
    return RepeatedScore(
        column=repeated.column,
        groups=repeated.groups,
        metric=metric,
        given=value,
        grouped=grouped,
        lower=ahead.lower,
        upper=ahead.upper,
        better=ahead.lower is not None and ahead.lower > 0,
        sentence=(
            f"With each '{repeated.column}' in training or test alone, the kernel has "
            f"{TITLES[metric]} {grouped:.3f} instead of {value:.3f}: add --group-column "
            f"{shlex.quote(repeated.column)}"
        ),
    )


def compare_inputs(
    columns: Sequence[str], predictions: Mapping[str, F64], joint: str, folds: Folds, better: bool
) -> InputScores:
    """Compare the model of metadata and microbiome (`joint`) with the models of one of them.

    `better` states whether the joint model is shown to be better than the baseline.
    """
    resampled = {name: folds.resampled(predicted_MC) for name, predicted_MC in predictions.items()}
    differences = [
        PairedDifference.of(joint, name, *resampled[joint].paired_difference(metrics), folds.units)
        for name, metrics in resampled.items()
        if name != joint
    ]
    counts_add, metadata_add = (better and difference.is_ahead for difference in differences)
    conclusion = (
        "The microbiome improves on the metadata alone. "
        if counts_add
        else "The microbiome does not significantly improve on the metadata alone: these scores "
        "are no evidence of a signal in the microbiome. "
    ) + (
        "The metadata improve on the microbiome alone."
        if metadata_add
        else "The metadata do not significantly improve on the microbiome alone."
    )
    if not better:
        conclusion = (
            "Metadata and microbiome together are not shown to be better than the baseline."
        )
    models = {name: model.score() for name, model in resampled.items()}
    return InputScores(list(columns), models, differences, conclusion, counts_add)
