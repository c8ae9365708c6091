"""Clades of ASVs: their kernel, its sum with that of the sequences, and features of the forest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from sklearn.metrics import adjusted_rand_score

from aam.arrays import F64, Tokens
from aam.contract.options.commands.studies import Example
from aam.data.sequences import encode
from aam.data.simulation import simulate
from aam.evaluation.labels import Labels
from aam.members.forest import Forest, ForestInputs, ForestModel, clades, membership
from aam.members.kernel import CLADE_SHARES, Kernel, products
from aam.members.relations import (
    AsvRelations,
    Dendrogram,
    NearestAsvs,
    mean_mismatches,
    mismatches,
)
from aam.members.samples import Samples

ONE = "ACGT" * 25
SEQUENCES = [ONE, "TTGCA" * 20, "CA" + ONE[2:], ONE[:94] + "TGTGCA", "GGAAC" * 20]
"""Of 100 nucleotides 2 differ between the first and the third, 6 from the fourth."""


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return encode(SEQUENCES, None)


@pytest.fixture(scope="module")
def dendrogram(tokens: Tokens) -> Dendrogram:
    found = AsvRelations(tokens).dendrogram
    assert found is not None
    return found


@pytest.fixture(scope="module")
def study() -> tuple[Samples, Labels]:
    options = Example(
        output_dir=None,  # type: ignore[arg-type]
        samples=80, asvs=150, length=60, richness=50, depth=3000, subjects=16,
    )  # fmt: skip
    found = simulate(options)
    samples = Samples(sparse.csr_array(found.counts), encode(found.feature_ids, None))
    names = [str(name) for name in found.places.subject]
    return samples, Labels.of(found.places.ph.astype(np.float64), (), names)


def _clades(dendrogram: Dendrogram) -> list[set[int]]:
    columns = dendrogram.paths_FG.toarray().T
    return [set(np.flatnonzero(column).tolist()) for column in columns]


def test_similar_sequences_join_first(dendrogram: Dendrogram) -> None:
    found = _clades(dendrogram)
    assert found[:7] == [{0}, {1}, {2}, {3}, {4}, {0, 2}, {0, 2, 3}]
    assert found[8] == {0, 1, 2, 3, 4}
    assert dendrogram.heights_G[:7].tolist() == [0, 0, 0, 0, 0, 2, 7]
    assert dendrogram.lengths_G[[0, 3, 5, 8]].tolist() == [2, 7, 5, 0]


def test_the_kernel_is_the_sum_over_the_branches(tokens: Tokens, dendrogram: Dendrogram) -> None:
    counts = np.random.default_rng(0).integers(0, 40, (6, 5))
    samples = Samples(sparse.csr_array(counts), tokens)
    relative = counts / counts.sum(axis=1, keepdims=True)
    expected = np.zeros((6, 6))
    for clade, length in zip(_clades(dendrogram), dendrogram.lengths_G, strict=True):
        below = np.log10(1 + 1e4 * relative[:, sorted(clade)].sum(axis=1))
        expected += length * np.outer(below, below)
    features = dendrogram.features(samples.log_abundances, NearestAsvs.of_training(5))
    assert products(features, features) == pytest.approx(expected, rel=1e-5)


def test_a_new_asv_joins_the_clades_that_differ_by_as_much(
    tokens: Tokens, dendrogram: Dendrogram
) -> None:
    """It differs from the first ASV by 4: more than the first pair, less than the next clade."""
    new = encode(["TGCA" + ONE[4:], ONE], None)
    inputs = Kernel().read(Samples(sparse.csr_array([[1, 1]]), new), AsvRelations(tokens))
    assert inputs.nearest.nearest_U.tolist() == [0, 0]
    assert inputs.nearest.mismatches_U.tolist() == [4, 0]
    found = dendrogram.membership(inputs.nearest).toarray()
    above = [{0, 2, 3}, set(range(5))]
    clades = _clades(dendrogram)
    joined = [[clades[b] for b in np.flatnonzero(row)] for row in found]
    assert [clade for clade in joined[0] if len(clade) in (1, 2, 3, 5)] == above
    assert joined[1][:3] == [{0}, {0, 2}, {0, 2, 3}]


def test_the_clades_have_one_of_the_shares_of_the_variance(study: tuple[Samples, Labels]) -> None:
    samples, labels = study
    inputs = Kernel().read(samples, AsvRelations(samples.tokens_FL))
    model = Kernel().fit(inputs, labels, 0)
    assert inputs.smoothed_NF is not None
    nothing = np.zeros_like(inputs.smoothed_NF)
    without = dataclasses.replace(inputs, norms_N=np.zeros(80), smoothed_NF=nothing)

    def variance(kernel_NN: F64) -> float:
        return float(np.trace(kernel_NN) / 80 - kernel_NN.mean())

    linear = dataclasses.replace(model, gamma=0.0)
    share = variance(linear.kernel(without)) / variance(linear.kernel(inputs))
    assert any(share == pytest.approx(one, rel=1e-5) for one in CLADE_SHARES)


def test_an_effect_of_clades_is_found() -> None:
    """The target is the number of 10 clades of 8 variants each of which a sample has some ASV."""
    rng = np.random.default_rng(0)
    first = rng.integers(1, 5, (10, 100))
    variants = np.repeat(first, 8, axis=0)
    places = np.arange(80), np.arange(80)
    variants[places] = variants[places] % 4 + 1
    tokens = np.concatenate([variants, rng.integers(1, 5, (30, 100))]).astype(np.uint8)
    counts = rng.poisson(30, (200, 110)) * (rng.random((200, 110)) < 0.1)
    counts[:, -1] += 500
    samples = Samples(sparse.csr_array(counts), tokens)
    present = counts[:, :80].reshape(200, 10, 8).any(axis=2)
    labels = Labels.of(present.sum(axis=1).astype(np.float64), (), None)
    fitted, predicted = np.arange(120), np.arange(120, 200)

    def score(kernel: Kernel) -> float:
        inputs = kernel.read(samples, AsvRelations(tokens))
        model = kernel.fit(inputs.take(fitted), labels.take(fitted), 0)
        found = model.predict(inputs.take(predicted))[:, 0]
        return float(np.corrcoef(found, labels.values[predicted])[0, 1])

    assert score(Kernel()) > score(Kernel(clades=False)) + 0.1


def test_similar_sequences_share_a_clade_at_each_level(tokens: Tokens) -> None:
    found = clades(AsvRelations(tokens))
    assert found.tolist() == [[1, 0, 1, 0, 0], [2, 0, 2, 2, 0]]
    shared = membership(found).toarray()
    assert shared.T.tolist() == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 0]]


@pytest.mark.parametrize("number", [0, 1])
def test_few_asvs_have_no_clades(number: int) -> None:
    found = clades(AsvRelations(np.ones((number, 8), dtype=np.uint8)))
    assert found.shape == (2, number)
    assert membership(found).shape == (number, 0)


def _families(families: int, variants: int, length: int, seed: int) -> Tokens:
    """Sequences with `variants` of each, which differ from it in 3 positions at most."""
    rng = np.random.default_rng(seed)
    tokens_FL = np.repeat(rng.integers(1, 5, (families, length)), variants, axis=0)
    for column in rng.integers(length, size=(3, len(tokens_FL))):
        tokens_FL[np.arange(len(tokens_FL)), column] = rng.integers(1, 5, len(tokens_FL))
    return np.unique(tokens_FL, axis=0).astype(np.uint8)


@pytest.mark.parametrize("largest", [2, 70, 200])
def test_clades_of_many_asvs_are_those_of_clusters(
    largest: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Families of a few variants stay together where there may be as many clusters."""
    tokens_FL = np.random.default_rng(0).permutation(_families(60, 6, 100, seed=1))
    exact = AsvRelations(tokens_FL).linkage
    found = AsvRelations(tokens_FL, largest).linkage
    assert f"clades of {len(tokens_FL)} ASVs are approximated" in capsys.readouterr().err
    assert exact is not None and found is not None
    assert is_valid_linkage(found)
    tree = Dendrogram.of(found)
    assert (tree.lengths_G >= 0).all()
    nodes = 2 * len(tokens_FL) - 1
    assert (tree.parents_G[:-1] > np.arange(nodes - 1)).all()
    assert found[-1, 3] == len(tokens_FL)
    if largest > 2:
        labels = [fcluster(merges, 12, "distance") for merges in (exact, found)]
        assert adjusted_rand_score(*labels) == 1
        # A family is linked within by all of its pairs.
        shared = [set(map(frozenset, _clades(Dendrogram.of(x)))) for x in (exact, found)]
        assert len(shared[0] & shared[1]) > 0.9 * len(shared[0])


