"""Batches of even cost: every sample once, sizes as ever, the spread of the cost smaller."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from aam.study.balance import bounds, order, parts

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
        np.testing.assert_array_equal(rows[bounds(samples, steps, step)], expected)


@given(costs, st.integers(1, 20), st.integers(0, 5))
def test_an_epoch_sees_every_sample_once(cost: list[int], batch_size: int, seed: int) -> None:
    rows = np.arange(len(cost)) * 3 + 7
    steps = -(-len(cost) // batch_size)
    ordered = order(rows, np.array(cost), steps, np.random.default_rng(seed))
    assert sorted(ordered.tolist()) == rows.tolist()
    again = order(rows, np.array(cost), steps, np.random.default_rng(seed))
    np.testing.assert_array_equal(ordered, again)


def test_company_changes_with_the_epoch() -> None:
    cost = np.random.default_rng(0).integers(10, 300, size=64)
    batches = [
        {frozenset(order(np.arange(64), cost, 8, np.random.default_rng(e))[8 * k : 8 * k + 8])
         for k in range(8)}
        for e in range(2)
    ]  # fmt: skip
    assert not batches[0] & batches[1]


def test_batches_are_more_even_in_distinct_asvs() -> None:
    rng = np.random.default_rng(3)
    counts = presence(rng, 240, 500)
    rows, steps = np.arange(240), 30
    found = {}
    for how in ("chance", "even"):
        ordered = rng.permutation(rows)
        if how == "even":
            ordered = order(rows, np.diff(counts.indptr), steps, rng)
        found[how] = spread(counts, [ordered[bounds(240, steps, k)] for k in range(steps)])
    assert found["even"] < 0.7 * found["chance"]


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 100))
def test_ranks_divide_a_batch(samples: int, ranks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = presence(rng, samples, 30)
    rows = rng.permutation(1000)[:samples]
    found = parts(rows, counts, ranks)
    assert sorted(np.concatenate(found).tolist()) == sorted(rows.tolist())
    expected = [len(part) for part in np.array_split(rows, ranks)]
    assert [len(part) for part in found] == expected
    for one, two in zip(found, parts(rows, counts, ranks), strict=True):
        np.testing.assert_array_equal(one, two)


def test_ranks_share_asvs_rather_than_repeat_them() -> None:
    rng = np.random.default_rng(5)
    community = rng.permutation(np.repeat(np.arange(4), 8))
    counts = np.zeros((32, 400), dtype=np.int32)
    for row, own in enumerate(community):
        counts[row, own * 100 + rng.choice(100, rng.integers(20, 90), replace=False)] = 1
    members, rows = csr_array(counts), np.arange(32)

    def slowest(divided: list[npt.NDArray[np.int64]]) -> int:
        return max(len(np.unique(members[part].indices)) for part in divided)

    assert slowest(parts(rows, members, 4)) < 0.6 * slowest(np.array_split(rows, 4))
