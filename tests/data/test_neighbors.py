"""Nearest neighbors of samples by embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist

from aam.contract.errors import CannotCreate, DataError, MissingInput, UsageError
from aam.data.distances import DistanceMatrix
from aam.data.embeddings import read_embeddings
from aam.data.neighbors import agreement
from tests.support.commands import aam, pretrain, read

Capture = pytest.CaptureFixture[str]


def write(path: Path, ids: list[str], values: np.ndarray) -> Path:
    table = pd.DataFrame(values, columns=[f"e{k}" for k in range(values.shape[1])])
    table.insert(0, "sample-id", ids)
    table.to_csv(path, sep="\t", index=False)
    return path


def test_neighbors_are_the_nearest_of_all_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    collection, query = rng.normal(size=(300, 6)), rng.normal(size=(20, 6))
    query[3] = collection[7]
    many = write(tmp_path / "many.tsv", [f"c{k}" for k in range(300)], collection)
    ids = [f"c{k}" if k == 7 else f"q{k}" for k in range(20)]
    few = write(tmp_path / "few.tsv", ids, query)
    args = ("--embeddings", few, "--collection", many, "--neighbors", 4)
    assert aam("neighbors", *args, "--output", tmp_path / "n.tsv") == 0
    found = read(tmp_path / "n.tsv")
    distances = cdist(query, collection)
    distances[7, 7] = np.inf  # The sample c7 is in both tables.
    for k, name in enumerate(ids):
        own = found[found["sample-id"] == name]
        nearest = np.argsort(distances[k])[:4]
        assert own["neighbor-id"].tolist() == [f"c{j}" for j in nearest]
        assert own["rank"].tolist() == [1, 2, 3, 4]
        assert own["distance"].to_numpy() == pytest.approx(distances[k][nearest], abs=1e-3)
    assert found.loc[found["sample-id"] == "q3", "distance"].iloc[0] < 1e-3


@pytest.mark.medium
def test_embeddings_of_a_model_agree_with_unifrac(
    study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    table, tree = study_dir / "table.biom", study_dir / "tree.nwk"
    assert pretrain(study_dir, tmp_path / "run", "--tree", tree, "--epochs", 20) == 0
    args = ("--table", table, "--model", tmp_path / "run", "--device", "cpu")
    assert aam("embed", *args, "--output-dir", tmp_path / "e") == 0
    matrix = tmp_path / "u.tsv"
    assert aam("unifrac", "--table", table, "--tree", tree, "--output", matrix) == 0
    capsys.readouterr()
    args = ("--embeddings", tmp_path / "e/embeddings.tsv", "--neighbors", 5)
    more = ("--unifrac-matrix", matrix, "--output", tmp_path / "n.tsv")
    assert aam("neighbors", *args, *more) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "Agreement with UniFrac in 36 samples" in printed
    assert "(by chance 14%)" in printed
    assert len(read(tmp_path / "n.tsv")) == 36 * 5
    assert not (
        read(tmp_path / "n.tsv")["sample-id"] == read(tmp_path / "n.tsv")["neighbor-id"]
    ).any()
    assert aam("neighbors", *args, *more) == CannotCreate.status


def test_unifrac_is_computed_for_random_samples_of_the_collection(
    study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Of all samples, the agreement is that with the matrix of `aam unifrac`."""
    table, tree, store = study_dir / "table.biom", study_dir / "tree.nwk", tmp_path / "study.aam"
    assert aam("prepare", "--table", table, "--tree", tree, "--output", store) == 0
    assert aam("unifrac", "--table", store, "--output", tmp_path / "u.tsv") == 0
    ids = read(tmp_path / "u.tsv").iloc[:, 0].tolist()
    values = np.random.default_rng(1).normal(size=(len(ids), 4))
    few = write(tmp_path / "e.tsv", [*ids, "other"], np.vstack([values, values[:1]]))
    args = ("--embeddings", few, "--overwrite", "--output", tmp_path / "n.tsv")
    sentences = []
    for source in (
        ("--unifrac-matrix", tmp_path / "u.tsv"),
        ("--table", store, "--check-unifrac", 1000),
        ("--table", table, "--tree", tree, "--check-unifrac", 1000),
        ("--table", store, "--check-unifrac", 20),
    ):
        capsys.readouterr()
        assert aam("neighbors", *args, *source) == 0
        printed = " ".join(capsys.readouterr().err.split())
        sentences.append(printed[printed.index("Agreement") : printed.index("10 neighbors of")])
    assert sentences[0] == sentences[1] == sentences[2]
    assert f"in {len(ids)} samples" in sentences[0]
    assert "in 20 samples" in sentences[3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--check-unifrac", 5), "--check-unifrac 5 without --table; add --table"),
        (("--table", "table.biom"), "table.biom without --check-unifrac; add"),
        (("--check-unifrac", 5, "--table", "table.biom"), "UniFrac needs a phylogeny"),
        (
            ("--check-unifrac", 5, "--unifrac-matrix", "tree.nwk"),
            "--check-unifrac 5 with --unifrac-matrix",
        ),
    ],
)
def test_sources_of_unifrac_that_contradict_each_other_are_refused(
    study_dir: Path, tmp_path: Path, capsys: Capture, given: tuple[object, ...], message: str
) -> None:
    ids = [f"s{k}" for k in range(30)]
    few = write(tmp_path / "e.tsv", ids, np.random.default_rng(1).normal(size=(30, 4)))
    args = [study_dir / word if "." in str(word) else word for word in given]
    output = ("--output", tmp_path / "n.tsv")
    assert aam("neighbors", "--embeddings", few, *output, *args) == UsageError.status
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "n.tsv").exists()


