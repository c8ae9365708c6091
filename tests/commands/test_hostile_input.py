"""Hostile input: one sentence that names the cause, its exit status, bounded memory and time.

Every case makes its file itself. The worst ones run in a process of their own whose address space
is limited, so that a reader that believes what a small file describes fails the test.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from aam.data.rarefaction import rarefy
from tests.support.artifacts import write_artifact
from tests.support.commands import aam

ROOT = Path(__file__).parents[2]
USAGE, DATA, NO_INPUT, CANNOT_CREATE = 64, 65, 66, 73
SECONDS = 90
ADDRESS_SPACE = 3 << 30
TABLE = "#OTU ID\ts1\ts2\ts3\nACGT\t5\t0\t1\nACCA\t1\t2\t0\nGGTT\t0\t3\t4\n"
TREE = "((ACGT:1,ACCA:2):1,GGTT:3);"
METADATA = "sample-id\tx\ns1\t1\ns2\t2\ns3\t3\n"

Make = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small study."""
    (tmp_path / "table.tsv").write_text(TABLE)
    (tmp_path / "tree.nwk").write_text(TREE)
    (tmp_path / "metadata.tsv").write_text(METADATA)
    return tmp_path


def biom_file(path: Path, **changed: Any) -> None:
    """Write BIOM 2.1 of 3 samples x 3 features; `changed` replaces arrays of the sample's matrix.

    A shape in the place of an array makes a dataset that is declared and never written.
    """
    arrays = {"data": np.array([5.0, 1, 2, 3, 1, 4]), "indices": np.array([0, 1, 1, 2, 0, 2]),
              "indptr": np.array([0, 2, 4, 6])}  # fmt: skip
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        file.create_dataset("sample/ids", data=["s1", "s2", "s3"], dtype=text)
        file.create_dataset("observation/ids", data=["ACGT", "ACCA", "GGTT"], dtype=text)
        for name, array in (arrays | changed).items():
            if isinstance(array, tuple):
                options = {"chunks": (1 << 20,), "compression": "gzip"}
                file.create_dataset(f"sample/matrix/{name}", array, "i8", **options)
            else:
                file.create_dataset(f"sample/matrix/{name}", data=array)


def biom_json(path: Path, data: Any, matrix_type: str = "sparse") -> None:
    content = {
        "matrix_type": matrix_type, "shape": [2, 2], "data": data,
        "rows": [{"id": "ACGT"}, {"id": "ACCA"}], "columns": [{"id": "s1"}, {"id": "s2"}],
    }  # fmt: skip
    path.write_text(json.dumps(content))


def refused(capsys: pytest.CaptureFixture[str], status: int, expected: int, words: str) -> None:
    shown = capsys.readouterr().err
    assert status == expected, shown
    *_, sentence = shown.splitlines()
    assert sentence.startswith("aam: "), shown
    assert sentence.endswith((".", "?"))
    assert words in sentence
    assert "Traceback" not in shown


# Tables


def index_of(value: int) -> Make:
    return lambda path: biom_file(path, indices=np.array([0, 1, 1, value, 0, 2]))


