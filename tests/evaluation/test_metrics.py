"""Metrics of predictions: values computed by hand, and those of scikit-learn and SciPy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aam.evaluation.metrics import (
    LINEAR,
    METRICS,
    Metric,
    Metrics,
    ScoredPredictions,
    confusion,
    metric_text,
    summary,
)


def regression(actual: np.ndarray, predicted: np.ndarray) -> Metrics:
    return ScoredPredictions(actual, predicted).metrics()


def classification(
    actual: np.ndarray, predicted: np.ndarray, classes: int, probabilities: np.ndarray
) -> Metrics:
    names = tuple(map(str, range(classes)))
    scored = ScoredPredictions(actual, predicted, classes=names, probabilities=probabilities)
    return scored.metrics()


def test_regression_by_hand() -> None:
    found = regression(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.5, 2.0, 4.0]))
    assert found["samples"] == 4
    assert found["r2"] == pytest.approx(1 - 1.25 / 5)
    assert found["mae"] == pytest.approx(0.375)
    assert found["rmse"] == pytest.approx(np.sqrt(1.25 / 4))
    assert found["median_error"] == pytest.approx(0.25)
    assert found["spearman"] == pytest.approx(0.8)


NUMBERS = st.floats(-1e3, 1e3).map(lambda value: round(value, 2))


@settings(deadline=None)  # libraries are imported in the first example
@given(arrays(np.float64, (2, 12), elements=NUMBERS))
def test_regression_agrees_with_the_libraries(pair: np.ndarray) -> None:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    actual, predicted = pair
    found = regression(actual, predicted)
    assert found["mae"] == pytest.approx(mean_absolute_error(actual, predicted))
    assert found["rmse"] == pytest.approx(root_mean_squared_error(actual, predicted))
    if len(set(actual)) > 1:
        assert found["r2"] == pytest.approx(r2_score(actual, predicted))
    if len(set(actual)) > 1 and len(set(predicted)) > 1:
        assert found["pearson"] == pytest.approx(pearsonr(actual, predicted)[0], abs=1e-9)
        assert found["spearman"] == pytest.approx(spearmanr(actual, predicted)[0], abs=1e-9)


def test_undefined_metrics_are_none() -> None:
    one = regression(np.array([2.0]), np.array([3.0]))
    assert (one["r2"], one["pearson"], one["mae"]) == (None, None, 1.0)
    same = regression(np.array([2.0, 3.0]), np.array([1.0, 1.0]))
    assert same["pearson"] is None
    lone = classification(np.array([0, 0]), np.array([0, 0]), 2, np.array([[0.9, 0.1], [0.8, 0.2]]))
    assert (lone["auc"], lone["accuracy"]) == (None, 1.0)


@pytest.mark.medium
@settings(deadline=None)  # libraries are imported in the first example
@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_classification_agrees_with_scikit_learn(classes: int, seed: int) -> None:
    from sklearn.metrics import (
        accuracy_score,
        balanced_accuracy_score,
        cohen_kappa_score,
        f1_score,
        roc_auc_score,
    )

    rng = np.random.default_rng(seed)
    actual = rng.permutation(np.arange(30) % classes)
    chance = rng.dirichlet(np.ones(classes), 30) + 0.3 * np.eye(classes)[actual]
    chance /= chance.sum(axis=1, keepdims=True)
    predicted = chance.argmax(axis=1)
    found = classification(actual, predicted, classes, chance)
    assert found["accuracy"] == pytest.approx(accuracy_score(actual, predicted))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(actual, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(actual, predicted, average="macro"))
    score = chance[:, 1] if classes == 2 else chance
    assert found["auc"] == pytest.approx(roc_auc_score(actual, score, multi_class="ovr"))
    tied = chance[:, :2].round(1)
    found = classification(actual % 2, predicted % 2, 2, tied)
    assert found["auc"] == pytest.approx(roc_auc_score(actual % 2, tied[:, 1]))
    names = tuple(str(k) for k in range(classes))
    scored = ScoredPredictions(actual, predicted, (), names, ordered=True)
    kappa = cohen_kappa_score(actual, predicted, labels=range(classes), weights="quadratic")
    assert scored.metrics()["weighted_kappa"] == pytest.approx(kappa)


def unequal_folds(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return classes and folds of 200 samples; the classes are as frequent as the fold has it."""
    rng = np.random.default_rng(seed)
    fold = rng.choice(5, size=200, p=[0.1, 0.1, 0.2, 0.2, 0.4])
    chances = rng.dirichlet(np.ones(classes), 5)
    return np.array([rng.choice(classes, p=chances[k]) for k in fold]), fold


