"""Batches of training: order and balance, and memory of a pretraining from a store."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import biom
import h5py
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from aam.contract.options.groups import (
    LoopOptions,
    PhylogenyOptions,
    SplitOptions,
    TableOptions,
)
from aam.data.study import Study, load_study
from aam.environment import even_slice
from aam.evaluation.splits import split_samples, write_splits
from aam.evaluation.subjects import Subjects
from aam.network.batches import Batch, BatchPlan, TrainingBatches, balanced_order
from aam.network.inference.outputs import LoadedNetwork, encode_asvs
from aam.network.inference.stored_networks import DiversityScale, ModelConfig, StoredNetwork
from aam.network.model.network import Encoder
from aam.network.model.shape import NetworkShape
from aam.network.training.checkpoints import Row
from aam.network.training.finite import FiniteCheck
from aam.network.training.module import GradientStep, LossWeights, TrainingModule
from aam.network.training.observers import Observer
from aam.pipeline.labelled_study import choose_depth, deep_enough
from tests.support.commands import aam
from tests.support.rank_steps import train as train_loop

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


class Marked(TrainingBatches):
    """Training batches that leave a file for each that is loaded."""

    folder = Path()

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        batch = super().__getitem__(key)
        (self.folder / f"{key[0]}-{key[1]}").touch()
        return batch


class AwaitsNextEpoch(Observer):
    """Observer that waits at the end of each epoch for the first batch of the next one."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs = folder, epochs
        self.loaded: list[bool] = []

    def epoch_ends(self, history: Sequence[Row]) -> None:
        path, end = self.folder / f"{len(history)}-0", time.monotonic() + 20
        while len(history) < self.epochs and not path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        self.loaded.append(path.exists())


@pytest.mark.medium
def test_workers_load_the_next_epoch_while_this_one_ends(study: Study, tmp_path: Path) -> None:
    loop = LoopOptions(epochs=3, batch_size=6)
    torch.manual_seed(0)
    network = Encoder(NetworkShape(study.tokens_FL.shape[1], 8, 2, 1), "unweighted")
    task = TrainingModule(network, LossWeights(), loop, steps=12)
    batches = Marked(study, PLAN, np.arange(24), loop.batch_size, fresh_reads=True)
    batches.folder = tmp_path
    observer = AwaitsNextEpoch(tmp_path, loop.epochs)
    check = FiniteCheck(GradientStep(task, task), (), tmp_path, lambda name, fact: None)
    train_loop(check, batches, observers=[observer], workers=1)
    assert observer.loaded == [True, True, False]
    assert len(list(tmp_path.iterdir())) == 12


UNCAUGHT = """
import sys
from pathlib import Path
import numpy as np
from aam.network.batches import BatchPlan, FixedBatches
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.study import load_study
from aam.network.batches import loader
study = load_study(TableOptions(table=Path(sys.argv[1])), PhylogenyOptions())
batches = iter(loader(FixedBatches(study, BatchPlan(1, 100, 64), np.arange(8), 2), None, 2, False))
next(batches)
raise SystemExit(7)
"""


@pytest.mark.medium
def test_a_program_ends_whose_loader_is_in_use(study_dir: Path) -> None:
    """Workers ignore SIGTERM, by which Python ends its children."""
    argv = [sys.executable, "-c", UNCAUGHT, study_dir / "table.biom"]
    assert subprocess.run(argv, timeout=100, check=False).returncode == 7


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
        depth = choose_depth(study, "auto")
        study = study.take_samples(deep_enough(study, depth))
        ids = study.table.sample_ids
        (split, *_), _ = split_samples(SplitOptions(), 1, 0, ids, Subjects(np.arange(len(ids))))
        write_splits(tmp_path / "splits.tsv", ids, [split])
        batches = TrainingBatches(study, PLAN, split.train, 16, fresh_reads=True)
        for step in range(3):
            batches[0, step]
        loaded.write_embeddings(tmp_path / "embeddings.tsv", study, 16, vectors_FD)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    torch.manual_seed(0)
    shape, cpu = NetworkShape(30, 64, 2, 1), torch.device("cpu")
    network = Encoder(shape, "unweighted")
    config = ModelConfig("pretrain", shape, "unweighted", PLAN, DiversityScale(), None, {})
    loaded = LoadedNetwork(StoredNetwork(config, network.state_dict()), network, cpu, {})
    vectors_FD = encode_asvs(network, opened(stores[200]), cpu)
    peak(stores[2000])  # What is imported on the way counts once.
    growth = peak(stores[2000]) - peak(stores[200])
    assert growth < 300 * (2000 - 200)
