"""Batch balance: batches of even cost with every sample once and the usual sizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from aam.data.batches import BatchPlan, balanced_order
from aam.data.splits import even_slice
from aam.data.study import Study
from aam.training.loader import TrainingBatches

costs = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


def presence(rng: np.random.Generator, samples: int, asvs: int) -> csr_array:
    """Samples of very different richness."""
    richness = rng.uniform(0.02, 0.8, size=(samples, 1))
    return csr_array((rng.random((samples, asvs)) < richness).astype(np.int32))


def spread(counts: csr_array, batches: list[npt.NDArray[np.int64]]) -> float:
    return float(np.std([len(np.unique(counts[rows].indices)) for rows in batches]))


@given(st.integers(1, 500), st.integers(1, 60))
def test_bounds_are_those_of_array_split(samples: int, steps: int) -> None:
    rows = np.arange(samples)
    for step, expected in enumerate(np.array_split(rows, steps)):
        np.testing.assert_array_equal(rows[even_slice(samples, steps, step)], expected)


@given(costs, st.integers(1, 20), st.integers(0, 5))
def test_an_epoch_sees_every_sample_once(cost: list[int], batch_size: int, seed: int) -> None:
    rows = np.arange(len(cost)) * 3 + 7
    steps = -(-len(cost) // batch_size)
    ordered = balanced_order(rows, np.array(cost), steps, np.random.default_rng(seed))
    assert sorted(ordered.tolist()) == rows.tolist()
    again = balanced_order(rows, np.array(cost), steps, np.random.default_rng(seed))
    np.testing.assert_array_equal(ordered, again)


def test_batches_are_more_even_in_distinct_asvs() -> None:
    rng = np.random.default_rng(3)
    counts = presence(rng, 240, 500)
    rows, steps = np.arange(240), 30
    found = {}
    for how in ("chance", "even"):
        ordered = rng.permutation(rows)
        if how == "even":
            ordered = balanced_order(rows, np.diff(counts.indptr), steps, rng)
        found[how] = spread(counts, [ordered[even_slice(240, steps, k)] for k in range(steps)])
    assert found["even"] < 0.7 * found["chance"]


def test_even_batches_contain_the_same_samples_as_random_ones(study: Study) -> None:
    plan = BatchPlan(seed=1, rarefy_depth=300, token_limit=1024)
    rows = np.arange(2, 33)
    made = {}
    for even in (False, True):
        batches = TrainingBatches(study, plan, rows, 8, fresh_reads=True, even=even)
        made[even] = [batches[3, step].rows_B.tolist() for step in range(batches.steps)]
    seen = [sorted(row for batch in found for row in batch) for found in made.values()]
    assert seen == [rows.tolist()] * 2
    assert [len(batch) for batch in made[False]] == [len(batch) for batch in made[True]]
    assert made[False] != made[True]
