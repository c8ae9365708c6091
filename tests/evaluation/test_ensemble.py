"""The ensemble: weights chosen inside the training parts, and a temperature that has evidence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from aam.arrays import F64, Rows
from aam.evaluation.ensemble import choose_weights, combine_members
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.scores import evaluate
from aam.evaluation.splits import Split
from aam.members.forest import Forest
from aam.members.kernel import Kernel
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples


def folds_of(values: F64, classes: tuple[str, ...] = (), groups: list[str] | None = None) -> Folds:
    """Folds of five, whose groups are not divided."""
    labels = Labels.of(values, classes, groups)
    fold_N = labels.groups % 5
    none = np.arange(0)
    splits = tuple(
        Split(np.flatnonzero(fold_N != k), none, np.flatnonzero(fold_N == k)) for k in range(5)
    )
    return Folds(labels, splits, 0)


def test_without_predictions_of_the_training_samples_the_ensemble_is_the_mean() -> None:
    """Held-out predictions of other folds do not choose: their models know the labels."""
    values = np.random.default_rng(0).normal(size=200)
    folds = folds_of(values)
    truth = folds.held_out.values[:, None]
    members = {"good": 0.9 * truth, "bad": -9 * truth}
    found = combine_members(members, folds)
    assert found.predictions_MC == pytest.approx((members["good"] + members["bad"]) / 2)
    assert found.ensemble.combine(members, False) == pytest.approx(found.predictions_MC)


def test_weights_of_a_fold_come_from_its_training_part() -> None:
    """A member that is bad in the training part of one fold is left out there alone."""
    values = np.random.default_rng(0).normal(size=200)
    folds = folds_of(values)
    good = [values[rows, None] + 0.1 for rows in folds.fitted_rows]
    bad = [np.zeros((len(rows), 1)) for rows in folds.fitted_rows]
    left_out = {"one": [bad[0], *good[1:]], "two": good}
    truth = folds.held_out.values[:, None]
    found = combine_members({"one": truth - 1, "two": truth + 1}, folds, left_out)
    assert found.fold_weights == [{"one": 0, "two": 1}] + 4 * [{"one": 0.5, "two": 0.5}]
    assert found.ensemble.weights == {"one": 0.5, "two": 0.5}
    error = found.predictions_MC - truth
    assert error[folds.fold_M == 1] == pytest.approx(1)
    assert error[folds.fold_M != 1] == pytest.approx(0)


def test_equal_weights_remain_within_noise() -> None:
    """Noise is left out, and so are members without predictions of the training samples."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=300)
    labels = Labels.of(y, (), None)
    alike = {name: y[:, None] + rng.normal(size=(300, 1)) * 0.5 for name in ("one", "two")}
    assert choose_weights(alike, labels) == {"one": 0.5, "two": 0.5}
    noise = {"noise": rng.normal(size=(300, 1)), "network": None}
    assert choose_weights({"one": alike["one"], **noise}, labels) == pytest.approx(
        {"one": 1, "noise": 0, "network": 0}
    )
    assert choose_weights({"network": None}, labels) == {"network": 1}


@pytest.mark.parametrize("classes", [(), ("a", "b")])
def test_a_network_joins_by_its_validation_samples_alone(classes: tuple[str, ...]) -> None:
    """Within noise it has the weight 0, and the weights of the others are those without it."""
    rng = np.random.default_rng(0)
    labels, y = labels_of_signs(rng, 1_000, classes)
    validation = rng.permutation(1_000)[:250]

    def noisy(size: float, rows: Rows | None = None) -> F64:
        number_N = 0.5 * classed(y + size * rng.normal(size=1_000), classes)
        if rows is not None:
            number_N[np.setdiff1d(np.arange(1_000), rows)] = np.nan
        return number_N

    others = {"kernel": noisy(1), "forest": noisy(1.2)}
    without = choose_weights(others, labels)
    behind = choose_weights(others | {"network": noisy(6, validation)}, labels)
    assert behind == {**without, "network": 0}
    ahead = choose_weights(others | {"network": noisy(0.4, validation)}, labels)
    assert ahead["network"] >= 0.5
    assert sum(ahead.values()) == pytest.approx(1)
    rest = {name: ahead[name] / (1 - ahead["network"]) for name in others}
    assert rest == pytest.approx(without)


def labels_of_signs(
    rng: np.random.Generator, number: int, classes: tuple[str, ...]
) -> tuple[Labels, F64]:
    """Labels of -1 and 1, or of two classes."""
    codes = rng.integers(0, 2, number).astype(float)
    return Labels.of(codes if classes else 2 * codes - 1, classes, None), 2 * codes - 1


def classed(number_N: F64, classes: tuple[str, ...]) -> F64:
    """Numbers as one column, or as probabilities of two classes."""
    if not classes:
        return 2 * number_N[:, None]
    half_N = np.tanh(number_N / 2)
    return np.stack([1 - half_N, 1 + half_N], axis=1)


def class_members(rng: np.random.Generator, noise: float) -> tuple[Labels, F64, F64]:
    """Probabilities of two classes by two members, of which the second has more noise."""
    codes = np.arange(200) % 2
    signs = 2.0 * codes - 1
    first, second = (0.1 * (signs + rng.normal(size=200) * size) for size in (2, noise))
    labels = Labels.of(codes.astype(float), ("a", "b"), None)
    return labels, *(np.stack([0.5 - d, 0.5 + d], axis=1) for d in (first, second))


