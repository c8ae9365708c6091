"""Shards of a UniFrac matrix: merging, resumption, refusals, memory, and readers of the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from skbio import DistanceMatrix

from aam.contract.errors import CannotCreate, DataError, MissingInput, UsageError
from aam.data.distances import read_distances
from aam.data.unifrac.tile_files import write_matrix
from aam.data.unifrac.tiles import TILE, Tiles
from tests.data.test_unifrac import phylogeny_of
from tests.support.commands import aam
from tests.support.trees import random_case

Capture = pytest.CaptureFixture[str]
COUNT = 4
SAMPLES = 2 * TILE + 40
"""Three blocks of samples, six tiles."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with table.biom and tree.nwk, and the store of both."""
    folder = tmp_path_factory.mktemp("many") / "study"
    args = ("--samples", SAMPLES, "--asvs", 150, "--length", 40, "--richness", 12)
    assert aam("simulate", "--output-dir", folder, *args) == 0
    given = ("--table", folder / "table.biom", "--tree", folder / "tree.nwk")
    assert aam("prepare", *given, "--output", folder / "study.aam") == 0
    return folder


def unifrac(study: Path, output: Path, *args: object) -> int:
    table = ("--table", study / "study.aam", "--output", output, "--device", "cpu")
    return aam("unifrac", *table, *args)


def all_shards(study: Path, output: Path, *args: object) -> Path:
    for number in range(1, COUNT + 1):
        assert unifrac(study, output, "--shard", f"{number}/{COUNT}", *args) == 0
    return output.with_name(f"{output.name}.shards")


def messages(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.medium
@pytest.mark.parametrize("metric", ["unweighted", "weighted_normalized", "generalized"])
def test_merged_shards_are_the_bytes_of_one_process(
    metric: str, study: Path, tmp_path: Path, capsys: Capture
) -> None:
    whole, merged = tmp_path / "whole.h5", tmp_path / "merged.h5"
    args = ("--unifrac-metric", metric)
    assert unifrac(study, whole, *args) == 0
    # Other limits of memory keep fewer blocks.
    all_shards(study, merged, *args, "--max-memory-gb", 0.001)
    assert not merged.exists()
    assert aam("merge", "--output", merged) == 0
    assert merged.read_bytes() == whole.read_bytes()
    assert f"{SAMPLES} samples" in messages(capsys)
    assert aam("merge", "--output", merged) == CannotCreate.status
    # The table itself instead of its store, and a matrix that is computed in memory.
    table = ("--table", study / "table.biom", "--tree", study / "tree.nwk", "--device", "cpu")
    assert aam("unifrac", *table, *args, "--output", tmp_path / "table.npy") == 0
    with h5py.File(merged) as file:
        np.testing.assert_array_equal(file["matrix"], np.load(tmp_path / "table.npy"))


def test_scikit_bio_reads_the_matrix(study: Path, tmp_path: Path) -> None:
    assert unifrac(study, tmp_path / "m.h5") == 0
    read = DistanceMatrix.read(str(tmp_path / "m.h5"), format="binary_dm")
    ours = read_distances(tmp_path / "m.h5")
    assert tuple(read.ids) == ours.ids
    assert len(ours.ids) == SAMPLES
    np.testing.assert_allclose(read.data, ours.values, atol=1e-7)


def test_a_complete_shard_is_kept_and_a_broken_one_computed_again(
    study: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "m.h5"
    folder = all_shards(study, output)
    first, second = folder / "1-of-4.h5", folder / "2-of-4.h5"
    times, content = first.stat().st_mtime_ns, second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    assert aam("merge", "--output", output) == DataError.status
    assert "A shard has changed since it was written" in messages(capsys)
    assert unifrac(study, output, "--shard", "1/4") == 0
    assert "Shard 1/4 is complete" in messages(capsys)
    assert first.stat().st_mtime_ns == times
    assert unifrac(study, output, "--shard", "2/4") == 0
    assert second.read_bytes() == content
    second.unlink()
    assert aam("merge", "--output", output) == MissingInput.status
    assert "run the command with --shard 2/4" in messages(capsys)
    assert unifrac(study, output, "--shard", "2/4", "--unifrac-metric", "weighted") == 0
    assert aam("merge", "--output", output) == DataError.status
    assert "different values of --unifrac-metric" in messages(capsys)
    assert unifrac(study, output, "--shard", "2/4") == CannotCreate.status
    assert unifrac(study, output, "--shard", "2/5") == CannotCreate.status
    assert not output.exists()


@pytest.mark.parametrize(
    ("output", "args", "sentence"),
    [
        ("m.h5", ("--shard", "7/7"), "6 tiles of 512 x 512; use 6 shards or fewer"),
        ("m.tsv", ("--shard", "1/2"), "end its name with .h5"),
        ("m.h5", ("--shard", "1/2", "--engine", "ssu"), "--engine ssu with --shard"),
        ("m.h5", ("--shard", "3/2"), "Not a shard"),
        ("p.tsv", ("--shard", "1/2", "--unifrac-metric", "faith_pd"), "end its name with .h5"),
    ],
)
def test_shards_that_do_not_exist_are_refused(
    output: str, args: tuple[str, ...], sentence: str, study: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert unifrac(study, tmp_path / output, *args) == UsageError.status
    assert sentence in messages(capsys)


@pytest.mark.medium
def test_memory_does_not_grow_with_the_matrix(tmp_path: Path) -> None:
    samples = 6 * TILE
    case = random_case(64, samples, 6, seed=8)
    tiles = Tiles(case.table, phylogeny_of(case), "weighted", max_bytes=0)
    ids = [f"s{row}" for row in range(samples)]
    tracemalloc.start()
    write_matrix(tmp_path / "m.h5", ids, tiles)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * samples**2 / 2
