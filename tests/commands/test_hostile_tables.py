"""Damaged tables and artifacts, and unusual ids: one sentence and a status, or a whole run."""

from __future__ import annotations

import bz2
import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import biom
import numpy as np
import pytest

from aam.contract.errors import DataError
from tests.support.artifacts import write_artifact
from tests.support.bench import DATA, TABLE, Make, biom_file, check_refusal
from tests.support.commands import aam, read


def biom_json(path: Path, data: Any, matrix_type: str = "sparse") -> None:
    content = {
        "matrix_type": matrix_type, "shape": [2, 2], "data": data,
        "rows": [{"id": "ACGT"}, {"id": "ACCA"}], "columns": [{"id": "s1"}, {"id": "s2"}],
    }  # fmt: skip
    path.write_text(json.dumps(content))


# Tables


def index_of(value: int) -> Make:
    return lambda path: biom_file(path, indices=np.array([0, 1, 1, value, 0, 2]))


TABLES: dict[str, tuple[Make, str]] = {
    "an index beyond the features": (index_of(3_000_000), "indices must be < 3"),
    "a negative index": (index_of(-1), "indices must be >= 0"),
    "a feature twice": (index_of(1), "a sample has two values for one feature"),
    "indices that are not numbers": (
        lambda path: biom_file(path, indices=np.array([0, 1, 1, np.nan, 0, 2])),
        "'sample/matrix/indices' is not a vector of numbers",
    ),
    "ends that fall": (
        lambda path: biom_file(path, indptr=np.array([0, 4, 2, 6])), "samples overlap"
    ),
    "ends beyond 63 bits": (
        lambda path: biom_file(path, indptr=np.array([0, 2, 4, 2**63 + 6], dtype=np.uint64)),
        "different sizes",
    ),
    "json index beyond": (lambda path: biom_json(path, [[2, 0, 1]]), "index 2 exceeds"),
    "json negative index": (lambda path: biom_json(path, [[0, -1, 1]]), "negative axis"),
    "json NaN index": (lambda path: biom_json(path, [[0, float("nan"), 1]]), "not a whole number"),
    "json value twice": (lambda path: biom_json(path, [[0, 0, 1], [0, 0, 1]]), "two values"),
    "json integer beyond 64 bits": (lambda path: biom_json(path, [[0, 0, 2**70]]), "Counts beyond"),
    "json ragged": (lambda path: biom_json(path, [[1, 2], [3]], "dense"), "BIOM 1"),
    "json dense, short": (lambda path: biom_json(path, [[1, 2]], "dense"), "1 rows of values"),
    "json nested deeply": (lambda path: path.write_text("{" + '"a":[' * 200_000), "BIOM 1"),
    "integer beyond 64 bits": (
        lambda path: path.write_text(f"#OTU ID\ts1\nACGT\t{10**30}\n"), "Counts beyond 2147483647"
    ),
    "decimal commas": (
        lambda path: path.write_text("#OTU ID\ts1\nACGT\t1,5\n"), "write decimal points, not commas"
    ),
    "UTF-16": (lambda path: path.write_text(TABLE, "utf-16"), "is UTF-16"),
    "transposed": (
        lambda path: path.write_text(f"#OTU ID\t{'ACGT' * 9}\t{'ACGA' * 9}\ns1\t1\t2\n"),
        "The table is transposed: its samples are ASVs",
    ),
    "NUL bytes": (lambda path: path.write_bytes(bytes(5000)), "No feature table"),
    "a carriage return in a row": (
        lambda path: path.write_text("#OTU ID\ts1\ts2\nACGT\t1\r\t2\n"), "A row of another length"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, message = TABLES[name]
    make(folder / "hostile")
    given = ("--table", folder / "hostile")
    check_refusal(capsys, aam("prepare", *given, "--output", folder / "s.aam"), DATA, message)
    tree = ("--tree", folder / "tree.nwk", "--output", folder / "m.tsv")
    check_refusal(capsys, aam("unifrac", *given, *tree), DATA, message)
    assert {path.name for path in folder.iterdir()} == {
        "table.tsv", "tree.nwk", "metadata.tsv", "hostile"
    }  # fmt: skip


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_every_line_end_is_read(folder: Path, end: str) -> None:
    (folder / "other.tsv").write_text(TABLE.replace("\n", end), newline="")
    for number, table in enumerate(("table.tsv", "other.tsv")):
        given = ("--table", folder / table, "--tree", folder / "tree.nwk")
        assert aam("unifrac", *given, "--output", folder / f"{number}.tsv") == 0
    assert (folder / "0.tsv").read_bytes() == (folder / "1.tsv").read_bytes()


# Archives


def member(content: bytes, method: int) -> bytes:
    """An artifact whose payload is packed by a method and damaged in its middle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("u/VERSION", "QIIME 2")
        archive.writestr("u/metadata.yaml", "type: FeatureTable[Frequency]\n")
        archive.writestr("u/data/feature-table.biom", content, method)
    packed = {zipfile.ZIP_BZIP2: bz2.compress, zipfile.ZIP_DEFLATED: None}.get(method)
    whole = bytearray(stream.getvalue())
    start = whole.index(b"feature-table.biom") + 18
    size = len(packed(content)) if packed else 400
    for place in range(start + size // 4, start + size // 2):
        whole[place] ^= 0x55
    return bytes(whole)


@pytest.mark.parametrize(
    "method",
    [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA],
    ids=["zip", "bz2", "lzma"],
)
def test_corrupt_members_of_an_artifact(
    folder: Path, capsys: pytest.CaptureFixture[str], method: int
) -> None:
    content = np.random.default_rng(0).bytes(4000)
    (folder / "t.qza").write_bytes(member(content, method))
    status = aam("prepare", "--table", folder / "t.qza", "--output", folder / "s.aam")
    check_refusal(capsys, status, DATA, "The QIIME 2 artifact is damaged")


def test_no_flipped_byte_of_an_artifact_is_a_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    biom_file(folder / "t.biom")
    content = {"feature-table.biom": (folder / "t.biom").read_bytes()}
    whole = write_artifact(folder / "t.qza", "FeatureTable[Frequency]", content).read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(150):
        spoilt = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            spoilt[place] ^= int(rng.integers(1, 256))
        (folder / "t.qza").write_bytes(spoilt)
        args = ("--table", folder / "t.qza", "--output", folder / "s.aam", "--overwrite")
        assert aam("prepare", *args) in (0, DATA)
        assert "Traceback" not in capsys.readouterr().err


# --- ids and groups with quotes, tabs and line ends


ODD = ('"quoted"', 'in"side', '"start', "a\ttab", "a\nline", "a\rreturn", "'one'")


@pytest.mark.slow
def test_ids_and_groups_with_quotes_tabs_and_line_ends(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = biom.load_table(str(study_dir / "table.biom"))
    odd_of = dict(zip(table.ids(), ODD, strict=False))
    table.update_ids(odd_of, strict=False)
    with biom.util.biom_open(str(tmp_path / "table.biom"), "w") as stream:
        table.to_hdf5(stream, "test")
    with (study_dir / "metadata.tsv").open(newline="") as stream:
        header, types, *rows = csv.reader(stream, dialect="excel-tab")
    group = header.index("subject")
    groups = sorted({row[group] for row in rows})
    odd_group = dict(zip(groups, ODD, strict=False))
    for row in rows:
        row[0] = odd_of.get(row[0], row[0])
        row[group] = odd_group.get(row[group], row[group])
    with (tmp_path / "metadata.tsv").open("w", newline="") as stream:
        # The first column is quoted: a line that begins with # is a comment.
        csv.writer(stream, dialect="excel-tab", quoting=csv.QUOTE_ALL).writerows(
            [header, types, *rows]
        )
    given = ("--table", tmp_path / "table.biom", "--metadata", tmp_path / "metadata.tsv")
    column = ("--metadata-column", "ph", "--group-column", "subject")
    run, again = tmp_path / "run", tmp_path / "again"
    assert aam("train", *given, *column, "--folds", 3, "--output-dir", run) == 0
    shown = capsys.readouterr().err
    assert "No report" not in shown
    assert "ids with tabs or line ends cannot be written as the text format" in shown
    assert aam("train", *given, *column, "--splits", run / "splits.tsv", "--output-dir", again) == 0
    assert "No report" not in capsys.readouterr().err
    for name in ("splits.tsv", "predictions.tsv", "explanations.tsv"):
        assert (run / name).read_bytes() == (again / name).read_bytes()
    assert set(odd_of.values()) <= set(read(run / "splits.tsv")["sample-id"])
    assert set(odd_group.values()) <= set(read(run / "splits.tsv")["group"])
    assert aam("compare", run, again) == 0
    new = tmp_path / "new.tsv"
    assert aam("predict", "--model", run, *given[:2], "--output", new) == 0
    evaluated = ("--predictions", run / "predictions.tsv", "--metadata-column", "ph", *given[2:])
    assert aam("evaluate", *evaluated) == 0
    tree = (*given[:2], "--tree", study_dir / "tree.nwk")
    faith = ("--output", tmp_path / "faith.tsv", "--unifrac-metric", "faith_pd")
    assert aam("unifrac", *tree, *faith) == 0
    assert set(odd_of.values()) <= set(read(tmp_path / "faith.tsv")["sample-id"])
    assert aam("unifrac", *tree, "--output", tmp_path / "m.tsv") == DataError.status
    assert aam("unifrac", *tree, "--output", tmp_path / "m.h5") == 0
