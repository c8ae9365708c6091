"""Batches: distinct ASVs once, samples independent of each other, UniFrac of rarefied reads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aam.data.study import Study
from aam.data.table import auto_depth, rarefy
from aam.environment import SINGLE_RANK, Ranks
from aam.network.batches import (
    BatchPlan,
    FixedBatches,
    RunSampler,
    TrainingBatches,
    choose_masked,
    loader,
    make_batch,
    shard_of,
)
from aam.network.unifrac import pairwise

PLAN = BatchPlan(seed=1, rarefy_depth=300, token_limit=1024)
TASKS = dataclasses.replace(PLAN, mask_ratio=0.15, metric="unweighted")


def test_a_batch_holds_each_asv_once_and_all_reads(study: Study) -> None:
    rows = np.array([3, 0, 11])
    batch = make_batch(study, PLAN, rows)
    assert len(batch.asvs_U.unique()) == len(batch.asvs_U)
    assert batch.counts_BS.sum(dim=1).tolist() == [300, 300, 300]
    for i, row in enumerate(rows):
        present = batch.counts_BS[i] > 0
        named = set(batch.asvs_U[batch.slots_BS[i][present]].tolist())
        held = set(study.table.counts[[row]].indices.tolist())
        assert named <= held
    np.testing.assert_array_equal(batch.tokens_UL.numpy(), study.tokens_FL[batch.asvs_U])


def test_ragged_batches_have_sequences_with_fewer_patches(study: Study) -> None:
    rows = np.array([3, 0])
    length = study.tokens_FL.shape[1]
    assert not make_batch(study, PLAN, rows).ragged(5)
    cut = study.tokens_FL.copy()
    cut[make_batch(study, PLAN, rows).asvs_U[0], length - 3 :] = 0
    batch = make_batch(dataclasses.replace(study, tokens_FL=cut), PLAN, rows)
    assert batch.shortest == length - 3
    assert not batch.ragged(5)
    assert batch.ragged(3)
    assert batch.ragged(1)


def test_reads_do_not_depend_on_other_samples_or_order(study: Study) -> None:
    together = make_batch(study, PLAN, np.array([5, 2, 9]))
    alone = make_batch(study, PLAN, np.array([2]))
    reads = []
    for batch, i in ((together, 1), (alone, 0)):
        pairs = zip(
            batch.asvs_U[batch.slots_BS[i]].tolist(), batch.counts_BS[i].tolist(), strict=True
        )
        reads.append({asv: count for asv, count in pairs if count})
    assert reads[0] == reads[1]


def test_masked_tokens_are_hidden_and_kept_as_targets(study: Study) -> None:
    batch = make_batch(study, TASKS, np.arange(8), masks=3)
    assert batch.labels_UL is not None
    assert torch.equal(batch.tokens_UL == 6, batch.labels_UL > 0)
    assert set(batch.labels_UL.unique().tolist()) == {0, 1, 2, 3, 4}
    np.testing.assert_array_equal(batch.unmasked().numpy(), study.tokens_FL[batch.asvs_U])
    share = (batch.labels_UL > 0).float().mean().item()
    assert 0.12 < share < 0.18


def test_fixed_masks_belong_to_the_asv_not_the_batch(study: Study) -> None:
    batches = FixedBatches(study, TASKS, np.array([*range(8), *range(6, 14)]), 8)
    one, two = batches[0], batches[1]
    shared = np.intersect1d(one.asvs_U, two.asvs_U)
    assert len(shared) > 5
    for asv in shared:
        i, j = (int((b.asvs_U == asv).nonzero()) for b in (one, two))
        assert torch.equal(one.tokens_UL[i] == 6, two.tokens_UL[j] == 6)


def test_unifrac_uses_the_rarefied_reads(study: Study) -> None:
    rows = np.array([1, 4, 8, 20])
    batch = make_batch(study, TASKS, rows, reads_draw=2)
    counts = np.zeros((4, len(study.table.feature_ids)), dtype=np.int64)
    for i in range(4):
        np.add.at(counts[i], batch.asvs_U[batch.slots_BS[i]], batch.counts_BS[i].long())
    from scipy.sparse import csr_array

    assert study.phylogeny is not None
    expected = pairwise(csr_array(counts), study.phylogeny, "unweighted")
    assert batch.distances_BB is not None
    np.testing.assert_allclose(batch.distances_BB, expected, rtol=0, atol=1e-7)


def test_the_token_limit_keeps_the_most_abundant_and_does_not_apply_to_unifrac(
    study: Study,
) -> None:
    plan = dataclasses.replace(TASKS, token_limit=5)
    whole, cut = (make_batch(study, p, np.arange(4)) for p in (TASKS, plan))
    assert cut.slots_BS.shape == (4, 5)
    assert whole.distances_BB is not None
    assert cut.distances_BB is not None
    assert torch.equal(whole.distances_BB, cut.distances_BB)
    most = whole.counts_BS.sort(dim=1, descending=True).values[:, :5]
    assert torch.equal(cut.counts_BS.sort(dim=1, descending=True).values, most)


def test_an_epoch_has_every_sample_once_in_its_own_order(study: Study) -> None:
    rows = np.arange(3, 30)
    batches = TrainingBatches(study, TASKS, rows, 8, fresh_reads=True)
    epochs = [[batches[(e, k)].rows_B.tolist() for k in range(batches.steps)] for e in (0, 1, 0)]
    assert epochs[0] == epochs[2]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == rows.tolist()
        assert {len(b) for b in epoch} <= {6, 7}


def test_workers_make_the_same_batches(study: Study) -> None:
    batches = TrainingBatches(study, TASKS, np.arange(20), 5, fresh_reads=True)
    made = []
    for workers, ahead in ((0, 2), (2, 1), (1, 4)):
        sampler = RunSampler(batches.steps, 6, (4, 2))
        loading = loader(batches, sampler, workers, False, ahead)
        assert loading.prefetch_factor == (ahead if workers else None)
        made.append([packed.to(torch.device("cpu")) for packed in loading])
    for one, *others in zip(*made, strict=True):
        for other in others:
            assert torch.equal(one.tokens_UL, other.tokens_UL)
            assert torch.equal(one.counts_BS, other.counts_BS)


@pytest.mark.parametrize("ranks", [SINGLE_RANK, Ranks(1, 2)])
def test_a_batch_travels_in_one_piece(study: Study, ranks: Ranks) -> None:
    """Also one without ASVs of its own, whose tensors are empty."""
    for rows in (np.arange(5), np.arange(1)):
        batch = shard_of(make_batch(study, TASKS, rows), ranks, True)
        (packed,) = loader([make_batch(study, TASKS, rows)], None, 1, False, 1, ranks, True)
        received = packed.to(torch.device("cpu"))
        assert type(received) is type(batch)
        storages = set()
        for name, value in vars(batch).items():
            copy = getattr(received, name)
            if isinstance(value, torch.Tensor):
                assert copy.dtype == value.dtype and torch.equal(copy, value), name
                storages.add(copy.untyped_storage().data_ptr())
            else:
                assert copy == value, name
        assert len(storages - {0}) == 1


def test_a_resumed_run_begins_where_it_stopped() -> None:
    last = [(3, k) for k in range(4)]
    for first, expected in (((2, 3), [(2, 3), *last]), ((3, 0), last), ((4, 0), [])):
        sampler = RunSampler(4, 4, first)
        assert (list(sampler), len(sampler)) == (expected, len(expected))


def test_fixed_batches_cover_all_rows(study: Study) -> None:
    batches = FixedBatches(study, PLAN, np.arange(11), 4)
    assert [len(batches[k].rows_B) for k in range(len(batches))] == [4, 4, 3]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.integers(0, 3000))
def test_rarefaction_draws_exactly_the_depth(counts: list[int], depth: int) -> None:
    array = np.array(counts, dtype=np.int32)
    drawn = rarefy(array, depth, "a.1", seed=5, draw=2)
    assert (drawn <= array).all()
    assert drawn.sum() == (min(depth, sum(counts)) if depth else sum(counts))
    np.testing.assert_array_equal(drawn, rarefy(array, depth, "a.1", seed=5, draw=2))


def test_rarefaction_is_unbiased() -> None:
    counts = np.array([600, 300, 100], dtype=np.int32)
    mean = np.mean([rarefy(counts, 100, "s", 0, draw) for draw in range(2000)], axis=0)
    np.testing.assert_allclose(mean, [60, 30, 10], atol=0.5)


def test_auto_depth_keeps_95_in_100() -> None:
    reads = np.arange(1, 101) * 10
    depth = auto_depth(reads)
    assert (reads >= depth).mean() >= 0.95
    assert (reads >= depth + 1).mean() < 0.95 + 0.01
    assert auto_depth(np.full(10, 90_000)) == 5000


@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.4])
def test_masks_cover_the_ratio(ratio: float) -> None:
    tokens = np.random.default_rng(0).integers(0, 6, size=(400, 150)).astype(np.uint8)
    chosen = choose_masked(tokens, ratio, np.random.default_rng(1))
    bases = (tokens >= 1) & (tokens <= 4)
    assert not chosen[~bases].any()
    assert abs(chosen[bases].mean() - ratio) < 0.015
