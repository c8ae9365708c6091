"""Right input of other programs is read, and wrong input is refused with its own remedy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aam.contract.errors import DataError
from aam.data.distances import read_ordination, write_ordination
from aam.data.phylogeny import read_phylogeny
from aam.data.table import read_table
from aam.data.taxonomy import read_taxonomy
from aam.evaluation.splits import Split, read_splits, write_splits
from tests.support.commands import aam

Capture = pytest.CaptureFixture[str]
ODD = ("a\u0085b", "a\u2028b", "a\x0bb")


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s1\ts2\nf1\t1\t2\nf2\t3\t4\n", ""),
        ('"s1"\t"s2"\n"f1"\t1\t2\n"f2"\t3\t4\n', ""),
        ('""\t"s1"\t"s2"\n"f1"\t1\t2\n"f2"\t3\t4\n', ""),
        (
            "# Made by hand\n#OTU ID\ttaxonomy\ts1\ts2\r\nf1\tk\t1.0\t2\r\nf2\tk\t3\t4\n\n",
            "column 'taxonomy' of",
        ),
        (
            "#OTU ID\ts1\ts2\tTaxon\tConfidence\nf1\t1\t2\tk\t0.9\nf2\t3\t4\tk\t0.9\n",
            "columns 'Taxon', 'Confidence' of the table are not read",
        ),
    ],
)
def test_tables_of_other_programs(tmp_path: Path, capsys: Capture, text: str, message: str) -> None:
    found = read_table(written(tmp_path / "t.tsv", text))
    assert (found.sample_ids, found.feature_ids) == (("s1", "s2"), ("f1", "f2"))
    assert found.counts.toarray().tolist() == [[1, 3], [2, 4]]
    assert message in " ".join(capsys.readouterr().err.split())


def biom_1(path: Path, name: str = "s1", **changed: object) -> Path:
    content = {
        "columns": [{"id": name}], "rows": [{"id": "f1"}, {"id": "f2"}], "shape": [2, 1],
        "matrix_type": "sparse", "data": [[0, 0, 3]],
    }  # fmt: skip
    return written(path, json.dumps({**content, **changed}))


def test_biom_1_with_another_shape_and_half_characters(tmp_path: Path) -> None:
    assert read_table(biom_1(tmp_path / "a.biom")).counts.sum() == 3
    with pytest.raises(DataError, match=r"its shape is \[5, 9\], but it has 2 rows and 1 columns"):
        read_table(biom_1(tmp_path / "b.biom", shape=[5, 9]))
    with pytest.raises(DataError, match="A sample id is no text"):
        read_table(biom_1(tmp_path / "c.biom", name="a\ud800"))


@pytest.mark.parametrize("text", ["#OTU ID\ts1\ts2\n", "json"])
def test_inspect_of_a_table_without_features(tmp_path: Path, capsys: Capture, text: str) -> None:
    path = tmp_path / "t.biom"
    biom_1(path, rows=[], shape=[0, 1], data=[]) if text == "json" else written(path, text)
    assert aam("inspect", path) == DataError.status
    assert "The feature table has no reads" in " ".join(capsys.readouterr().out.split())


def test_ids_with_other_line_ends_are_read_back(tmp_path: Path) -> None:
    splits = (Split(np.array([0, 1]), np.array([2]), np.array([], dtype=np.int64)),)
    write_splits(tmp_path / "s.tsv", ODD, splits)
    found = read_splits(tmp_path / "s.tsv", ODD)[0]
    assert found[0].train.tolist() == [0, 1]
    write_ordination(tmp_path / "o.txt", ODD, np.eye(3)[:, :2], np.array([0.5, 0.25]))
    assert read_ordination(tmp_path / "o.txt")[0] == ODD
    taxa = "".join(f"{name}\td__A\n" for name in ODD)
    path = written(tmp_path / "t.tsv", f"Feature ID\tTaxon\n{taxa}")
    assert tuple(read_taxonomy(path)) == ODD


@pytest.mark.parametrize("name", ["{} x", "it's {}", "a_{}"])
def test_midpoint_rooting_keeps_labels(tmp_path: Path, name: str) -> None:
    tips = [name.format(chr(65 + k)) for k in range(5)]
    text = quoted = "((A:1,B:2):1,(C:3,D:4):0.5,E:1);"
    plain = written(tmp_path / "plain.nwk", text)
    for k, tip in enumerate(tips):
        label = tip.replace("'", "''")
        quoted = quoted.replace(f"{chr(65 + k)}:", f"'{label}':")
    one, _ = read_phylogeny(plain, list("ABCDE"), root_at_midpoint=True)
    other, _ = read_phylogeny(written(tmp_path / "q.nwk", quoted), tips, root_at_midpoint=True)
    for field in ("lengths_G", "indptr", "indices"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
