"""`aam example`: a complete study that every command reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import skbio

from aam.contract.errors import CannotCreate
from aam.data.metadata import read_metadata
from aam.data.table import read_table
from aam.data.taxonomy import read_taxonomy
from tests.support.commands import aam


def test_the_files_belong_together(tmp_path: Path) -> None:
    assert aam("example", "--output-dir", tmp_path / "study") == 0
    table = read_table(tmp_path / "study" / "table.biom")
    ids = table.sample_ids
    metadata = read_metadata(tmp_path / "study" / "metadata.tsv")
    assert (len(ids), len(set(metadata.groups("subject", ids)))) == (150, 50)
    assert all(3 < float(value) < 10 for value in metadata.columns["ph"])
    taxa = read_taxonomy(tmp_path / "study" / "taxonomy.tsv")
    assert {*taxa} == {*table.feature_ids}
    tree = skbio.TreeNode.read(str(tmp_path / "study" / "tree.nwk"))
    assert {*table.feature_ids} <= {tip.name for tip in tree.tips()}


def test_an_existing_study_is_replaced_on_request_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metadata.tsv").write_text("mine")
    assert aam("example", "--output-dir", tmp_path) == CannotCreate.status
    assert "metadata.tsv" in capsys.readouterr().err
    assert [place.name for place in tmp_path.iterdir()] == ["metadata.tsv"]
    assert aam("example", "--output-dir", tmp_path, "--overwrite") == 0
    assert (tmp_path / "metadata.tsv").read_text().startswith("sample-id\tph\t")