TABLES: dict[str, tuple[Make, str]] = {
    "an index beyond the features": (index_of(3_000_000), "feature index 3000000 in a table of 3"),
    "a negative index": (index_of(-1), "feature index -1 in a table of 3 features"),
    "an index beyond 32 bits": (index_of(2**32), "feature index 4294967296"),
    "a feature twice": (index_of(1), "a sample has two values for one feature"),
    "indices that are not numbers": (
        lambda path: biom_file(path, indices=np.array([0, 1, 1, np.nan, 0, 2])),
        "indices of the type float64",
    ),
    "ends that fall": (
        lambda path: biom_file(path, indptr=np.array([0, 4, 2, 6])), "samples overlap"
    ),
    "ends beyond 63 bits": (
        lambda path: biom_file(path, indptr=np.array([0, 2, 4, 2**63 + 6], dtype=np.uint64)),
        "different sizes",
    ),
    "more ends than samples": (
        lambda path: biom_file(path, indptr=np.array([0, 2, 4, 5, 6])), "different sizes"
    ),
    "json index beyond": (lambda path: biom_json(path, [[2, 0, 1]]), "row index 2"),
    "json negative index": (lambda path: biom_json(path, [[0, -1, 1]]), "column index -1"),
    "json NaN index": (lambda path: biom_json(path, [[0, float("nan"), 1]]), "column index nan"),
    "json fractional index": (lambda path: biom_json(path, [[0.5, 0, 1]]), "row index 0.5"),
    "json value twice": (lambda path: biom_json(path, [[0, 0, 1], [0, 0, 1]]), "two values"),
    "json integer beyond 64 bits": (lambda path: biom_json(path, [[0, 0, 2**70]]), "Counts beyond"),
    "json integer beyond a float": (lambda path: biom_json(path, [[0, 0, 10**400]]), "BIOM 1"),
    "json ragged": (lambda path: biom_json(path, [[1, 2], [3]], "dense"), "BIOM 1"),
    "json dense, short": (lambda path: biom_json(path, [[1, 2]], "dense"), "1 rows of values"),
    "json nested deeply": (lambda path: path.write_text("{" + '"a":[' * 200_000), "BIOM 1"),
    "integer beyond 64 bits": (
        lambda path: path.write_text(f"#OTU ID\ts1\nACGT\t{10**30}\n"), "Counts beyond 2147483647"
    ),
    "decimal commas": (
        lambda path: path.write_text("#OTU ID\ts1\nACGT\t1,5\n"), "write decimal points, not commas"
    ),
    "UTF-16": (lambda path: path.write_text(TABLE, "utf-16"), "neither HDF5 nor UTF-8"),
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
    make, words = TABLES[name]
    make(folder / "hostile")
    given = ("--table", folder / "hostile")
    refused(capsys, aam("prepare", *given, "--output", folder / "s.aam"), DATA, words)
    tree = ("--tree", folder / "tree.nwk", "--output", folder / "m.tsv")
    refused(capsys, aam("unifrac", *given, *tree), DATA, words)
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
    refused(capsys, status, DATA, "The QIIME 2 artifact is damaged")


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
        words = ("--table", folder / "t.qza", "--output", folder / "s.aam", "--overwrite")
        assert aam("prepare", *words) in (0, DATA)
        assert "Traceback" not in capsys.readouterr().err


# Bombs: a limited process, as what they describe may not be allocated


def limited(*words: object) -> tuple[int, str]:
    """Run `aam` in a process of bounded memory and time; return exit status and messages."""
    return limited_python("-m", "aam.cli", *words)


def limited_python(*words: object) -> tuple[int, str]:
    """Run Python in a process of bounded memory and time; return exit status and messages."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT, env=variables, preexec_fn=limit, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    return done.returncode, done.stderr


def zeros(stream: Any) -> None:
    """Write a GiB of zeros."""
    for _ in range(64):
        stream.write(bytes(1 << 24))


def gzip_bomb(path: Path) -> None:
    with gzip.open(path, "wb", 1) as stream:
        zeros(stream)


def qza_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("u/VERSION", "QIIME 2")
        archive.writestr("u/metadata.yaml", "type: FeatureTable[Frequency]\n")
        with archive.open("u/data/feature-table.biom", "w") as stream:
            zeros(stream)


def hdf5_ids(path: Path) -> None:
    """Declare 10**12 ids, none of which is written."""
    biom_file(path)
    with h5py.File(path, "a") as file:
        del file["sample/ids"]
        file.create_dataset("sample/ids", (10**12,), h5py.string_dtype(), chunks=(1 << 16,))


def long_row(path: Path) -> None:
    with gzip.open(path, "wb", 1) as stream:
        stream.write(b"#OTU ID\ts1\nACGT")
        for _ in range(100):
            stream.write(b"\t0" * (1 << 20))


BOMBS: dict[str, tuple[Make, str]] = {
    "gzip": (gzip_bomb, "does not fit in memory"),
    "artifact": (qza_bomb, "does not fit in memory"),
    "7 TB of entries": (
        lambda path: biom_file(path, data=(10**12,), indices=(10**12,)), "of different sizes"
    ),
    "7 TB of ends": (lambda path: biom_file(path, indptr=(10**12,)), "of different sizes"),
    "10^12 ids": (hdf5_ids, "does not fit in memory"),
    "a row of 100 million cells": (long_row, "does not fit in memory"),
}  # fmt: skip


def npy(path: Path, shape: tuple[int, ...], dtype: str = "<f8") -> None:
    """Write the header of an array and 80 bytes of its content."""
    with path.open("wb") as stream:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(bytes(80))


def npz_bomb(path: Path) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 13, 1 << 14)}
    deflated = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with deflated as archive, archive.open("matrix.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        zeros(stream)


def hdf5_matrix(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", (10**6, 10**6), "f4", chunks=(1000, 1000), compression="gzip")


def wide_matrix(path: Path) -> None:
    path.write_text("\t" + "\t".join(f"s{n}" for n in range(300_000)) + "\ns0\t0\n")


MATRICES: dict[str, tuple[Make, str]] = {
    "npy": (lambda path: npy(path, (10**6, 10**6)), "is cut off or not an array"),
    "npy beyond 64 bits": (lambda path: npy(path, (10**12, 10**12)), "is cut off or not an array"),
    "npy of a negative size": (lambda path: npy(path, (-1, -4)), "cannot be read"),
    "npz": (npz_bomb, "does not fit in memory"),
    "hdf5": (hdf5_matrix, "does not fit in memory"),
    "gzip": (gzip_bomb, "does not fit in memory"),
    "300,000 columns": (wide_matrix, "has 300000 columns and 1 rows"),
}


@pytest.mark.parametrize("name", MATRICES)
def test_bombs_of_matrices(folder: Path, name: str) -> None:
    make, words = MATRICES[name]
    make(folder / "bomb")
    code = "import sys; from pathlib import Path; from aam.data.distances import read_distances\n"
    code += "read_distances(Path(sys.argv[1]))"
    _, shown = limited_python("-c", code, folder / "bomb")
    *_, last = shown.splitlines()
    assert last.startswith("aam.contract.errors.DataError"), shown
    assert words in last


def test_a_bomb_of_a_matrix_in_a_command(folder: Path) -> None:
    npy(folder / "bomb.npy", (10**6, 10**6))
    given = ["--table", folder / "table.tsv", "--output-dir", folder / "run", "--device", "cpu"]
    status, shown = limited("pretrain", *given, "--unifrac-matrix", folder / "bomb.npy")
    assert status == DATA, shown
    assert "is cut off or not an array" in shown
    assert "Traceback" not in shown


TEXTS: dict[str, tuple[str, Make, str]] = {
    "gzipped tree": ("--tree", gzip_bomb, "does not fit in memory"),
    "gzipped sequences": ("--sequences", gzip_bomb, "does not fit in memory"),
    "gzipped metadata": ("--metadata", gzip_bomb, "does not fit in memory"),
    "tree of 10^9 ancestors": ("--tree", lambda path: deep_tree(path), "Features of the table"),
}


def deep_tree(path: Path) -> None:
    closed = "".join(f",t{tip}:1):1" for tip in range(200_000))
    path.write_text("(" * 200_000 + "ACGT:1" + closed.removesuffix(":1") + ";")


@pytest.mark.parametrize("name", TEXTS)
def test_bombs_of_texts(folder: Path, name: str) -> None:
    flag, make, words = TEXTS[name]
    make(folder / "bomb")
    given = ["--table", folder / "table.tsv", "--output", folder / "s.aam"]
    status, shown = limited("prepare", *given, flag, folder / "bomb")
    assert status == DATA, shown
    assert words in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("command", ["prepare", "unifrac"])
def test_bombs(folder: Path, name: str, command: str) -> None:
    make, words = BOMBS[name]
    make(folder / "bomb")
    given = ["--table", folder / "bomb", "--output", folder / "out.tsv"]
    if command == "unifrac":
        given += ["--tree", folder / "tree.nwk", "--device", "cpu"]
    status, shown = limited(command, *given)
    assert status == DATA, shown
    assert words in shown
    assert "Traceback" not in shown
    assert not (folder / "out.tsv").exists()


# Small files that are wrong in themselves


FILES: dict[str, tuple[str, str | bytes, str]] = {
    "tree of lengths that overflow": ("--tree", TREE.replace("1", "1e308"), "too large"),
    "tree of 1e37": ("--tree", TREE.replace("1", "1e37"), "branch lengths of the tree are too"),
    "tree without a root": ("--tree", "(ACGT:1,ACCA:1,GGTT:1);", "The tree is not rooted"),
    "tree in UTF-16": ("--tree", TREE.encode("utf-16"), "is UTF-16"),
    "sequences in UTF-16": ("--sequences", ">ACGT\nACGT\n".encode("utf-16"), "is UTF-16"),
    "matrix in UTF-16": ("--unifrac-matrix", "\ts1\ns1\t0\n".encode("utf-16"), "is UTF-16"),
    "matrix of a long cell": (
        "--unifrac-matrix", "\ts1\ns1\t" + "0" * 200_000 + "\n", "field larger than field limit"
    ),
    "matrix of NUL": ("--unifrac-matrix", "\ts1\ns1\t0\0\n", "is"),
    "splits in UTF-16": (
        "--splits", "sample_id\tfold\tsplit\tgroup\n".encode("utf-16"), "is UTF-16"
    ),
    "splits of a long number": (
        "--splits",
        "sample-id\tfold\tsplit\tgroup\n" + f"s1\t{'9' * 9999}\ttrain\t\n",
        "no validation or test sample",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag, content, words = FILES[name]
    data = content.encode() if isinstance(content, str) else content
    (folder / "hostile").write_bytes(data)
    given = ["--table", folder / "table.tsv", "--output-dir", folder / "run", "--device", "cpu"]
    if flag != "--unifrac-matrix":
        given += ["--tree", folder / "tree.nwk"]
    refused(capsys, aam("pretrain", *given, flag, folder / "hostile"), DATA, words)
    assert not (folder / "run").exists()


# Inputs that are no regular files


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


SPECIAL = ["/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/environ", "PIPE"]


@pytest.mark.parametrize("flag", ["--table", "--tree", "--metadata", "--sequences"])
@pytest.mark.parametrize("place", SPECIAL)
def test_devices_and_pipes(
    folder: Path, pipe: Path, capsys: pytest.CaptureFixture[str], flag: str, place: str
) -> None:
    given = ["--table", folder / "table.tsv", "--output", folder / "s.aam"]
    given += [flag, pipe if place == "PIPE" else place]
    refused(capsys, aam("prepare", *given), NO_INPUT, "is not a regular file")


# Outputs


OUTPUTS: dict[str, tuple[str, str]] = {
    "a name that is too long": ("x" * 300 + ".tsv", "too long"),
    "a path that is too long": ("/".join(["d" * 100] * 50) + "/m.tsv", "File name too long"),
    "a folder": ("full", "is a folder"),
    "a file as folder": ("table.tsv/m.tsv", "The folder cannot be created"),
}


@pytest.mark.parametrize("command", ["unifrac", "prepare", "simulate"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str) -> None:
    output, words = OUTPUTS[name]
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("mine")
    if command == "simulate":
        (folder / "full" / "metadata.tsv").mkdir()
        given = ["--output-dir", folder / output, "--samples", 3, "--asvs", 9, "--richness", 2]
        given += ["--subjects", 3, "--depth", 20]
    else:
        given = ["--table", folder / "table.tsv", "--tree", folder / "tree.nwk"]
        given += ["--output", folder / output]
        if command == "unifrac" and name == "a folder":
            (folder / "full").rename(folder / "full.tsv")
            given[-1] = folder / "full.tsv"
    refused(capsys, aam(command, *given, "--overwrite"), CANNOT_CREATE, words)
    [mine] = folder.glob("full*/mine.txt")
    assert mine.read_text() == "mine"


# Paths that are something else, and options at their extremes


def test_a_home_is_expanded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    given = ("--table=~/table.tsv", "--tree", "~/tree.nwk")
    assert aam("unifrac", *given, "--output=~/m.tsv") == 0
    assert (folder / "m.tsv").exists()
    assert not (folder / "~").exists()
    status = aam("unifrac", *given, "--output", "~nobody-of-this-name/m.tsv")
    refused(capsys, status, USAGE, "No such user: --output ~nobody-of-this-name/m.tsv")


@pytest.mark.parametrize(
    "address", ["http://x/t.biom", "http:/x", "file:x", "FILE:///x", "s3://x/y"]
)
def test_an_address_is_not_a_path(
    folder: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    table = ("--table", folder / "table.tsv")
    refused(capsys, aam("prepare", *table, "--output", address), USAGE, "An address instead")
    status = aam("prepare", f"--table={address}", "--output", folder / "s.aam")
    refused(capsys, status, USAGE, f"--table {address}")


EXTREMES = [
    ("simulate", "--samples 1000000000000", "give 2 to 10000000"),
    ("simulate", "--samples 10000000 --asvs 10000000 --length 10000", "would take days"),
    ("simulate", "--asvs 10000000 --samples 50 --length 10000 --subjects 5", "does not fit in mem"),
    ("simulate", "--samples 10000000 --asvs 100000 --richness 100000 --depth 100000", "memory"),
    ("simulate", "--depth 1000000000000000000000", "--depth 1000000000000000000000"),
    ("simulate", "--seed -1", "--seed -1"),
    ("simulate", "--length 1000000000", "--length 1000000000"),
    ("unifrac", "--max-memory-gb 1e308", "--max-memory-gb 1e+308"),
    ("unifrac", "--max-memory-gb inf", "--max-memory-gb inf"),
    ("unifrac", "--max-memory-gb nan", "--max-memory-gb nan"),
    ("prepare", "--max-memory-gb -1", "--max-memory-gb -1.0"),
    ("baseline", "--n-estimators 1000000000", "--n-estimators 1000000000"),
    ("baseline", "--n-jobs 1000000", "--n-jobs 1000000"),
    ("baseline", "--min-samples-leaf 10000000000000000000000", "--min-samples-leaf"),
    ("baseline", "--max-features 1e300", "--max-features 1e+300"),
    ("baseline", "--seed 10000000000000000000000", "--seed 10000000000000000000000"),
    ("baseline", "--test-size 1e300", "--test-size 1e+300"),
]


@pytest.mark.parametrize(("command", "words", "sentence"), EXTREMES)
def test_extremes(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, words: str, sentence: str
) -> None:
    given: dict[str, list[object]] = {
        "simulate": ["--output-dir", folder / "out"],
        "unifrac": ["--table", folder / "table.tsv", "--tree", folder / "tree.nwk",
                    "--output", folder / "out.tsv"],
        "prepare": ["--table", folder / "table.tsv", "--output", folder / "out.aam"],
        "baseline": ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv",
                     "--metadata-column", "x", "--output-dir", folder / "out"],
    }  # fmt: skip
    refused(capsys, aam(command, *given[command], *words.split()), USAGE, sentence)
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize("folds", ["1000", "1000000000000000000000000"])
def test_more_folds_than_samples(
    folder: Path, capsys: pytest.CaptureFixture[str], folds: str
) -> None:
    given = ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv"]
    given += ["--metadata-column", "x", "--output-dir", folder / "out"]
    refused(capsys, aam("baseline", *given, "--folds", folds), DATA, "give --folds 2 to 3")


def test_rarefaction_of_a_billion_reads() -> None:
    """Counts above 10^9 a sample are drawn as smaller ones are: in proportion, without return."""
    counts = np.array([2**31 - 1, 2**31 - 1, 10, 0], dtype=np.int32)
    drawn = rarefy(counts, 20_000, "s", seed=1, draw=0)
    assert drawn.sum() == 20_000
    assert drawn[3] == 0
    assert abs(drawn[0] - 10_000) < 5 * np.sqrt(5_000)
    assert np.array_equal(drawn, rarefy(counts, 20_000, "s", seed=1, draw=0))
    few = np.array([10**9, 4, 3], dtype=np.int32)
    kept = rarefy(few, 10**9 + 5, "s", seed=1, draw=0)
    assert kept.sum() == 10**9 + 5
    assert (kept <= few).all()


# What killed processes leave


def test_leftovers_of_a_killed_process(folder: Path) -> None:
    """A process is killed while it writes; the next one removes what it left, of no other."""
    code = (
        "import os, sys; from pathlib import Path; from aam.contract.files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); print(temporary, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "table.biom")], capture_output=True, cwd=ROOT
    )
    left = Path(done.stdout.decode().strip())
    assert left.read_text() == "half"
    living = left.with_name(left.name.replace(left.stem.rpartition("-")[2], str(os.getppid())))
    foreign = left.with_name(".table.elsewhere-1.biom")
    for path in (living, foreign):
        path.write_text("of another")
    words = ("--samples", 3, "--asvs", 9, "--richness", 2, "--subjects", 3, "--depth", 20)
    assert aam("simulate", "--output-dir", folder, *words, "--overwrite") == 0
    assert not left.exists()
    assert living.exists()
    assert foreign.exists()
