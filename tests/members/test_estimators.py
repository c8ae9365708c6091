"""Kernel and forest against scikit-learn, on new studies, and from their arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import Ridge

from aam.arrays import Rows
from aam.contract.errors import DataError
from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import DeviceOptions
from aam.contract.records import Mismatch
from aam.data.sequences import encode
from aam.data.simulation import simulate
from aam.evaluation.labels import Labels
from aam.members.forest import Forest
from aam.members.kernel import Kernel, KernelModel
from aam.members.kernel_ridge import (
    PENALTIES,
    fit_ridge,
    huber_weights,
    leave_groups_out,
    leave_large_groups_out,
)
from aam.members.member import estimator as estimator_of
from aam.members.relations import AsvRelations, mismatches, similarity
from aam.members.samples import Samples
from aam.serialization.model_folder import State

ESTIMATORS = ("kernel", "forest")
OPTIONS = Example(
    output_dir=None,  # type: ignore[arg-type]
    samples=90, asvs=200, length=60, richness=60, depth=3000, subjects=18,
)  # fmt: skip


@pytest.fixture(scope="module")
def samples() -> Samples:
    study = simulate(OPTIONS)
    return Samples(sparse.csr_array(study.counts), encode(study.feature_ids, None))


@pytest.fixture(scope="module")
def numbers() -> Labels:
    study = simulate(OPTIONS)
    return Labels.of(
        study.places.ph.astype(np.float64), (), [str(name) for name in study.places.subject]
    )


@pytest.fixture(scope="module")
def sites() -> Labels:
    study = simulate(OPTIONS)
    return Labels.of(study.places.site.astype(np.float64), ("a", "b", "c"), None)


def test_similarity_falls_with_mismatches_and_ends_count_half() -> None:
    tokens = encode(["ACGTACGT", "ACGTACGA", "ACGTAC", "ACGTACGN"], None)
    expected = np.exp(-np.array([0, 1, 1, 0.5]) / 3)
    assert similarity(mismatches(tokens, tokens))[0] == pytest.approx(expected, rel=1e-6)


def test_left_out_groups_are_predicted_as_by_regressions_without_them() -> None:
    rng = np.random.default_rng(0)
    features, y_NC = rng.normal(size=(40, 6)), rng.normal(size=(40, 2))
    penalty = 3.0
    for weights_N in (np.ones(40), rng.uniform(0.1, 2, size=40)):
        weights_N = weights_N / weights_N.mean()
        roots_N1 = np.sqrt(weights_N)[:, None]
        centred = roots_N1 * (features - weights_N @ features / 40)
        U, values, _ = np.linalg.svd(centred, full_matrices=False)
        shrunk = (values**2 / (values**2 + penalty))[None]
        projected = U.T @ (roots_N1 * (y_NC - weights_N @ y_NC / 40))
        for groups in (np.arange(40), np.arange(40) // 7):
            [found] = leave_groups_out(U, shrunk, projected, y_NC, groups, weights_N)
            for group in np.unique(groups):
                out = groups == group
                model = Ridge(alpha=penalty).fit(features[~out], y_NC[~out], weights_N[~out])
                assert found[out] == pytest.approx(model.predict(features[out]), abs=1e-6)
        trace = np.square(values).sum()
        shrunk = values**2 / (values**2 + PENALTIES[:, None] * trace)
        expected = leave_groups_out(U, shrunk, projected, y_NC, groups, weights_N)
        large = leave_large_groups_out(U, values**2, y_NC, groups, weights_N)
        assert large == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("landmarks", [np.arange(40), np.arange(39)])
def test_a_weighted_ridge_regression_is_that_of_scikit_learn(landmarks: Rows) -> None:
    """Of a linear kernel of six features, which 39 landmarks represent exactly."""
    rng = np.random.default_rng(1)
    features, weights_N = rng.normal(size=(40, 6)), rng.uniform(0.1, 2, size=40)
    labels = Labels.of(features @ rng.normal(size=6) + rng.normal(size=40), (), None)
    kernel_NM = features @ features[landmarks].T
    found = fit_ridge(kernel_NM, landmarks, labels, weights_N)
    weights_N = weights_N / weights_N.mean()
    trace = weights_N @ np.square(features - weights_N @ features / 40).sum(axis=1)
    expected = [
        Ridge(alpha=penalty * trace).fit(features, labels.values, weights_N).predict(features)
        for penalty in PENALTIES
    ]
    predicted = (kernel_NM @ found.dual_RC + found.offset_C)[:, 0]
    assert min(np.abs(predicted - one).max() for one in expected) < 1e-6


def test_rounding_of_a_kernel_with_a_large_mean_does_not_reach_the_predictions() -> None:
    """The kernel is rounded to float32, as that of the sequences."""
    rng = np.random.default_rng(1)
    falling = np.arange(1, 201.0)
    features = rng.normal(size=(200, 200)) / falling**2
    values = features @ rng.normal(size=200) + 0.3 * rng.normal(size=200)
    features += 30 / falling
    kernel_NN, labels = features @ features.T, Labels.of(values, (), None)

    def predict(kernel_NN: npt.NDArray[Any]) -> npt.NDArray[Any]:
        ridge = fit_ridge(kernel_NN, np.arange(200), labels)
        return kernel_NN @ ridge.dual_RC + ridge.offset_C

    rounded_NN = kernel_NN.astype(np.float32).astype(np.float64)
    assert predict(rounded_NN) == pytest.approx(predict(kernel_NN), abs=0.1)


def test_huber_weights_fall_with_the_residual_beyond_the_limit() -> None:
    residuals = np.array([-1.0, 0.5, 1, 1, 100])
    limit = 1.345 * 1.4826
    assert huber_weights(residuals) == pytest.approx([1, 1, 1, 1, limit / 100])
    assert huber_weights(np.array([0.0, 0, 3])).tolist() == [1, 1, 1]


def test_wrong_labels_hardly_change_the_kernel(samples: Samples, numbers: Labels) -> None:
    """A tenth of the training labels is far too high or too low; the test labels are right."""
    inputs = Kernel().read(samples, AsvRelations(samples.tokens_FL))
    test = numbers.groups % 5 == 0
    fitted, predicted = np.flatnonzero(~test), np.flatnonzero(test)
    training = numbers.take(fitted)
    wrong = training.values.copy()
    wrong[::20] += 5 * training.values.std()
    wrong[10::20] -= 5 * training.values.std()
    labels = dataclasses.replace(training, values=wrong)
    model = Kernel().fit(inputs.take(fitted), labels, 0)
    kernel_NM, rows = model.kernel(inputs.take(fitted)), np.arange(len(fitted))
    plain = fit_ridge(kernel_NM, rows, labels)
    squares = dataclasses.replace(model, dual_RC=plain.dual_RC, offset_C=plain.offset_C)

    def error(one: KernelModel) -> float:
        found = one.predict(inputs.take(predicted))[:, 0]
        return float(np.square(found - numbers.values[predicted]).mean())

    assert error(model) < 0.8 * error(squares)


SIZES = [
    *((Kernel(largest=largest, landmarks=60), Kernel(), "60 landmarks") for largest in (89, 90)),
    *((Forest(40, n_jobs=1, largest=largest, bag=30), Forest(40, n_jobs=1), "30 samples drawn")
      for largest in (89, 90)),
]  # fmt: skip


@pytest.mark.parametrize(("member", "default", "rule"), SIZES)
def test_a_study_above_a_size_is_sampled_and_any_other_is_not(
    member: Kernel | Forest, default: Kernel | Forest, rule: str, samples: Samples,
    numbers: Labels, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The study has 90 samples: what is sampled is said when it is read, and in the settings."""
    test = numbers.groups % 5 == 0
    fitted, predicted = np.flatnonzero(~test), np.flatnonzero(test)

    def fit(estimator: Any) -> tuple[Any, npt.NDArray[np.float64]]:
        inputs = estimator.read_training(samples, AsvRelations(samples.tokens_FL))
        model = estimator.fit(inputs.take(fitted), numbers.take(fitted), 0)
        return model, model.predict(inputs.take(predicted))[:, 0]

    model, found = fit(member)
    shown = capsys.readouterr().err
    assert np.corrcoef(found, numbers.values[predicted])[0, 1] > 0.7
    expected = fit(default)[1]
    if member.largest == 90:
        assert found.tolist() == expected.tolist()
        assert not shown
        assert "landmarks" not in model.settings
        assert "drawn" not in model.settings
        return
    assert found.tolist() != expected.tolist()
    assert "of the 90 samples" in " ".join(shown.split())
    restored = member.restore(model.state(), len(samples.tokens_FL), 1, DeviceOptions())
    number = rule if isinstance(member, Forest) else f"{len(model.dual_RC)} landmarks"
    assert number in restored.settings == model.settings
    assert not isinstance(member, Kernel) or 30 < len(model.dual_RC) < 60


