"""Evidence of the importance: stability over folds, and false discovery rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from aam.contract.options.commands.studies import Example
from aam.data.sequences import encode
from aam.data.simulation import simulate
from aam.evaluation.association import ASSOCIATED, CONDITIONAL
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split
from aam.members.importance import q_values, stability
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from benchmarks.random_labels import study


def test_equal_lists_agree_and_random_lists_are_no_finding() -> None:
    ranks = np.tile(np.arange(1.0, 101), (5, 1))
    same = stability(ranks)
    assert same.correlation == pytest.approx(1)
    assert (same.common, same.first) == (20, 20)
    assert (same.times_U[:20] == 5).all()
    assert (same.times_U[20:] == 0).all()
    assert "no finding" not in same.sentence(None)
    rng = np.random.default_rng(0)
    other = stability(np.array([rng.permutation(row) for row in ranks]))
    assert other.correlation == pytest.approx(0, abs=0.2)
    assert other.common == pytest.approx(4, abs=2)  # 20 * 20 / 100
    assert "is no finding" in other.sentence(None)


@pytest.mark.parametrize("associated", [True, False])
def test_associated_asvs_of_every_fold_are_a_finding(associated: bool) -> None:
    """Three of 100 ASVs lead in all folds; the order of the others is random."""
    rng = np.random.default_rng(0)
    ranks_KU = np.array([[1.0, 2, 3, *(4 + rng.permutation(97))] for _ in range(5)])
    q_U = np.full(100, 0.9)
    q_U[:3] = 0.01 if associated else 0.9
    q_U[50] = 0.01
    sentence = stability(ranks_KU).sentence(q_U)
    assert ("no finding" in sentence) is not associated
    assert ("3 ASVs are among the first in every fold" in sentence) is associated


@pytest.mark.filterwarnings("error")
def test_a_fold_of_a_constant_model_agrees_with_none() -> None:
    found = stability(np.array([np.arange(1.0, 31), np.full(30, 15.5), np.arange(1.0, 31)]))
    assert found.correlation == pytest.approx(1 / 3)


def test_few_asvs_are_all_among_the_first() -> None:
    found = stability(np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]]))
    assert (found.first, found.common, found.correlation) == (3, 3, 0.5)


@pytest.mark.medium
@pytest.mark.parametrize("setting", ["two", "three/groups", "numbers"])
def test_random_labels_seldom_name_an_asv(setting: str) -> None:
    """Of 60 studies more than 12 have an ASV at q <= 0.1 with a probability of 0.7 %."""
    target, _, grouped = setting.partition("/")
    found = []
    for run in range(60):
        rates, _ = q_values(*study(np.random.default_rng([3, run]), target, bool(grouped)))
        found.append([rates[name].min() <= 0.1 for name in (ASSOCIATED, CONDITIONAL)])
    assert np.sum(found, axis=0).max() <= 12


@pytest.mark.medium
def test_planted_asvs_are_named_and_few_others(tmp_path: Path) -> None:
    """In communities of niches, where other ASVs follow the planted ones."""
    named = planted = associated = 0
    for seed in range(8):
        sizes = {"samples": 150, "asvs": 300, "length": 100, "richness": 60, "depth": 3000}
        simulated = simulate(Example(output_dir=tmp_path, **sizes, seed=seed))
        counts, rng = sparse.csr_array(simulated.counts), np.random.default_rng(seed)
        samples = Samples(counts, encode(simulated.feature_ids, 100))
        logs = samples.log_abundances.toarray().astype(np.float64)
        chosen = rng.choice(np.flatnonzero((logs > 0).mean(axis=0) > 0.1), 5, replace=False)
        signal = (logs[:, chosen] / logs[:, chosen].std(axis=0)) @ rng.choice([-1, 1], 5)
        labels = Labels.of(signal / signal.std() + 0.7 * rng.normal(size=150), (), None)
        rows = np.arange(150)
        parts = [(rows[rows % 5 != k], rows[:0], rows[rows % 5 == k]) for k in range(5)]
        folds = Folds(labels, tuple(Split(*part) for part in parts), seed)
        rates, _ = q_values(TrainingSamples(samples, AsvRelations(samples.tokens_FL)), folds)
        q_F = rates[CONDITIONAL]
        # ASVs that follow the planted ones are associated, too.
        associated += int((rates[ASSOCIATED] < 0.1).sum())
        named += int((q_F <= 0.1).sum())
        planted += int((q_F[chosen] <= 0.1).sum())
    assert planted >= 0.6 * 5 * 8
    assert planted >= 0.85 * named
    assert associated > 2 * named
