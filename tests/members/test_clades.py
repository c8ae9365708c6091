"""Clades of ASVs as features of the forest."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from aam.data.sequences import encode
from aam.members.base import Labels, Samples
from aam.members.forest import Forest, ForestInputs, ForestModel, clades, membership
from aam.members.relations import AsvRelations


def test_similar_sequences_share_a_clade_at_each_level() -> None:
    """Of 100 nucleotides 2 differ within the first pair, 6 from the third, all from the others."""
    one = "ACGT" * 25
    near = "CA" + one[2:]
    far = one[:94] + "TGTGCA"
    tokens = encode([one, "TTGCA" * 20, near, far, "GGAAC" * 20], None)
    found = clades(AsvRelations(tokens))
    assert found.tolist() == [[1, 0, 1, 0, 0], [2, 0, 2, 2, 0]]
    shared = membership(found).toarray()
    assert shared.T.tolist() == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 0]]


@pytest.mark.parametrize("number", [0, 1])
def test_few_asvs_have_no_clades(number: int) -> None:
    found = clades(AsvRelations(np.ones((number, 8), dtype=np.uint8)))
    assert found.shape == (2, number)
    assert membership(found).shape == (number, 0)


def test_too_many_asvs_have_no_clades(capsys: pytest.CaptureFixture[str]) -> None:
    assert not clades(AsvRelations(np.ones((10_001, 8), dtype=np.uint8))).any()
    assert "No clades are read: 10001 ASVs" in capsys.readouterr().err


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
    assert score > 0.95 > 0.8 > score_without
    importance = model.impurity_decrease(inputs)
    assert importance[:30].sum() > 0.8
    assert importance.sum() == pytest.approx(1)