def test_a_training_set_without_a_landmark_is_refused(samples: Samples, numbers: Labels) -> None:
    """A training set that is a small part of a study above the size."""
    kernel = Kernel(largest=89, landmarks=3)
    inputs = kernel.read_training(samples, AsvRelations(samples.tokens_FL))
    assert inputs.products is not None
    fitted = np.setdiff1d(np.arange(90), inputs.products.landmarks_L)[:6]
    with pytest.raises(DataError, match="6 training samples in a study of more than 89"):
        kernel.fit(inputs.take(fitted), numbers.take(fitted), 0)


def test_the_kernel_predicts_between_the_lowest_and_the_highest_label(
    samples: Samples, numbers: Labels
) -> None:
    """Of all samples, after training on those with a low label."""
    low = np.flatnonzero(numbers.values < np.median(numbers.values))
    inputs = Kernel().read(samples, AsvRelations(samples.tokens_FL))
    model = Kernel().fit(inputs.take(low), numbers.take(low), 0)
    highest = numbers.values[low].max()
    assert model.predict(inputs).max() == highest
    assert dataclasses.replace(model, limits=np.empty(0)).predict(inputs).max() > highest


def test_a_skewed_target_is_fitted_with_equal_weights(samples: Samples, numbers: Labels) -> None:
    inputs = Kernel().read(samples, AsvRelations(samples.tokens_FL))
    standard = (numbers.values - numbers.values.mean()) / numbers.values.std()
    for values, equal in ((standard, False), (np.exp(3 * standard), True)):
        labels = dataclasses.replace(numbers, values=values)
        model = Kernel().fit(inputs, labels, 0)
        plain = fit_ridge(model.kernel(inputs), np.arange(len(values)), labels)
        assert (np.abs(model.dual_RC - plain.dual_RC).max() < 1e-9) == equal


