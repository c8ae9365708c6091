"""Folder of ASV vectors that commands share."""

from __future__ import annotations

import json
from pathlib import Path

import biom
import numpy as np
import pytest
import torch

from aam.contract.errors import DataError
from aam.model.attention import AUTO
from aam.model.nucleotides import NucleotideEncoder
from aam.model.shape import NetworkShape
from aam.training.asv_vectors import open_vectors
from tests.support.commands import aam, pretrain, train

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    assert train(study_dir, folder) == 0
    return folder


def predict(model: Path, table: Path, output: Path, *words: object) -> bytes:
    given = ("--model", model, "--table", table, "--output", output, "--device", "cpu")
    assert aam("predict", *given, "--overwrite", *words) == 0
    return output.read_bytes()


def printed(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_vectors_are_read_again_and_change_no_bit(
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
    assert predict(model, table, tmp_path / "p.tsv", *kept) == without
    assert f"ASV vectors: {asvs} of 90 " in printed(capsys)
    assert predict(model, table, tmp_path / "p.tsv", *kept) == without
    assert "ASV vectors: 90 of 90 (100%) were encoded before, of 90 " in printed(capsys)
    assert len(list(folder.glob("*/*/segment.json"))) == 2


def test_a_frozen_encoder_shares_the_vectors_with_embed(
    study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder, encoder = tmp_path / "vectors", tmp_path / "encoder"
    assert pretrain(study_dir, encoder, "--penalty", 0) == 0
    kept = ("--asv-vectors-dir", folder)
    words = ("--table", study_dir / "table.biom", "--model", encoder, "--device", "cpu")
    assert aam("embed", *words, *kept, "--output-dir", tmp_path / "embedding") == 0
    capsys.readouterr()
    frozen = ("--pretrained-encoder", encoder, "--freeze-base", *kept)
    assert train(study_dir, tmp_path / "run", *frozen) == 0
    assert "ASV vectors: 90 of 90" in printed(capsys)
    assert train(study_dir, tmp_path / "other", "--seed", 3) == 0
    words = ("--model", tmp_path / "other", "--table", study_dir / "table.biom", "--device", "cpu")
    assert aam("predict", *words, *kept, "--output", tmp_path / "p.tsv") == 0
    assert "ASV vectors: 0 of 90" in printed(capsys)
    assert len(list(folder.iterdir())) == 2


def network(seed: int = 0) -> NucleotideEncoder:
    torch.manual_seed(seed)
    shape = NetworkShape(embedding_dim=8, attention_heads=2, attention_layers=1, max_bp=12)
    return NucleotideEncoder(shape, AUTO, recompute=False)


def test_writers_at_once_and_lookups(tmp_path: Path) -> None:
    """Two processes that opened the same folder both add to it; nothing is lost."""
    one, two = (open_vectors(tmp_path, network()) for _ in range(2))
    one.add(np.array([5, -3, 5]), torch.tensor([[1.0] * 8, [2.0] * 8, [1.0] * 8]))
    two.add(np.array([7, -3]), torch.tensor([[3.0] * 8, [2.0] * 8]))
    found = torch.zeros(4, 8)
    known = open_vectors(tmp_path, network()).fill(np.array([7, 0, -3, 5]), found)
    assert known.tolist() == [True, False, True, True]
    assert found[:, 0].tolist() == [3, 0, 2, 1]
    assert not open_vectors(tmp_path, network(1)).segments


@pytest.mark.parametrize("damage", ["cut", "changed", "newer", "rubbish"])
def test_damaged_vectors_are_refused(tmp_path: Path, damage: str) -> None:
    open_vectors(tmp_path, network()).add(np.arange(9), torch.rand(9, 8))
    (header,) = tmp_path.glob("*/*/segment.json")
    vectors = header.with_name("vectors.npy")
    content = vectors.read_bytes()
    if damage == "cut":
        vectors.write_bytes(content[:-8])
    elif damage == "changed":
        vectors.write_bytes(content[:-8] + b"12345678")
    elif damage == "newer":
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": 2}))
    else:
        header.write_text("{}")
    with pytest.raises(DataError):
        open_vectors(tmp_path, network())
