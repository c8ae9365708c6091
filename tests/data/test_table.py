"""Feature tables: the same counts from every format; refusal of invalid tables."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import biom
import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.contract.errors import DataError
from aam.data.formats import tables
from aam.data.formats.tables import TABLE_FORMATS, OpenTable, TableBlocks, open_counts
from aam.data.table import FeatureTable, read_table
from tests.support.artifacts import write_artifact

SAMPLES = ("2538.1002622", "10317.000001020", "10317.00000102")
COUNTS = np.array([[0, 5, 1, 0], [7, 0, 0, 2], [0, 0, 3, 1]])


def as_biom(counts: NDArray[Any], samples: tuple[str, ...] = SAMPLES) -> biom.Table:
    features = [f"ACGT{'ACGT'[n % 4] * (n // 4 + 1)}" for n in range(counts.shape[1])]
    return biom.Table(counts.T.astype(float), features, samples)


def write_hdf5(path: Path, counts: NDArray[Any], samples: tuple[str, ...] = SAMPLES) -> Path:
    with h5py.File(path, "w") as file:
        as_biom(counts, samples).to_hdf5(file, "a test")
    return path


def write_all(
    folder: Path, counts: NDArray[Any], samples: tuple[str, ...] = SAMPLES
) -> dict[str, Path]:
    """Write the same table in every form; BIOM and TSV by biom itself."""
    table = as_biom(counts, samples)
    paths = {"hdf5": write_hdf5(folder / "a.biom", counts, samples)}
    texts = {
        "json": table.to_json("a test"),
        "constructed": table.to_tsv(),
        "otu": table.to_tsv().partition("\n")[2],
        "plain": table.to_dataframe(dense=True).to_csv(sep="\t", na_rep="nan"),
    }
    for form, text in texts.items():
        paths[form] = folder / form
        paths[form].write_text(text)
    paths["gzip"] = folder / "a.gz"
    paths["gzip"].write_bytes(gzip.compress(texts["json"].encode()))
    content = {"feature-table.biom": paths["hdf5"].read_bytes()}
    paths["qza"] = write_artifact(folder / "a.qza", "FeatureTable[Frequency]", content)
    return paths


def same(table: FeatureTable, other: FeatureTable) -> bool:
    ids = (table.sample_ids, table.feature_ids) == (other.sample_ids, other.feature_ids)
    return ids and np.array_equal(table.counts.toarray(), other.counts.toarray())


whole = hnp.arrays(
    np.int64,
    st.tuples(st.integers(1, 6), st.integers(1, 8)),
    elements=st.integers(0, 9) | st.just(2**31 - 1),
)


@settings(max_examples=25, deadline=None)
@given(whole)
def test_every_format_gives_the_same_table(counts: NDArray[np.int64]) -> None:
    counts[:, 0] += counts.sum(axis=1) == 0
    samples = tuple(f"10317.{row:04d}0" for row in range(len(counts)))
    with TemporaryDirectory() as folder:
        tables = {
            form: read_table(path)
            for form, path in write_all(Path(folder), counts, samples).items()
        }
    expected = as_biom(counts, samples).remove_empty(axis="observation")
    for form, table in tables.items():
        assert table.sample_ids == samples, form
        assert table.feature_ids == tuple(expected.ids(axis="observation")), form
        assert np.array_equal(table.counts.toarray(), expected.matrix_data.T.toarray()), form
        assert table.counts.dtype == np.int32
        assert table.counts.data.all()
        assert table.counts.has_sorted_indices


def test_taking_samples_and_features(tmp_path: Path) -> None:
    table = read_table(write_hdf5(tmp_path / "a.biom", COUNTS))
    part = table.take_samples([2, 0]).take_features(np.array([3, 1]))
    assert part.sample_ids == (SAMPLES[2], SAMPLES[0])
    assert part.feature_ids == (table.feature_ids[3], table.feature_ids[1])
    assert part.counts.toarray().tolist() == [[1, 0], [0, 5]]
    assert part.counts.has_sorted_indices


def test_features_without_reads_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = COUNTS * np.array([1, 0, 1, 1])
    table = read_table(write_hdf5(tmp_path / "a.biom", counts))
    assert table.counts.shape == (3, 3)
    assert "Features without reads are left out: 1 of 4." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.inf, "NaN or infinite"),
        (2.0**31, "Counts beyond 2147483647"),
    ],
)
def test_values_that_are_not_counts_are_refused(tmp_path: Path, value: float, message: str) -> None:
    counts = np.tile(COUNTS.astype(float), (3, 1))
    counts[1:8, 3] = value
    samples = tuple(f"s{row}" for row in range(9))
    where = r".*7 of \d+ values, in samples 7 \(s1, s2, s3, s4, s5, \.\.\.\)"
    paths = write_all(tmp_path, counts, samples)
    for form in ("hdf5", "constructed", "plain", "qza"):
        with pytest.raises(DataError) as caught:
            read_table(paths[form])
        assert caught.match(message)
        assert caught.match(where)
        assert str(paths[form]) in str(caught.value)


SHARES = np.array([[0, 0.75, 0.25, 0], [1, 0, 0, 0], [0.125, 0, 0.5, 0.375]])


@pytest.mark.parametrize("values", [SHARES, 100 * SHARES, 1e6 * SHARES + SHARES, 0.7 * SHARES])
def test_relative_abundances_are_parts_of_a_sample(
    tmp_path: Path, values: NDArray[np.float64], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_all(tmp_path, values)
    for form in ("hdf5", "json", "plain"):
        table = read_table(paths[form])
        assert table.quantity == "relative abundances"
        assert (table.counts.toarray() / table.reads[:, None]).tolist() == SHARES.tolist()
        assert f"'{paths[form]}' are relative abundances, not reads" in capsys.readouterr().err


def test_fractions_of_unequal_sums_are_no_relative_abundances(tmp_path: Path) -> None:
    values = SHARES * [[3000], [5000], [800]]
    values[0, 1] += 0.5
    with pytest.raises(DataError, match=r"Fractional counts.*1 of 6 values.*equal sums"):
        read_table(write_all(tmp_path, values)["hdf5"])


def test_a_table_is_what_the_type_of_its_artifact_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its values are whole numbers."""
    content = {"feature-table.biom": write_hdf5(tmp_path / "a.biom", COUNTS).read_bytes()}
    for kind, quantity in (
        ("Frequency", "reads"),
        ("Frequency] % Properties('x'", "reads"),
        ("RelativeFrequency", "relative abundances"),
        ("PresenceAbsence", "presences"),
    ):
        path = write_artifact(tmp_path / "a.qza", f"FeatureTable[{kind}]", content)
        table = read_table(path)
        assert table.quantity == quantity
        shares = table.counts.toarray() / table.reads[:, None]
        np.testing.assert_allclose(shares, COUNTS / COUNTS.sum(axis=1, keepdims=True), 1e-8)
        shown = capsys.readouterr().err
        assert (f"are {quantity}, not reads" in shown) == (quantity != "reads")
        if quantity != "reads":
            with pytest.raises(DataError, match=f"has {quantity}, not reads"):
                open_counts(path, 1 << 20)
    path = write_artifact(tmp_path / "a.qza", "FeatureTable[Composition]", content)
    with pytest.raises(DataError, match=r"FeatureTable\[Composition\]; give .*Frequency"):
        read_table(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# only\n# comments\n", "No feature table"),
        ("id,a,b\nACGT,1,2\n", "table is comma-separated.*'id,a,b'"),
        ("#OTU ID\ta\tb\nACGT\t1\n", "another length.*line 2 has 2 cells, the header 3"),
        ("#OTU ID\ta\tb\nACGT\t1\tNA\n", "line 2, column 'b' is 'NA'; write 0"),
        ("#OTU ID\ta\tb\nACGT\t1\t1_0\n", "column 'b' is '1_0'"),
        ("#OTU ID\ta\tb\nACGT\t1,5\t1\n", "write decimal points"),
        ("#OTU ID\ta\tb\nACGT\t\t1\n", "column 'a' is ''; write 0"),
        ("#OTU ID\ta\tb\t\nACGT\t1\t2\t\n", "remove the tabs at the ends"),
        ("#OTU ID\ta\tb\nACGT\t1\t2\t\n", "4 cells.*remove the tabs at the ends"),
        ("#OTU ID\ta\tb\t\nACGT\t1\t2\n", "remove the tabs at the ends"),
        ("ASV\ta\tb\nACGT\t1\t2\t\n", "remove the tabs at the ends"),
        ("\tASV\ta\n0\tACGT\t1\n", "column 'ASV' is 'ACGT'; remove the first column"),
        ("#OTU ID\ta\tgenus\nACGT\t1\tBlautia\n", "remove the column 'genus'"),
        ("label\tGroup\tnumOtus\tOtu1\n0.03\ts1\t1\t5\n", "shared file of mothur.*make.biom"),
        ("#OTU ID\ta\t \nACGT\t1\t2\n", "Samples without an id"),
        ("sample-id\tage\ns1\t3\n", "rows are samples.*is it the metadata"),
        ("#OTU ID\ta\n", "no reads"),
        ('{"rows": [', r"Invalid or incomplete BIOM 1 \(JSON\) table"),
        ('{"rows": [], "columns": []}', r"Invalid or incomplete BIOM 1"),
    ],
)
def test_text_that_is_not_a_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.biom"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.biom", COUNTS)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"Invalid or incomplete BIOM 2.1.*copy the file again"):
        read_table(path)
    with h5py.File(tmp_path / "unifrac.h5", "w") as file:
        file["matrix"] = np.zeros((2, 2))
    with pytest.raises(DataError, match=r"Invalid or incomplete BIOM 2.1"):
        read_table(tmp_path / "unifrac.h5")
    path.write_bytes(b"\xfe\x00\x80\x80")
    with pytest.raises(DataError, match=r"neither HDF5 nor UTF-8"):
        read_table(path)
    with pytest.raises(DataError, match=r"another type.*Phylogeny\[Rooted\].*FeatureTable"):
        read_table(write_artifact(tmp_path / "t.qza", "Phylogeny[Rooted]", {}))


def test_a_format_is_added_by_an_entry_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_lines(table: OpenTable) -> TableBlocks:
        samples, features, reads = (line.split() for line in table.stream.read().splitlines()[1:])
        indptr = np.arange(len(samples) + 1)
        values = np.array(reads, dtype=np.float64)
        block = csr_array((values, np.arange(len(samples), dtype=np.int32), indptr))
        ids = [[name.decode() for name in names] for names in (samples, features)]
        return TableBlocks(ids[0], ids[1], lambda: iter([block]))

    made_up = (lambda start: start.startswith(b"%lines"), read_lines)
    monkeypatch.setattr(tables, "TABLE_FORMATS", {"lines": made_up} | TABLE_FORMATS)
    path = tmp_path / "table.gz"
    path.write_bytes(gzip.compress(b"%lines\ns1 s2\nACGT ACGA\n5 7\n"))
    table = read_table(path)
    assert (table.sample_ids, table.feature_ids) == (("s1", "s2"), ("ACGT", "ACGA"))
    assert table.counts.toarray().tolist() == [[5, 0], [0, 7]]
