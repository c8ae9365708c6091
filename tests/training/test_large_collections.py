"""Pretraining from a store: memory and the order of samples, whatever the number of samples."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import biom
import h5py
import numpy as np
import pytest
import torch

from aam.contract.options.study import PhylogenyOptions, SampleOptions, SplitOptions, TableOptions
from aam.data.batches import BatchPlan
from aam.data.splits import write_splits
from aam.data.study import Study, load_study
from aam.data.targets import split_samples
from aam.distributed.environment import Ranks
from aam.inference.outputs import encode_asvs, write_study_embeddings
from aam.model.network import Encoder
from aam.model.shape import NetworkShape
from aam.training.labelled_study import choose_depth, deep_enough
from aam.training.loader import EpochSampler, TrainingBatches, loader
from tests.support.commands import aam

PLAN = BatchPlan(1, 100, 1024, mask_ratio=0.15, metric="unweighted")
ASVS, RICHNESS = 256, 200


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Stores of 200 and of 2,000 samples of 200 of the same 256 ASVs, with a tree."""
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    letters = np.array(list("ACGT"))
    asvs = ["".join(row) for row in letters[rng.integers(4, size=(ASVS, 30))]]
    (folder / "tree.nwk").write_text(f"(({','.join(f'{name}:1' for name in asvs)}):1,outer:1);")
    found = {}
    for samples in (200, 2000):
        counts = np.zeros((samples, ASVS), dtype=np.int64)
        for row in counts:
            row[rng.permutation(ASVS)[:RICHNESS]] = rng.integers(1, 20, size=RICHNESS)
        ids = tuple(f"sample-{row:05d}" for row in range(samples))
        table = folder / f"{samples}.biom"
        with h5py.File(table, "w") as file:
            biom.Table(counts.T.astype(float), asvs, ids).to_hdf5(file, "a test")
        found[samples] = folder / f"{samples}.aam"
        args = ("--table", table, "--tree", folder / "tree.nwk", "--output", found[samples])
        assert aam("prepare", *args) == 0
    return found


def opened(store: Path) -> Study:
    return load_study(TableOptions(table=store), PhylogenyOptions())


@pytest.mark.medium
def test_memory_of_pretraining_is_that_of_lists_of_rows(
    stores: dict[int, Path], tmp_path: Path
) -> None:
    """From the store to its embeddings: counts of a sample take 1,600 bytes, its embedding 256."""

    def peak(store: Path) -> int:
        tracemalloc.start()
        study = opened(store)
        depth = choose_depth(study, SampleOptions())
        study = study.take_samples(deep_enough(study, depth))
        ids = study.table.sample_ids
        (split, *_), _ = split_samples(SplitOptions(), 1, 0, ids, None)
        write_splits(tmp_path / "splits.tsv", ids, [split])
        batches = TrainingBatches(study, PLAN, split.train, 16, fresh_reads=True)
        for step in range(3):
            batches[0, step]
        write_study_embeddings(tmp_path, network, study, PLAN, 16, vectors_FD)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    torch.manual_seed(0)
    network = Encoder(NetworkShape(30, 64, 2, 1), "unweighted")
    vectors_FD = encode_asvs(network, opened(stores[200]), torch.device("cpu"))
    peak(stores[2000])  # What is imported on the way counts once.
    growth = peak(stores[2000]) - peak(stores[200])
    assert growth < 300 * (2000 - 200)


def test_ranks_and_resumed_runs_see_the_samples_of_one_process(stores: dict[int, Path]) -> None:
    study = opened(stores[2000])
    rows = np.arange(0, 2000, 3)

    def seen(rank: int, size: int, resumed: tuple[int, int] = (0, 0)) -> list[list[int]]:
        batches = TrainingBatches(
            study, PLAN, rows, 16, True, ranks=Ranks(rank=rank, world_size=size)
        )
        sampler = EpochSampler(batches.steps)
        sampler.start(*resumed)
        first = iter(loader(batches, sampler, workers=0, pin=False))
        return [next(first).rows_B.tolist() for _ in range(4)]

    whole = seen(0, 1, (3, 0))
    shares = zip(seen(0, 2, (3, 0)), seen(1, 2, (3, 0)), strict=True)
    assert [one + two for one, two in shares] == whole
    assert seen(0, 1, (3, 2))[:2] == whole[2:]
    assert seen(0, 1, (4, 0)) != whole
