"""Refusal of damaged stores, and of options that contradict a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from aam.contract.errors import DataError
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.metadata import read_metadata
from aam.data.store import Store
from aam.data.study import load_study
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


def read_whole(store: Path) -> None:
    load_study(TableOptions(table=store), PhylogenyOptions())
    read_metadata(store)


def test_a_flipped_bit_is_refused_by_what_reads_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for name in sorted(path.name for path in store.glob("*.npy")):
        copy = Path(shutil.copytree(store, tmp_path / name))
        content = bytearray((copy / name).read_bytes())
        # In the header, the first value and any other.
        for place in (int(rng.integers(10, 128)), 128, int(rng.integers(128, len(content)))):
            content[place] ^= 1 << int(rng.integers(8))
            (copy / name).write_bytes(content)
            with pytest.raises(DataError, match=f"The store is damaged: '{copy / name}'"):
                read_whole(copy)
            content = bytearray((store / name).read_bytes())
    copy = tmp_path / "counts.npy"
    (copy / "counts.npy").write_bytes((store / "counts.npy").read_bytes()[:-1] + b"\1")
    for words in (("inspect", "--table", copy), ("train", "--table", copy, "--metadata", store)):
        of_run = ("--metadata-column", "ph", "--output-dir", tmp_path / "run")
        status = aam(*words, *(of_run if words[0] == "train" else ()))
        shown = capsys.readouterr()
        assert status == DATA
        assert "The store is damaged" in shown.out + shown.err


@pytest.mark.parametrize("name", ["samples_ends", "counts_ends", "reads"])
def test_arrays_out_of_order_are_found_on_opening(copy: Path, name: str) -> None:
    values = np.load(copy / f"{name}.npy")
    values[3] = -values[3]
    np.save(copy / f"{name}.npy", values)
    with pytest.raises(DataError, match=f"The store is damaged: '{copy / name}.npy'"):
        Store(copy).open()


def test_a_changed_header_is_refused(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copy / "store.json"
    text = file.read_text()
    file.write_text(text.replace('"format": 2', '"format": 3').replace("0.1.0", "99.1"))
    phrases = ("has another version", "has format 3, made by aam 99.1", "reads format 2")
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