def scaled(chances: F64, factor: float) -> F64:
    return 0.5 + factor * (chances - 0.5)


@pytest.mark.parametrize("factor", [0.2, 1.0, 4.0])
def test_the_scale_of_class_probabilities_does_not_weigh_a_member(factor: float) -> None:
    """Predictions of half the data are too near to the mean, those of a forest too far from it."""
    labels, first, second = class_members(np.random.default_rng(0), 2)
    weights = choose_weights({"one": first, "two": scaled(second, factor)}, labels)
    assert weights["two"] > 0.4 if factor <= 1 else weights["two"] > 0
    alone = choose_weights({"one": first, "two": scaled(second, -1)}, labels)
    assert alone == {"one": 1, "two": 0}


def test_weights_of_classes_change_continuously_with_the_evidence() -> None:
    found = []
    for noise in np.linspace(2, 30, 200):
        labels, first, second = class_members(np.random.default_rng(3), noise)
        found.append(choose_weights({"one": first, "two": second}, labels)["one"])
    skilled = np.array(found)[np.array(found) < 1]
    assert found[0] == 0.5
    assert max(skilled) > 0.8
    assert np.abs(np.diff(skilled)).max() < 0.1


def study(rng: np.random.Generator, group_N: np.ndarray) -> TrainingSamples:
    """Samples whose communities are those of their group, with noise."""
    logs = 2 * rng.normal(size=(group_N.max() + 1, 30))[group_N]
    counts = rng.poisson(np.exp(logs + rng.normal(size=logs.shape) * 0.3) * 20) + 1
    tokens_FL = rng.integers(1, 5, (30, 40), dtype=np.uint8)
    samples = Samples(sparse.csr_array(counts.astype(np.int32)), tokens_FL, None)
    return TrainingSamples(samples, AsvRelations(tokens_FL))


@pytest.mark.medium
@pytest.mark.parametrize("member", [Forest(40, n_jobs=1), Kernel()], ids=["forest", "kernel"])
def test_predictions_that_weigh_a_member_do_not_know_the_group(member: Forest | Kernel) -> None:
    """Groups have random labels and alike samples: who knows the group knows the label."""
    rng = np.random.default_rng(0)
    group_N = np.repeat(np.arange(40), 4)
    values = rng.normal(size=40)[group_N]
    inputs = study(rng, group_N).inputs(member)  # type: ignore[arg-type]

    def skill(labels: Labels) -> float:
        model = member.fit(inputs, labels, 0)  # type: ignore[arg-type]
        left_out_NC = member.left_out(model, inputs, labels, 0)  # type: ignore[arg-type]
        assert left_out_NC is not None
        return float(np.corrcoef(left_out_NC[:, 0], values)[0, 1])

    assert abs(skill(Labels.of(values, (), [str(k) for k in group_N]))) < 0.4
    assert skill(Labels.of(values, (), None)) > 0.8


@pytest.mark.parametrize(
    ("groups", "sharpened", "changes"), [(40, 3, True), (40, 1, False), (1, 3, False)]
)
def test_a_temperature_needs_evidence_of_many_groups(
    groups: int, sharpened: float, changes: bool
) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    codes = np.array([rng.choice(3, p=chance) for chance in chances])
    given = chances**sharpened / (chances**sharpened).sum(axis=1, keepdims=True)
    labels = Labels.of(
        codes.astype(np.float64), ("a", "b", "c"), [str(n % groups) for n in range(200)]
    )
    fold = np.arange(200) % groups % 5
    rows = [np.flatnonzero(fold == k) for k in np.unique(fold)]
    splits = tuple(Split(np.arange(200), one[:0], one) for one in rows)
    folds = Folds(labels, splits, 0)
    ensemble = combine_members({"one": given[folds.rows_M]}, folds).ensemble
    assert (ensemble.temperature != 1) is changes


def test_a_single_member_has_the_scores_of_the_model() -> None:
    """Temperatures of folds change the order of three classes, and so the AUC."""
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(300, 3))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    codes = np.array([rng.choice(3, p=chance) for chance in chances])
    folds = folds_of(codes.astype(np.float64), ("a", "b", "c"))
    member = (chances**4 / (chances**4).sum(axis=1, keepdims=True))[folds.rows_M]
    combined = combine_members({"kernel": member}, folds)
    auc = [folds.resampled(one).values["auc"] for one in (member, combined.predictions_MC)]
    assert auc[0] != auc[1]
    scores = evaluate("ill", folds, combined, {})
    assert scores.verdict.model == auc[1]
    assert scores.models["kernel"].metrics == scores.models["ensemble"].metrics


def test_calibration_keeps_the_order_of_a_single_split() -> None:
    """An ensemble of one member has the scores of the member: no temperature of parts of it."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2, 60).astype(np.float64)
    chances = rng.uniform(0.2, 0.8, 30)
    rows = np.arange(60)
    folds = Folds(Labels.of(codes, ("a", "b"), None), (Split(rows[:30], rows[30:], rows[:0]),), 0)
    predictions = np.column_stack([1 - chances, chances])
    combined = combine_members({"kernel": predictions}, folds)
    np.testing.assert_allclose(combined.predictions_MC, predictions, rtol=1e-12)