def test_clusters_are_linked_by_the_mean_mismatches_of_their_pairs() -> None:
    """Also with ambiguous letters and sequences of other lengths."""
    tokens_FL = _families(5, 8, 40, seed=2)
    tokens_FL[::3, 30:] = 0
    tokens_FL[1::4, 5] = 5
    clusters = [np.flatnonzero(np.arange(len(tokens_FL)) % 7 == k) for k in range(7)]
    found = mean_mismatches(tokens_FL, clusters)
    pairs_FF = mismatches(tokens_FL, tokens_FL)
    expected = [[pairs_FF[np.ix_(one, two)].mean() for two in clusters] for one in clusters]
    np.fill_diagonal(expected := np.array(expected), 0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_equal_sequences_are_one_clade() -> None:
    relations = AsvRelations(np.ones((40, 8), dtype=np.uint8), 10)
    assert clades(relations).tolist() == [[1] * 40, [2] * 40]


def test_a_kernel_and_a_forest_read_the_clades_of_many_asvs(study: tuple[Samples, Labels]) -> None:
    samples, labels = study
    rows = np.arange(80)
    for estimator in (Kernel(), Forest(50, n_jobs=1)):
        scores = []
        for largest in (10_000, 40):
            inputs = estimator.read(samples, AsvRelations(samples.tokens_FL, largest))
            model = estimator.fit(inputs.take(rows[:60]), labels.take(rows[:60]), 0)
            predicted = model.predict(inputs.take(rows[60:]))[:, 0]
            scores.append(np.corrcoef(predicted, labels.values[60:])[0, 1])
        assert scores[1] > scores[0] - 0.05


def test_an_effect_that_a_clade_shares_is_found() -> None:
    """The target is the sum of 30 variants of one sequence, of which a sample has one or two."""
    rng = np.random.default_rng(0)
    first, other = rng.integers(1, 5, 100), rng.integers(1, 5, (30, 100))
    variants = np.tile(first, (30, 1))
    variants[np.arange(30), np.arange(30)] = first[:30] % 4 + 1
    tokens = np.concatenate([variants, other]).astype(np.uint8)
    counts = rng.poisson(30, (200, 60)) * (rng.random((200, 60)) < 0.05)
    counts[:, -1] += 500
    samples = Samples(sparse.csr_array(counts), tokens)
    values = samples.relative.toarray()[:, :30].sum(axis=1).astype(np.float64)
    labels = Labels.of(values, (), None)
    forest, rows = Forest(50, n_jobs=1), np.arange(200)
    inputs = forest.read(samples, AsvRelations(tokens))

    def fit_and_score(inputs: ForestInputs) -> tuple[ForestModel, float]:
        model = forest.fit(inputs.take(rows[:120]), labels.take(rows[:120]), 0)
        predicted = model.predict(inputs.take(rows[120:]))[:, 0]
        return model, float(np.corrcoef(predicted, values[120:])[0, 1])

    model, score = fit_and_score(inputs)
    _, score_without = fit_and_score(ForestInputs(inputs.abundances))
    assert score > 0.95 > 0.85 > score_without
    importance = model.impurity_decrease(inputs)
    assert importance[:30].sum() > 0.8
    assert importance.sum() == pytest.approx(1)
