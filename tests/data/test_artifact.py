"""QIIME 2 artifacts: detection by content, reading by type, and errors that name the type."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from aam.contract.errors import DataError
from aam.data.formats.artifact import is_artifact, read_payload
from tests.support.artifacts import write_artifact


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "tree.qza", "Phylogeny[Rooted]", {"tree.nwk": b"(a:1,b:2);"})


def test_other_files_are_not_artifacts(tmp_path: Path) -> None:
    text, archive = tmp_path / "a.qza", tmp_path / "b.npz"
    text.write_text("(a:1,b:2);")
    with zipfile.ZipFile(archive, "w") as other:
        other.writestr("arr_0.npy", b"")
    assert not is_artifact(text)
    assert not is_artifact(archive)
    assert read_payload(text, "tree.nwk", "Phylogeny") == b"(a:1,b:2);"


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b">a\nACGT\n"))
    assert read_payload(path, "dna-sequences.fasta", "FeatureData[Sequence") == b">a\nACGT\n"
    path.write_bytes(gzip.compress(b">a\nACGT\n" * 50)[:30])
    with pytest.raises(DataError, match=r"gzip file is damaged.*copy it again"):
        read_payload(path, "dna-sequences.fasta", "FeatureData[Sequence")


def test_a_zip_that_is_not_an_artifact_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.qza"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tree.nwk", "(a,b);")
    with pytest.raises(DataError, match=r"not a QIIME 2 artifact.*VERSION"):
        read_payload(path, "tree.nwk", "Phylogeny")


def test_an_artifact_is_recognized_by_its_content_or_its_name(tree: Path, tmp_path: Path) -> None:
    tree = tree.rename(tmp_path / "tree.nwk")
    assert is_artifact(tree)
    for semantic in ("Phylogeny", "Phylogeny[Rooted]"):
        assert read_payload(tree, "tree.nwk", semantic) == b"(a:1,b:2);"
    with pytest.raises(DataError, match=r"another type.*Phylogeny\[Rooted\].*FeatureTable"):
        read_payload(tree, "feature-table.biom", "FeatureTable")
    with pytest.raises(DataError, match=r"does not hold 'other.nwk'.*1 \(tree.nwk\)"):
        read_payload(tree, "other.nwk", "Phylogeny")
    tree = tree.rename(tmp_path / "tree.qza")
    tree.write_bytes(tree.read_bytes()[:80])
    assert is_artifact(tree)
    with pytest.raises(DataError, match=r"damaged.*copy it again"):
        read_payload(tree, "tree.nwk", "Phylogeny")