def names_of(fold: np.ndarray) -> tuple[str, ...]:
    return tuple(str(k + 1) for k in fold)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("own", [True, False])
def test_class_frequencies_of_folds_have_the_auc_of_a_guess(classes: int, own: bool) -> None:
    """Those of the training samples would have a far lower AUC over all pairs."""
    actual, fold = unequal_folds(classes)
    parts = [(fold == k) == own for k in range(5)]
    shares = np.array([np.bincount(actual[rows], minlength=classes) / rows.sum() for rows in parts])
    chances, names = shares[fold], tuple(map(str, range(classes)))
    scored = ScoredPredictions(actual, chances.argmax(axis=1), names_of(fold), names, chances)
    assert scored.metrics()["auc"] == 0.5
    pooled = replace(scored, folds=()).metrics()["auc"]
    assert pooled is not None
    assert pooled > 0.6 if own else pooled < 0.4


def test_a_guess_of_numbers_is_no_better_than_a_guess() -> None:
    ranks, fold = unequal_folds(4)
    means = np.array([ranks[fold != k].mean() for k in range(5)])[fold]
    found = ScoredPredictions(ranks.astype(np.float64), means, names_of(fold)).metrics()
    assert (found["pearson"], found["spearman"]) == (None, None)
    assert found["r2"] is not None and found["r2"] < 0
    nearest = np.rint(means).astype(np.int64)
    scored = ScoredPredictions(ranks, nearest, names_of(fold), tuple("abcd"), ordered=True)
    kappa = scored.metrics()["weighted_kappa"]
    assert kappa is not None and kappa <= 0


@pytest.mark.parametrize("classes", [2, 3])
def test_auc_counts_the_pairs_within_folds(classes: int) -> None:
    actual, fold = unequal_folds(classes)
    rng = np.random.default_rng(1)
    chances = rng.dirichlet(np.ones(classes), 200).round(1) + 0.2 * np.eye(classes)[actual]
    expected = []
    for code in range(classes):
        positive, score = actual == code, chances[:, code]
        pairs = positive[:, None] & ~positive & (fold[:, None] == fold)
        above = (score[:, None] > score) + 0.5 * (score[:, None] == score)
        expected.append(above[pairs].mean())
    names = tuple(map(str, range(classes)))
    scored = ScoredPredictions(actual, chances.argmax(axis=1), names_of(fold), names, chances)
    found = scored.metrics()["auc"]
    assert found == pytest.approx(expected[1] if classes == 2 else np.mean(expected))


def test_correlations_are_those_within_folds() -> None:
    """Shifts of whole folds change nothing; of a single fold it is that of the library."""
    from scipy.stats import pearsonr, spearmanr

    rng = np.random.default_rng(0)
    actual, fold = rng.normal(size=90), np.repeat(np.arange(3), 30)
    predicted = actual + rng.normal(size=90)
    shifted = predicted - 10 * fold
    found = ScoredPredictions(actual, shifted, names_of(fold)).metrics()
    unshifted = ScoredPredictions(actual, predicted, names_of(fold)).metrics()
    assert found["spearman"] == unshifted["spearman"]
    assert found["pearson"] == pytest.approx(unshifted["pearson"])
    same = np.concatenate([actual[:30]] * 3), np.concatenate([predicted[:30]] * 3)
    found = ScoredPredictions(*same, names_of(fold)).metrics()
    assert found["pearson"] == pytest.approx(pearsonr(actual[:30], predicted[:30])[0])
    assert found["spearman"] == pytest.approx(spearmanr(actual[:30], predicted[:30])[0])


def test_metrics_leave_out_classes_that_do_not_occur() -> None:
    actual, predicted = np.array([0, 0, 2, 2]), np.array([0, 0, 2, 0])
    found = classification(actual, predicted, 3, np.eye(3)[predicted])
    assert found["balanced_accuracy"] == pytest.approx(0.75)
    assert found["auc"] == pytest.approx(0.75)
    assert confusion(actual, predicted, 3).tolist() == [[2, 0, 0], [0, 0, 0], [1, 0, 1]]


def test_folds_are_in_numeric_order() -> None:
    folds = tuple(str(1 + k % 11) for k in range(33))
    scored = ScoredPredictions(np.arange(33.0), np.arange(33.0) + 1, folds)
    found = summary(scored, "ph")["folds"]
    assert list(found) == [str(k) for k in range(1, 12)]
    assert all(one["samples"] == 3 and one["mae"] == 1 for one in found.values())
    assert scored.metrics()["samples"] == 33