def test_probabilities_of_the_kernel(samples: Samples, sites: Labels) -> None:
    kernel = Kernel()
    inputs = kernel.read(samples, AsvRelations(samples.tokens_FL))
    fitted, predicted = np.arange(60), np.arange(60, 90)
    found = kernel.fit(inputs.take(fitted), sites.take(fitted), 0).predict(inputs.take(predicted))
    assert found.sum(axis=1) == pytest.approx(1)
    assert (found.argmax(axis=1) == sites.values[predicted]).mean() > 0.6


@pytest.mark.parametrize("classifier", [False, True])
def test_the_arrays_of_a_forest_predict_as_scikit_learn(
    samples: Samples, numbers: Labels, sites: Labels, classifier: bool
) -> None:
    labels = sites if classifier else numbers
    inputs = Forest().read(samples, AsvRelations(samples.tokens_FL))
    found = Forest(20, n_jobs=1).fit(inputs, labels, 7).predict(inputs)
    kind = RandomForestClassifier if classifier else RandomForestRegressor
    share = Forest().max_features
    forest = kind(20, max_features=share, min_samples_leaf=2, random_state=7, n_jobs=1)
    matrix = inputs.columns(inputs.clades_VF, None).toarray()
    matrix = matrix[:, (matrix > 0).sum(axis=0) >= 2]  # others cannot be split
    forest.fit(matrix, labels.values)
    known = forest.predict_proba(matrix) if classifier else forest.predict(matrix)[:, None]
    assert found == pytest.approx(known, abs=1e-12)


@pytest.mark.parametrize(("factor", "offset"), [(1e-9, 0.0), (1.0, 1e9), (1e12, -1e15)])
def test_a_forest_does_not_depend_on_the_unit_of_the_target(
    samples: Samples, numbers: Labels, factor: float, offset: float
) -> None:
    inputs = Forest().read(samples, AsvRelations(samples.tokens_FL))
    other = dataclasses.replace(numbers, values=factor * numbers.values + offset)
    found, expected = (
        Forest(20, n_jobs=1).fit(inputs, one, 0).predict(inputs) for one in (other, numbers)
    )
    # Rounding chooses another one of equal splits.
    assert np.corrcoef(found[:, 0], expected[:, 0])[0, 1] > 0.99
    assert (found - offset) / factor == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_another_study_may_order_its_asvs_differently_and_have_further_ones(
    name: str, samples: Samples, numbers: Labels
) -> None:
    """A sample is read alike whatever the order of the ASVs and the length of the others."""
    estimator = estimator_of(name)
    inputs = estimator.read(samples, AsvRelations(samples.tokens_FL))
    model = estimator.fit(inputs, numbers, 0)
    order = np.random.default_rng(0).permutation(len(samples.tokens_FL))
    further = encode(["A" * 80], None)
    tokens = np.zeros((len(order) + 1, 80), dtype=np.uint8)
    tokens[:-1, :60], tokens[-1] = samples.tokens_FL[order], further[0]
    counts = sparse.csr_array(sparse.hstack([samples.counts[:, order], np.zeros((90, 1), int)]))
    again = estimator.read(Samples(counts, tokens), AsvRelations(samples.tokens_FL))
    assert model.predict(again) == pytest.approx(model.predict(inputs), abs=1e-4)


