"""Folder of ASV vectors that commands share."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Literal

import biom
import numpy as np
import pandas as pd
import pytest
import torch

from aam.contract.errors import DataError
from aam.contract.options.groups import AsvVectorOptions
from aam.network.inference.outputs import open_vectors
from aam.network.model.attention import AUTO
from aam.network.model.encoders import NucleotideEncoder
from aam.network.model.shape import NetworkShape
from tests.support.commands import aam, pretrain, train

Capture = pytest.CaptureFixture[str]
USAGE, CANNOT_CREATE = 64, 73


@pytest.fixture(scope="module")
def model(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    assert train(study_dir, folder) == 0
    return folder


def predict(model: Path, table: Path, output: Path, *args: object) -> bytes:
    given = ("--model", model, "--table", table, "--output", output, "--device", "cpu")
    assert aam("predict", *given, "--overwrite", *args) == 0
    return output.read_bytes()


def printed(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


def assert_same(found: bytes, expected: bytes) -> None:
    """A vector may depend by rounding on its place among others (docs/versions.md)."""
    tables = [pd.read_csv(io.BytesIO(content), sep="\t") for content in (found, expected)]
    pd.testing.assert_frame_equal(*tables, rtol=1e-5, atol=1e-6)


def test_vectors_are_read_again_and_change_nothing(
    model: Path, study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    table, folder = study_dir / "table.biom", tmp_path / "vectors"
    kept = ("--asv-vectors-dir", folder)
    without = predict(model, table, tmp_path / "p.tsv")
    few = biom.load_table(str(table))
    few.filter(few.ids()[:6], inplace=True)
    with biom.util.biom_open(str(tmp_path / "few.biom"), "w") as stream:
        few.remove_empty(axis="observation", inplace=False).to_hdf5(stream, "few samples")
    capsys.readouterr()
    predict(model, tmp_path / "few.biom", tmp_path / "few.tsv", *kept)
    first = printed(capsys)
    assert "ASV vectors: 0 of " in first
    asvs = int(first.split("ASV vectors: 0 of ")[1].split()[0])
    assert_same(predict(model, table, tmp_path / "p.tsv", *kept), without)
    assert f"ASV vectors: {asvs} of 90 " in printed(capsys)
    assert_same(predict(model, table, tmp_path / "p.tsv", *kept), without)
    assert "ASV vectors: 90 of 90 (100%) were encoded before; " in printed(capsys)
    assert len(list(folder.glob("*/*/segment.json"))) == 2


@pytest.mark.medium
def test_a_frozen_encoder_shares_its_vectors_with_embed_and_all_folds(
    study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder, encoder = tmp_path / "vectors", tmp_path / "encoder"
    assert pretrain(study_dir, encoder, "--penalty", 0) == 0
    kept = ("--asv-vectors-dir", folder)
    args = ("--table", study_dir / "table.biom", "--model", encoder, "--device", "cpu")
    assert aam("embed", *args, *kept, "--output-dir", tmp_path / "embedding") == 0
    capsys.readouterr()
    frozen = ("--pretrained-encoder", encoder, "--freeze-base", *kept)
    assert train(study_dir, tmp_path / "run", *frozen) == 0
    assert "ASV vectors: 90 of 90" in printed(capsys)
    assert train(study_dir, tmp_path / "folds", *frozen, "--folds", 2) == 0
    assert printed(capsys).count("ASV vectors: 90 of 90") == 1  # for both folds
    args = ("--model", tmp_path / "folds", "--table", study_dir / "table.biom", "--device", "cpu")
    assert aam("predict", *args, *kept, "--output", tmp_path / "folds.tsv") == 0
    assert printed(capsys).count("ASV vectors: 90 of 90") == 1
    assert train(study_dir, tmp_path / "other", "--seed", 3) == 0
    args = ("--model", tmp_path / "other", "--table", study_dir / "table.biom", "--device", "cpu")
    assert aam("predict", *args, *kept, "--output", tmp_path / "p.tsv") == 0
    assert "ASV vectors: 0 of 90" in printed(capsys)
    assert len(list(folder.iterdir())) == 2


def network(seed: int = 0) -> NucleotideEncoder:
    torch.manual_seed(seed)
    shape = NetworkShape(embedding_dim=8, attention_heads=2, attention_layers=1, max_bp=12)
    return NucleotideEncoder(shape, AUTO, recompute=False)


def opened(folder: Path, dtype: Literal["float32", "float16"] = "float32", seed: int = 0) -> Any:
    return open_vectors(
        AsvVectorOptions(asv_vectors_dir=folder, asv_vectors_dtype=dtype), network(seed)
    )


def test_writers_at_once_and_lookups(tmp_path: Path) -> None:
    """Two processes that opened the same folder both add to it; nothing is lost."""
    one, two = (opened(tmp_path) for _ in range(2))
    one.add(np.array([5, -3, 5]), torch.tensor([[1.0] * 8, [2.0] * 8, [1.0] * 8]))
    two.add(np.array([7, -3]), torch.tensor([[3.0] * 8, [2.0] * 8]))
    found = torch.zeros(4, 8)
    known = opened(tmp_path).fill(np.array([7, 0, -3, 5]), found)
    assert known.tolist() == [True, False, True, True]
    assert found[:, 0].tolist() == [3, 0, 2, 1]
    assert not opened(tmp_path, seed=1).segments


def test_vectors_beyond_float16_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exceed float16: the largest value is 70000"):
        opened(tmp_path, "float16").add(np.arange(1), torch.full((1, 8), 7e4))
    assert not list(tmp_path.rglob("*.npy"))


def test_predictions_with_float16_do_not_depend_on_the_folder(
    model: Path, study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    table = study_dir / "table.biom"
    half = ("--asv-vectors-dtype", "float16", "--asv-vectors-dir")
    full = predict(model, table, tmp_path / "full.tsv", "--asv-vectors-dir", tmp_path / "vectors")
    read = predict(model, table, tmp_path / "p.tsv", *half, tmp_path / "vectors")
    encoded = predict(model, table, tmp_path / "p.tsv", *half, tmp_path / "others")
    assert encoded == read != full
    capsys.readouterr()
    args = ("--model", model, "--table", table, "--output", tmp_path / "q.tsv")
    assert aam("predict", *args, *half[:-1], "--device", "cpu") == USAGE
    assert "--asv-vectors-dtype float16 without --asv-vectors-dir; add" in printed(capsys)


@pytest.mark.parametrize("damage", ["cut", "newer"])
def test_damaged_vectors_are_refused(tmp_path: Path, damage: str) -> None:
    opened(tmp_path).add(np.arange(9), torch.rand(9, 8))
    (header,) = tmp_path.glob("*/*/segment.json")
    vectors = header.with_name("vectors.npy")
    content = vectors.read_bytes()
    if damage == "cut":
        vectors.write_bytes(content[:-8])
    else:
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": 2}))
    with pytest.raises(DataError):
        opened(tmp_path)