def test_a_sample_called_na_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "e.tsv", ["NA", "s1"], np.array([[1.0, 2.0], [3.0, 4.0]]))
    found = read_embeddings(file)
    assert found.ids.tolist() == ["NA", "s1"]
    assert found.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_agreement_is_complete_for_the_distances_of_the_embeddings(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(30, 4))
    ids = [f"s{k}" for k in range(30)]
    embeddings = read_embeddings(write(tmp_path / "e.tsv", ids, values))
    same = agreement(embeddings, DistanceMatrix(tuple(ids), cdist(values, values)), 5)
    assert (same.samples, same.recall) == (30, 1)
    assert same.correlation == pytest.approx(1)
    other = np.random.default_rng(2).normal(size=(30, 4))
    chance = agreement(embeddings, DistanceMatrix(tuple(ids), cdist(other, other)), 5)
    assert chance.recall < 0.4
    assert abs(chance.correlation) < 0.3


@pytest.mark.parametrize(
    ("collection", "status"),
    [
        ("absent", MissingInput.status),
        ("rubbish", DataError.status),
        ("twice", DataError.status),
        ("infinite", DataError.status),
        ("narrow", DataError.status),
        ("small", DataError.status),
    ],
)
def test_refusals(tmp_path: Path, collection: str, status: int, capsys: Capture) -> None:
    values, ids = np.arange(24.0).reshape(12, 2), [f"s{k}" for k in range(12)]
    query = write(tmp_path / "query.tsv", ids, values)
    other = tmp_path / "other.tsv"
    if collection == "rubbish":
        other.write_text("sample-id\tage\nx\told\n")
    elif collection == "twice":
        write(other, [*ids[1:], "s1"], values)
    elif collection == "infinite":
        write(other, ids, np.where(values == 3, np.inf, values))
    elif collection == "narrow":
        write(other, ids, values[:, :1])
    elif collection == "small":
        write(other, ids[:5], values[:5])
    args = ("--embeddings", query, "--collection", other, "--output", tmp_path / "n.tsv")
    assert aam("neighbors", *args) == status
    assert not (tmp_path / "n.tsv").exists()


def test_embeddings_of_different_models_are_refused(study_dir: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        assert pretrain(study_dir, tmp_path / f"run{seed}", "--penalty", 0, "--seed", seed) == 0
        args = ("--table", study_dir / "table.biom", "--model", tmp_path / f"run{seed}")
        assert aam("embed", *args, "--device", "cpu", "--output-dir", tmp_path / f"e{seed}") == 0
    args = ("--embeddings", tmp_path / "e1/embeddings.tsv", "--output", tmp_path / "n.tsv")
    assert aam("neighbors", *args, "--collection", tmp_path / "e2/embeddings.tsv") == 65
    assert aam("neighbors", *args, "--collection", tmp_path / "e1/embeddings.tsv") == 0