def test_a_class_without_samples_has_probability_0(samples: Samples, sites: Labels) -> None:
    fitted = np.flatnonzero(sites.values != 1)
    for estimator in map(estimator_of, ESTIMATORS):
        inputs = estimator.read(samples, AsvRelations(samples.tokens_FL))
        found = estimator.fit(inputs.take(fitted), sites.take(fitted), 0).predict(inputs)
        assert found.shape == (90, 3)
        assert (found[:, 1] == 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_arrays_are_the_whole_state(
    name: str, samples: Samples, numbers: Labels, sites: Labels
) -> None:
    estimator = estimator_of(name)
    inputs = estimator.read(samples, AsvRelations(samples.tokens_FL))
    for labels, outputs in ((numbers, 1), (sites, 3)):
        model = estimator.fit(inputs, labels, 0)
        restored = estimator.restore(model.state(), 200, outputs, DeviceOptions())
        assert restored.predict(inputs) == pytest.approx(model.predict(inputs), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "array", "change"),
    [
        ("forest", "asvs", lambda found: found + 200),
        ("forest", "values", lambda found: found[:, :0]),
        ("forest", "left", lambda found: np.zeros_like(found)),
        ("kernel", "parents", lambda found: found[::-1].copy()),
        ("kernel", "asvs", lambda found: found.astype(np.float64)),
        ("kernel", "dual", lambda found: found[1:]),
    ],
)
def test_damaged_arrays_are_refused(
    name: str,
    array: str,
    change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    samples: Samples,
    numbers: Labels,
) -> None:
    estimator = estimator_of(name)
    model = estimator.fit(estimator.read(samples, AsvRelations(samples.tokens_FL)), numbers, 0)
    state, device = model.state(), DeviceOptions()
    arrays = dict(state.arrays)
    changed = State(state.settings, arrays | {array: change(arrays[array])})
    with pytest.raises(Mismatch):
        estimator.restore(changed, 200, 1, device)
    del arrays[array]
    with pytest.raises(Mismatch, match=array):
        estimator.restore(State(state.settings, arrays), 200, 1, device)
    with pytest.raises(Mismatch, match=f"{name} has no"):
        estimator.restore(State({}, state.arrays), 200, 1, device)


@pytest.mark.parametrize(("number", "asvs"), [(1500, 60), (20, 5000)])
def test_products_of_samples_are_the_kernel_of_smoothed_abundances(number: int, asvs: int) -> None:
    """In blocks of ASVs and of samples, of which these studies have more than one."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 5, (asvs, 12)).astype(np.uint8)
    dense = rng.integers(1, 100, (number, asvs)) * (rng.random((number, asvs)) < 0.05)
    dense[:, 0] += 1
    study, relations = Samples(sparse.csr_array(dense), tokens), AsvRelations(tokens)
    weights = study.log_abundances
    similar = similarity(mismatches(tokens, tokens)).astype(np.float64)
    expected = (weights.astype(np.float64) @ similar) @ weights.toarray().T
    found = relations.sample_products(weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (found == found.T).all()
    # Of a study with many samples, some columns and the diagonal alone.
    landmarks = np.arange(0, number, 7)
    columns = relations.landmark_products(weights, landmarks)
    np.testing.assert_allclose(columns, expected[:, landmarks], rtol=1e-5)
    np.testing.assert_allclose(relations.self_products(weights), expected.diagonal(), rtol=1e-5)


def test_samples_of_a_study_with_many_asvs_are_smoothed_by_the_asvs_that_they_have() -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, 5, (17_000, 8)).astype(np.uint8)
    weights = sparse.csr_array(sparse.random_array((3, 17_000), density=1e-3, rng=rng))
    seen = np.unique(weights.indices)
    expected = weights.toarray()[:, seen] @ similarity(mismatches(tokens[seen], tokens))
    found = AsvRelations(tokens).smooth(weights, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_models_of_a_study_of_more_asvs_than_samples_are_those_of_its_similarities(
    samples: Samples, numbers: Labels
) -> None:
    relations, train, test = AsvRelations(samples.tokens_FL), np.arange(60), np.arange(60, 90)
    whole = Kernel().read(samples, relations)
    study = Kernel().read_training(samples, relations)
    assert study.smoothed_NF is None
    labels = numbers.take(train)
    expected = Kernel().fit(whole.take(train), labels, 0).predict(whole.take(test))
    found = Kernel().fit(study.take(train), labels, 0)
    np.testing.assert_allclose(found.predict(study.take(test)), expected, rtol=1e-4)
    # A restored model reads similarities, as of any table.
    restored = Kernel().restore(found.state(), len(samples.tokens_FL), 1, DeviceOptions())
    np.testing.assert_allclose(restored.predict(whole.take(test)), expected, rtol=1e-4)