def test_summary_can_be_written_as_json() -> None:
    scored = ScoredPredictions(
        np.array([0, 1, 1]), np.array([0, 1, 0]), ("1", "1", "2"), ("no", "yes")
    )
    found = summary(scored, "ill")
    assert json.loads(json.dumps(found)) == found
    assert found["confusion"] == {"classes": ["no", "yes"], "counts": [[1, 0], [1, 1]]}
    assert "auc" not in found["overall"]


@pytest.mark.filterwarnings("error")
def test_small_and_nearly_constant_samples_give_no_warnings() -> None:
    rng = np.random.default_rng(0)
    found = regression(rng.normal(size=5), np.float64(7) + 1e-14 * np.arange(5))
    assert found["pearson"] is not None
    codes = np.arange(4)
    found = classification(codes, np.zeros(4, dtype=np.int64), 5, np.full((4, 5), 0.2))
    assert (found["accuracy"], found["balanced_accuracy"]) == (0.25, 0.25)


def test_a_metric_is_added_by_an_entry_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def largest_error(scored: ScoredPredictions) -> float:
        return float(np.abs(scored.predicted - scored.actual).max())

    metric = Metric("largest error", ("regression",), largest_error, in_units=True)
    monkeypatch.setitem(METRICS, "largest_error", metric)
    undefined = Metric("undefined", ("classification",), lambda scored: float("nan"))
    monkeypatch.setitem(METRICS, "undefined", undefined)
    found = summary(ScoredPredictions(np.zeros(3), np.arange(3.0), ("1", "1", "2")), "ph")
    assert found["overall"]["largest_error"] == 2
    assert found["folds"]["1"]["largest_error"] == 1
    assert metric_text("largest_error", 0.0002) == "0.0002"
    lone = np.zeros(1, dtype=np.int64)
    found = summary(ScoredPredictions(lone, lone, classes=("no", "yes")), "ill")
    assert found["overall"]["undefined"] is None


def predictions_for(metric: Metric, skill: float) -> ScoredPredictions:
    """Return predictions of 40 samples in three folds, from noise (skill 0) to the truth (1)."""
    rng = np.random.default_rng(0)
    fold = np.repeat([0, 1, 2], (20, 12, 8))
    if metric.targets == ("regression",):
        actual = rng.normal(size=40).round(1)
        predicted = skill * actual + (1 - skill) * rng.normal(size=40).round(1)
        return ScoredPredictions(actual, predicted, names_of(fold))
    codes = np.arange(40) % 3
    scores = skill * np.eye(3)[codes] + (1 - skill) * rng.dirichlet(np.ones(3), 40)
    ordered = metric.targets == ("ordinal",)
    return ScoredPredictions(
        codes, scores.argmax(axis=1), names_of(fold), ("a", "b", "c"), scores, ordered
    )


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_each_metric_of_the_registry_has_its_direction_title_and_scale(metric: Metric) -> None:
    noise, good, perfect = (metric.function(predictions_for(metric, s)) for s in (0.0, 0.3, 1.0))
    worst_to_best = [noise, good, perfect] if metric.higher_is_better else [perfect, good, noise]
    assert worst_to_best == sorted(worst_to_best)
    assert noise != perfect
    assert [other.title for other in METRICS.values()].count(metric.title) == 1
    assert metric.scale.low <= min(noise, perfect) <= max(noise, perfect) <= metric.scale.high
    if metric.no_skill is not None:
        assert metric.resampled is not None
        assert noise < metric.no_skill + 0.2 < perfect
    if metric.scale is not LINEAR:
        ends = metric.scale.forward(np.array([good]))
        assert metric.scale.inverse(ends) == pytest.approx(good)


@pytest.mark.parametrize(
    "metric", [metric for metric in METRICS.values() if metric.resampled], ids=lambda m: m.title
)
def test_a_resample_has_the_metric_of_its_samples(metric: Metric) -> None:
    scored, resampled = predictions_for(metric, 0.5), metric.resampled
    assert resampled is not None
    weights_ZN = np.random.default_rng(1).poisson(1.0, (20, 40)).astype(np.float64)
    expected = [
        metric.function(scored.take(np.repeat(np.arange(40), times.astype(np.int64))))
        for times in weights_ZN
    ]
    assert resampled(scored, weights_ZN) == pytest.approx(expected)
