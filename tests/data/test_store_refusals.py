"""Refusal of damaged stores, and of options that contradict a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.commands import aam, pretrain, train
from tests.support.stores import DATA, USAGE, make, refused, unifrac


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A copy of the store, to be damaged."""
    return Path(shutil.copytree(store, tmp_path / "copy.aam"))


def test_a_damaged_store_is_refused(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copy / "counts_asvs.npy"
    whole = file.read_bytes()
    content = bytearray(whole)
    content[-2] ^= 1
    file.write_bytes(content)
    phrases = ("The store is damaged", f"'{file}' has another checksum", "aam prepare")
    refused(capsys, aam("prepare", "--table", copy, "--verify"), DATA, *phrases)
    file.write_bytes(whole[:-4])
    refused(capsys, unifrac(copy, tmp_path), DATA, "The store is damaged", str(file))
    shutil.copy(copy / "counts_ends.npy", file)
    refused(capsys, unifrac(copy, tmp_path), DATA, f"'{file}' has the shape")
    file.unlink()
    refused(capsys, unifrac(copy, tmp_path), DATA, f"'{file}', No such file")
    refused(capsys, aam("prepare", "--table", copy, "--verify"), DATA, f"'{file}', No such file")


def test_a_changed_header_is_refused(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copy / "store.json"
    text = file.read_text()
    file.write_text(text.replace('"format": 2', '"format": 3').replace("0.1.0", "99.1"))
    phrases = ("of another version", "has format 3, made by aam 99.1", "reads format 2")
    refused(capsys, aam("prepare", "--table", copy, "--verify"), DATA, *phrases)
    refused(capsys, pretrain(tmp_path, tmp_path / "run", "--table", copy), DATA, *phrases)
    file.write_text(text[: len(text) // 2])
    refused(capsys, unifrac(copy, tmp_path), DATA, "The store is damaged", str(file))
    file.unlink()
    phrases = ("The store is incomplete", "has no store.json", "aam prepare")
    refused(capsys, unifrac(copy, tmp_path), DATA, *phrases)
    assert not (tmp_path / "run").exists()


def test_options_that_contradict_a_store_are_refused(
    study_dir: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = ("--tree", study_dir / "tree.nwk")
    status = pretrain(study_dir, tmp_path / "run", "--table", store, *tree)
    refused(capsys, status, USAGE, "own tree and sequences", "--tree", "leave them out")
    fasta = ("--sequences", study_dir / "tree.nwk")
    status = aam("predict", "--table", store, *fasta, "--model", store, "--output", tmp_path / "p")
    assert status != 0
    status = aam("train", "--table", store, *fasta, "--metadata", store, "--metadata-column",
                 "ph", "--output-dir", tmp_path / "b")  # fmt: skip
    refused(capsys, status, USAGE, "own tree and sequences", "--sequences")

    bare = tmp_path / "bare.aam"
    assert make(study_dir, bare) == 0
    refused(capsys, unifrac(bare, tmp_path), USAGE, "The store has no tree", str(bare))
    status = pretrain(study_dir, tmp_path / "run", "--table", bare)
    refused(capsys, status, USAGE, "UniFrac needs a phylogeny", "the store has no tree")
    status = train(study_dir, tmp_path / "run", "--table", bare, "--metadata", bare)
    refused(capsys, status, DATA, "The store holds no metadata", str(bare))
    assert not (tmp_path / "run").exists()
    table = study_dir / "table.biom"
    status = aam("unifrac", "--table", table, "--output", tmp_path / "m.tsv")
    refused(capsys, status, USAGE, "UniFrac needs a tree")
