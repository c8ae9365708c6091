"""Files that describe more than a machine has, read in a process of bounded memory and time."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.support.bench import DATA, ROOT, Make, biom_file

pytestmark = [
    pytest.mark.medium,
    pytest.mark.skipif(
        torch.backends.cuda.is_built(),
        reason="the libraries of a PyTorch for GPUs take more address space than the limit",
    ),
]

SECONDS = 90
ADDRESS_SPACE = 3 << 30


def check_limited(message: str, *args: object) -> None:
    """Check that `aam` in a process of bounded memory and time refuses its input."""
    status, shown = limited_python("-m", "aam.cli", *args)
    assert status == DATA, shown
    assert message in shown
    assert "Traceback" not in shown


def limited_python(*args: object) -> tuple[int, str]:
    """Run Python in a process of bounded memory and CPU time; return exit status and messages."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=ROOT, env=variables, preexec_fn=limit, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


def zeros(stream: Any) -> None:
    for _ in range(64):
        stream.write(bytes(1 << 24))


def gzip_bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(1 << 24), 1) * 64)  # 64 members of a file


def qza_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
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
        lambda path: biom_file(path, data=(10**12,), indices=(10**12,)), "have different sizes"
    ),
    "7 TB of ends": (lambda path: biom_file(path, indptr=(10**12,)), "have different sizes"),
    "10^12 ids": (hdf5_ids, "does not fit in memory"),
    "a row of 100 million cells": (long_row, "does not fit in memory"),
}  # fmt: skip


def npy(path: Path, shape: tuple[int, ...], dtype: str = "<f8") -> None:
    """Write the header of an array and 80 bytes of its content."""
    with path.open("wb") as stream:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(bytes(80))


def hdf5_matrix(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", (10**6, 10**6), "f4", chunks=(1000, 1000), compression="gzip")


def wide_matrix(path: Path) -> None:
    path.write_text("\t" + "\t".join(f"s{n}" for n in range(300_000)) + "\ns0\t0\n")


MATRICES: dict[str, tuple[Make, str]] = {
    "npy": (lambda path: npy(path, (10**6, 10**6)), "is cut off or not an array"),
    "npy beyond 64 bits": (lambda path: npy(path, (10**12, 10**12)), "is cut off or not an array"),
    "npy of a negative size": (lambda path: npy(path, (-1, -4)), "cannot be read"),
    "hdf5": (hdf5_matrix, "does not fit in memory"),
    "gzip": (gzip_bomb, "does not fit in memory"),
    "300,000 columns": (wide_matrix, "has 300000 columns and 1 rows"),
}


@pytest.mark.parametrize("name", MATRICES)
def test_bombs_of_matrices(folder: Path, name: str) -> None:
    make, message = MATRICES[name]
    make(folder / "bomb")
    code = "import sys; from pathlib import Path; from aam.data.distances import read_distances\n"
    code += "read_distances(Path(sys.argv[1]))"
    _, shown = limited_python("-c", code, folder / "bomb")
    *_, last = shown.splitlines()
    assert last.startswith("aam.contract.errors.DataError"), shown
    assert message in last


def test_a_bomb_of_a_matrix_in_a_command(folder: Path) -> None:
    npy(folder / "bomb.npy", (10**6, 10**6))
    given = ["--table", folder / "table.tsv", "--output-dir", folder / "run", "--device", "cpu"]
    matrix = ("--unifrac-matrix", folder / "bomb.npy")
    check_limited("is cut off or not an array", "pretrain", *given, *matrix)


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
    flag, make, message = TEXTS[name]
    make(folder / "bomb")
    given = ["--table", folder / "table.tsv", "--output", folder / "s.aam"]
    check_limited(message, "prepare", *given, flag, folder / "bomb")


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("command", ["prepare", pytest.param("unifrac", marks=pytest.mark.nightly)])
def test_bombs(folder: Path, name: str, command: str) -> None:
    make, message = BOMBS[name]
    make(folder / "bomb")
    given = ["--table", folder / "bomb", "--output", folder / "out.tsv"]
    if command == "unifrac":
        given += ["--tree", folder / "tree.nwk", "--device", "cpu"]
    check_limited(message, command, *given)
    assert not (folder / "out.tsv").exists()
