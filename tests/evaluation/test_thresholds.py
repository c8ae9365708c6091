"""Scores of two classes at a threshold: 0.5, and one chosen in the training parts of the folds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from aam.evaluation.ensemble import Combined, choose_threshold, combine_members, score_thresholds
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.members.member import TrainingSamples, estimator
from aam.pipeline.cross_validation import combine_results
from benchmarks.random_labels import study
from benchmarks.thresholds import coverage

FOREST = replace(estimator("forest"), n_estimators=60)


def combined_forest(samples: TrainingSamples, folds: Folds) -> Combined:
    member = FOREST.cross_validate(samples, folds, weighed=True)
    return combine_results({"forest": member}, folds)


def positive(combined: Combined, folds: Folds, fold: int) -> list[bool]:
    chances_M = combined.predictions_MC[folds.fold_M == fold, 1]
    threshold = combined.thresholds[fold - 1]
    assert threshold is not None
    return (chances_M >= threshold).tolist()


def test_a_threshold_never_sees_the_held_out_samples_of_its_fold() -> None:
    """Other labels of the held-out samples of a fold change no decision in this fold."""
    samples, folds = study(np.random.default_rng(0), "two", False, 2.0)
    values_N = folds.labels.values.copy()
    held_out = folds.splits[0].held_out[1]
    values_N[held_out] = 1 - values_N[held_out]
    flipped = replace(folds, labels=replace(folds.labels, values=values_N))
    before, after = (combined_forest(samples, one) for one in (folds, flipped))
    assert positive(before, folds, 1) == positive(after, folds, 1)
    assert 0 < sum(positive(before, folds, 1)) < len(held_out)
    # The samples are training samples of the others, whose thresholds differ.
    assert before.thresholds[1:] != after.thresholds[1:]
    assert before.ensemble.threshold != after.ensemble.threshold


def test_a_threshold_is_that_of_youden_or_of_a_sensitivity() -> None:
    rng = np.random.default_rng(0)
    positive_N = rng.random(200) < 0.3
    chances_N = np.round(rng.beta(2 + 2 * positive_N, 3), 2)  # with ties

    def rates(threshold: float) -> tuple[float, float]:
        (right_no, wrong), (missed, right) = confusion_matrix(positive_N, chances_N >= threshold)
        return right / (right + missed), right_no / (right_no + wrong)

    def choose(
        chances_N: np.ndarray, positive_N: np.ndarray, sensitivity: float | None = None
    ) -> float | None:
        labels = Labels.of(positive_N.astype(np.float64), ("no", "yes"), None)
        return choose_threshold(np.stack([1 - chances_N, chances_N], axis=1), labels, sensitivity)

    youden = choose(chances_N, positive_N)
    assert youden is not None
    assert sum(rates(youden)) == pytest.approx(
        max(sum(rates(t)) for t in np.arange(0.005, 1, 0.01))
    )
    for sensitivity in (0.5, 0.9, 1.0):
        threshold = choose(chances_N, positive_N, sensitivity)
        assert threshold is not None and rates(threshold)[0] >= sensitivity
        higher = chances_N[chances_N >= threshold].min() + 1e-6
        assert rates(higher)[0] < sensitivity
    # Samples without a prediction take no part; one class has no threshold.
    missing_N = np.where(np.arange(400) % 2, np.repeat(chances_N, 2), np.nan)
    assert choose(missing_N, np.repeat(positive_N, 2)) == youden
    assert choose(chances_N, np.ones(200, dtype=bool)) is None


def test_scores_at_thresholds_are_those_of_the_confusion_matrix() -> None:
    samples, folds = study(np.random.default_rng(1), "two", True, 2.0)
    combined = combined_forest(samples, replace(folds, sensitivity=0.9))
    default, chosen = score_thresholds(replace(folds, sensitivity=0.9), combined)
    assert (default.rule, chosen.rule) == ("default", "sensitivity 0.9")
    threshold_M = np.array(combined.thresholds, dtype=np.float64)[folds.fold_M - 1]
    for scores, cut_M in ((default, 0.5), (chosen, threshold_M)):
        predicted_M = combined.predictions_MC[:, 1] >= cut_M
        (tn, fp), (fn, tp) = confusion_matrix(folds.held_out.values == 1, predicted_M)
        right = (tp / (tp + fn), tn / (tn + fp), tp / (tp + fp), tn / (tn + fn))
        assert [score.value for score in scores.metrics.values()] == pytest.approx(right)
    more, fewer = (scores.metrics["sensitivity"].value for scores in (chosen, default))
    assert more is not None and fewer is not None and more > fewer
    # By subjects an interval is wider than by samples.
    by_sample = replace(folds.labels, groups=np.arange(len(folds.labels.values)))
    _, of_samples = score_thresholds(replace(folds, labels=by_sample), combined)
    lower, narrow = chosen.metrics["specificity"].lower, of_samples.metrics["specificity"].lower
    assert lower is not None and narrow is not None and lower < narrow


def test_more_classes_numbers_and_models_without_left_out_predictions() -> None:
    for target in ("three", "numbers"):
        samples, folds = study(np.random.default_rng(2), target, False)
        assert score_thresholds(folds, combined_forest(samples, folds)) == []
    samples, folds = study(np.random.default_rng(2), "two", False)
    member = replace(FOREST.cross_validate(samples, folds), left_out=())
    combined = combine_results({"forest": member}, folds)
    assert [scores.rule for scores in score_thresholds(folds, combined)] == ["default"]
    assert combined.ensemble.threshold is None


def test_folds_in_which_a_member_has_no_weight_have_a_threshold() -> None:
    samples, folds = study(np.random.default_rng(1), "two", True, 2.0)
    forest = FOREST.cross_validate(samples, folds, weighed=True)
    held_out, left_out = forest.predictions_MC, list(forest.left_out)
    reverse = [None if each_NC is None else each_NC[:, ::-1] for each_NC in left_out]
    members = {"right": held_out, "other": held_out}
    parts = {"right": left_out, "other": [reverse[0], *left_out[1:]]}
    combined = combine_members(members, folds, parts)
    assert [weights["other"] for weights in combined.fold_weights[:2]] == [0, 0.5]
    assert [at.rule for at in score_thresholds(folds, combined)] == ["default", "Youden's J"]
    # A fold without left-out predictions chooses no threshold and uses 0.5.
    parts["right"][0] = parts["other"][0] = None
    combined = combine_members(members, folds, parts)
    assert combined.thresholds[0] is None and combined.thresholds[1] is not None
    assert score_thresholds(folds, combined)[1].folds == [0.5, *combined.thresholds[1:]]


@pytest.mark.medium
@pytest.mark.parametrize("sizes", ["one", "several"])
def test_intervals_cover_the_scores_at_a_chosen_threshold(sizes: str) -> None:
    """Of 120 studies 0.95: below 106 with a probability of 0.3 %."""
    rows = coverage("20-20", sizes, 0.9, 120)
    assert (rows[1, :, 1] > 0.88).all()
    assert rows[1, 0, 0] == pytest.approx(0.9, abs=0.03)


def test_folds_without_a_skilled_member_have_a_threshold() -> None:
    """A member of weight 0 takes part in no probability; a fold without a threshold has 0.5."""
    samples, folds = study(np.random.default_rng(0), "two", False, 2.0)
    member = FOREST.cross_validate(samples, folds, weighed=True)
    left_out = list(member.left_out or ())
    worse = [None if each is None else 1 - each for each in left_out]
    members = {"forest": member.predictions_MC, "worse": 1 - member.predictions_MC}
    combined = combine_members(members, folds, {"forest": left_out, "worse": worse})
    assert [weights["worse"] for weights in combined.fold_weights] == [0.0] * len(folds.splits)
    assert None not in combined.thresholds and combined.ensemble.threshold is not None

    without = replace(combined, thresholds=[None, *combined.thresholds[1:]])
    scores = score_thresholds(folds, without)[1]
    assert scores.folds == [0.5, *combined.thresholds[1:]]
