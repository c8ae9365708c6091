"""Distance matrices: formats, alignment by id, refusal of invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from skbio import DistanceMatrix as SkbioMatrix

from aam.contract.errors import DataError
from aam.data.distances import DistanceMatrix, hdf5_matrix, read_distances
from tests.support.artifacts import write_artifact

IDS = ("2538.10", "10317.000001020", "NA", "a b")


def square(size: int = len(IDS), seed: int = 0) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).random((size, size)).astype(np.float32)
    upper = np.triu(drawn, 1)
    return np.asarray(upper + upper.T, dtype=np.float32)


def text_of(values: NDArray[Any], delimiter: str = "\t", ids: tuple[str, ...] = IDS) -> str:
    lines = [delimiter.join(["", *ids])]
    rows = zip(ids, values, strict=False)
    lines += [delimiter.join([name, *(f"{value:.9g}" for value in row)]) for name, row in rows]
    return "\n".join(lines) + "\n"


def assert_same(found: DistanceMatrix, ids: tuple[str, ...] = IDS) -> None:
    assert found.ids == ids
    assert found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, square(len(ids)))


@pytest.mark.parametrize("suffix", [".tsv", ".lsmat", ".npy", ".h5"])
def test_written_matrices_are_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new folder" / f"matrix{suffix}"
    DistanceMatrix(IDS, square()).write(path)
    assert_same(read_distances(path))
    beside = {"matrix.txt"} if suffix == ".npy" else set()
    assert {file.name for file in path.parent.iterdir()} == {path.name} | beside


def test_other_programs_read_written_matrices(tmp_path: Path) -> None:
    matrix = DistanceMatrix(IDS, square())
    matrix.write(tmp_path / "m.lsmat")
    theirs = SkbioMatrix.read(str(tmp_path / "m.lsmat"))
    assert theirs.ids == IDS
    np.testing.assert_allclose(theirs.data, matrix.values, rtol=1e-7)
    matrix.write(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert [name.decode() for name in file["order"]] == list(IDS)
        assert file["matrix"].dtype == np.float32
        assert file["format"][0] == b"BDSM"


def test_a_disk_with_room_for_an_hdf5_file_once_is_enough(
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(384)
    with hdf5_matrix(disk / "m.h5", [f"s{number}" for number in range(160)]) as matrix:
        matrix[...] = 0.5  # 200 KiB


def test_the_format_is_recognized_by_the_content(tmp_path: Path) -> None:
    values = square()
    tsv = text_of(values)
    (tmp_path / "tab").write_text(tsv)
    (tmp_path / "comma").write_text(text_of(values, ","))
    (tmp_path / "noted").write_text("\ufeff# made by hand\n\n" + tsv.replace("\n", "\r\n"))
    write_artifact(
        tmp_path / "artifact.qza",
        "DistanceMatrix % Properties('phylogenetic')",
        {"distance-matrix.tsv": tsv.encode()},
    )
    with h5py.File(tmp_path / "double.h5", "w") as file:
        file["matrix"] = values.astype(float)
        file["order"] = np.array(IDS, dtype="S")
    for path in sorted(tmp_path.iterdir()):
        assert_same(read_distances(path))


def test_a_matrix_without_ids_is_in_table_order(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", square())
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["distances"] = square()
    for path in sorted(tmp_path.iterdir()):
        assert_same(read_distances(path, IDS))
        with pytest.raises(DataError) as caught:
            read_distances(path, IDS[:3])
        assert "has no ids and does not fit the table" in str(caught.value)
        assert "is 4 x 4, the table has 3 samples" in str(caught.value)
        with pytest.raises(DataError, match="no table"):
            read_distances(path)


def test_ids_of_a_text_file_precede_table_order(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", square())
    (tmp_path / "m.txt").write_text("\n".join(IDS))
    assert_same(read_distances(tmp_path / "m.npy", IDS[::-1]))
    (tmp_path / "m.txt").write_text("\n".join(IDS[:3]))
    with pytest.raises(DataError, match="has 4 rows and 3 ids"):
        read_distances(tmp_path / "m.npy", IDS)


@settings(deadline=None)
@given(st.permutations(range(9)), st.integers(1, 9))
def test_alignment_is_by_id(order: list[int], count: int) -> None:
    ids = tuple(f"s{n}" for n in range(9))
    wanted = [ids[place] for place in order[:count]]
    found = DistanceMatrix(ids, square(9)).aligned(wanted)
    assert found.ids == tuple(wanted)
    for row, name in enumerate(wanted):
        for column, other in enumerate(wanted):
            expected = square(9)[ids.index(name), ids.index(other)]
            assert found.values[row, column] == expected


def changed(row: int, column: int, value: float, both: bool = True) -> NDArray[np.float32]:
    values = square()
    values[row, column] = value
    if both:
        values[column, row] = value
    return values


WRONG = [
    (changed(1, 2, 0.75, both=False), "not symmetric: '10317.000001020' to 'NA' is 0.75"),
    (changed(0, 3, np.nan), "A distance is not a number: '2538.10' to 'a b' is nan"),
    (changed(2, 1, np.inf), "A distance is not a number: '10317.000001020' to 'NA' is inf"),
    (changed(2, 2, 0.5), "The diagonal of the distance matrix is not zero: 1 (NA)"),
    (1 - square(), "The diagonal of the distance matrix is not zero: 4 (2538.10,"),
    (changed(0, 1, -0.2), "A distance is negative: '2538.10' to '10317.000001020' is -0.2"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG)
def test_invalid_distances_are_refused(
    tmp_path: Path, values: NDArray[np.float32], sentence: str
) -> None:
    (tmp_path / "m.tsv").write_text(text_of(values))
    np.save(tmp_path / "m.npy", values)
    for path in (tmp_path / "m.tsv", tmp_path / "m.npy"):
        with pytest.raises(DataError) as caught:
            read_distances(path, IDS)
        assert sentence in str(caught.value)


def test_rounding_noise_is_removed(tmp_path: Path) -> None:
    values = square()
    values[0, 1] += np.float32(1e-6)
    values[3, 3] = 1e-7
    np.save(tmp_path / "m.npy", values)
    found = read_distances(tmp_path / "m.npy", IDS).values
    np.testing.assert_array_equal(found, found.T)
    assert not found.diagonal().any()
    np.testing.assert_allclose(found, square(), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "The distance matrix is empty"),
        ("# only words\n", "The distance matrix is empty"),
        ("\ta\tb\na\t0\t1\n", "has 2 columns and 1 rows"),
        ("\ta\tb\na\t0\t1\nb\t1\n", "has 2 columns, but row 2, 'b', has 1 values"),
        ("\ta\na\t0\nb\t1\n", "has 1 columns, but row 2, 'b', has 1 values"),
        ("\ta\tb\na\t0\tx\nb\t1\t0\n", "A distance is not a number: row 'a'"),
        ("\ta\tb\na\t0\t1_0\nb\t10\t0\n", "not a number: '1_0'; make"),
        ("\ta\tb\na\t0\t\nb\t1\t0\n", "A distance is not a number: row 'a'"),
        ("\ta\tb\nb\t0\t1\na\t1\t0\n", "in another order than its columns: row 1"),
        ("\ta\ta\na\t0\t1\na\t1\t0\n", "Ids occur twice in the distance matrix: 1 (a)"),
        ("sample_id\n", "is not square: "),
    ],
)
def test_a_broken_text_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "m.tsv").write_text(text)
    with pytest.raises(DataError) as caught:
        read_distances(tmp_path / "m.tsv")
    assert sentence in str(caught.value)
    assert caught.value.status == 65


def test_broken_binaries_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", square())
    np.savez(tmp_path / "m.npz", square())
    np.save(tmp_path / "objects.npy", np.array(["a", None], dtype=object), allow_pickle=True)
    np.save(tmp_path / "wide.npy", square()[:2])
    np.save(tmp_path / "line.npy", np.zeros(5))
    np.save(tmp_path / "words.npy", np.array([["a", "b"], ["c", "d"]]))
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["faith_pd"] = np.ones(3)
        file.create_group("other")
    (tmp_path / "noise.bin").write_bytes(b"\xff\xfe\x00\x80")
    for name in ("m.npy", "m.h5"):
        path = tmp_path / name
        (tmp_path / f"half.{name}").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "m.npy").unlink()
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(DataError) as caught:
            read_distances(path, IDS)
        assert path.name in str(caught.value)


@pytest.mark.parametrize("name", ["order", "ids", "sample_ids"])
def test_hdf5_distances_are_those_of_their_ids(name: str, tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]], dtype=np.float32)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["distances"] = values
        file.create_dataset(name, data=["c", "b", "a"], dtype=h5py.string_dtype())
    found = read_distances(tmp_path / "m.h5", ["a", "b", "c"]).aligned(["a", "b", "c"])
    assert found.values.tolist() == values[::-1, ::-1].tolist()
