"""Metadata: QIIME 2's rules, ids as strings, targets, classes and groups by sample id."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skbio.metadata import SampleMetadata
from skbio.metadata.io import MetadataFileError

from aam.contract.errors import DataError, MissingInput
from aam.contract.options.groups import TargetOptions
from aam.contract.preflight import metadata_columns
from aam.data.metadata import MISSING, Metadata, read_metadata
from aam.data.targets import label_samples
from aam.pipeline.labelled_study import read_labels

IDS = ("2538.10", "2538.1", "10317.000001020", "s4")


def metadata(tmp_path: Path, text: str) -> Metadata:
    path = tmp_path / "metadata.tsv"
    path.write_text(text)
    return read_metadata(path)


def column(tmp_path: Path, *values: str) -> tuple[Metadata, tuple[str, ...]]:
    """Write a column called x, one sample a value."""
    ids = tuple(f"s{number}" for number in range(len(values)))
    lines = (f"{name}\t{value}\tfilled\n" for name, value in zip(ids, values, strict=True))
    return metadata(tmp_path, "sample-id\tx\ty\n" + "".join(lines)), ids


STUDY = (
    "#SampleID\tage\tsubject\tsite\n"
    "#q2:types\tnumeric\t\tcategorical\n"
    "2538.10\t3\t18.0\tgut\n"
    "2538.1\t4.50\t18\tskin\n"
    "10317.000001020\t\t007\tgut\n"
)


def test_ids_and_values_stay_strings(tmp_path: Path) -> None:
    read = metadata(tmp_path, STUDY)
    assert read.ids == IDS[:3]
    assert read.columns["age"] == ["3", "4.50", ""]
    assert read.columns["subject"] == ["18.0", "18", "007"]
    assert read.values("subject", IDS).tolist() == ["18", "18", "007", ""]


def test_numbers_come_in_the_order_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = label_samples(metadata(tmp_path, STUDY), "age", ("s4", *reversed(IDS[:3])))
    rows, values = found.rows, found.values
    assert rows.dtype == np.dtype(np.int64)
    assert values.dtype == np.dtype(np.float64)
    assert rows.tolist() == [2, 3]
    assert values.tolist() == [4.5, 3.0]
    shown = capsys.readouterr().err
    assert shown == "Samples left out: 2 of 4 (1 without metadata, 1 with 'age' '').\n"


def test_classes_are_sorted_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = label_samples(metadata(tmp_path, STUDY), "site", IDS, classifier=True)
    assert (found.rows.tolist(), found.values.tolist()) == ([0, 1, 2], [0, 1, 0])
    assert found.classes == ("gut", "skin")
    assert "single sample: 1 (skin)" in capsys.readouterr().err


def test_groups_keep_subjects_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = metadata(tmp_path, STUDY).groups("subject", IDS)
    assert found.tolist() == ["18", "18", "007", "s4 (no subject)"]
    assert "without a 'subject': 1 of 4, each is its own group" in capsys.readouterr().err


@pytest.mark.parametrize("word", [*sorted(MISSING), "NA", "N/A", "Missing: Not provided", "NaN"])
def test_missing_values_are_recognized(tmp_path: Path, word: str) -> None:
    read, ids = column(tmp_path, "1", word, "2")
    assert label_samples(read, "x", ids).rows.tolist() == [0, 2]
    assert label_samples(read, "x", ids, classifier=True).classes == ("1", "2")
    assert read.groups("x", ids).tolist() == ["1", "s1 (no x)", "2"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("1", "high", "low", "high"), r"not numeric.*3 of 4.*2 \(high, low\).*--classifier"),
        (("1", "2", "inf"), r"infinite.*1 \(s2\)"),
        (("1", "2", "-3.5e38"), r"numbers beyond 1e\+30: in samples 1 \(s2\)"),
        (("1", "1.0", "NA"), "one value only.*'1' in 2 samples"),
        (("3,5", "4,25", "1"), "not numeric.*2 of 3.*write decimal points, not commas"),
    ],
)
def test_invalid_numeric_targets_are_refused(
    tmp_path: Path, values: tuple[str, ...], message: str
) -> None:
    read, ids = column(tmp_path, *values)
    with pytest.raises(DataError, match=message):
        label_samples(read, "x", ids)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("18.0", "18"), "one value only.*'18'"),
        (tuple(f"{day}.5" for day in range(12)), "numeric: it has 12 different numbers in 12"),
    ],
)
def test_invalid_class_targets_are_refused(
    tmp_path: Path, values: tuple[str, ...], message: str
) -> None:
    read, ids = column(tmp_path, *values)
    with pytest.raises(DataError, match=message):
        label_samples(read, "x", ids, classifier=True)


def test_a_level_that_is_named_is_never_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, ids = column(tmp_path, "none", "mild", "severe", "none", "NA", "")
    ranked = label_samples(found, "x", ids, levels=("none", "mild", "severe"))
    assert (ranked.rows.tolist(), ranked.values.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 0])
    assert "left out: 2 of 6 (1 with 'x' 'NA', 1 with 'x' ''). If 'NA'" in capsys.readouterr().err
    named = label_samples(found, "x", ids, classifier=True)
    assert (named.rows.tolist(), named.classes) == ([1, 2], ("mild", "severe"))
    printed = capsys.readouterr().err
    assert (
        "4 of 6 (2 with 'x' 'none', 1 with 'x' 'NA', 1 with 'x' ''). If 'none' and 'NA'" in printed
    )
    assert printed.count("'NA'") == 2  # one line


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        (("Yes", "yes", "no", "No ", "no", "yes"), "differ in case or spaces alone: 2 (No and no"),
        (
            (*(f"id-{k}" for k in range(11)), "id-0"),
            "11 classes in 12 samples, as a column of ids has",
        ),
    ],
)
def test_doubtful_classes_are_named(
    tmp_path: Path, values: tuple[str, ...], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, ids = column(tmp_path, *values)
    label_samples(found, "x", ids, classifier=True)
    shown = capsys.readouterr().err
    assert warning in " ".join(shown.split())


def test_two_numbers_may_be_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, ids = column(tmp_path, "0", "1", "0", "1")
    read_labels(TargetOptions(metadata=tmp_path, metadata_column="x"), found, ids)
    assert "two values only, 0 and 1," in capsys.readouterr().err
    read_labels(TargetOptions(metadata=tmp_path, metadata_column="x", classifier=True), found, ids)
    assert capsys.readouterr().err == ""


def test_classes_that_are_many_numbers_may_be_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = TargetOptions(metadata=tmp_path, metadata_column="x", classifier=True)
    for classes, hint in ((26, True), (5, False)):
        found, ids = column(tmp_path, *(str(k % classes) for k in range(130)))
        read_labels(options, found, ids)
        shown = capsys.readouterr().err
        assert (f"{classes} classes of 'x' are numbers: without --classifier" in shown) == hint


def test_a_row_with_more_cells_than_columns_is_named(tmp_path: Path) -> None:
    text = "\n# a comment\nsample-id\tx\n\ns1\t1\t\t\ns2\t2\t3\n"
    with pytest.raises(DataError, match="line 6, 's2', has 3, the header 2; remove the tabs"):
        metadata(tmp_path, text)


def test_the_header_is_read_without_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "metadata.tsv.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf# comment\n\n"Sample ID"\t x \ty\ns1\t1\n'))
    assert metadata_columns(path) == ["x", "y"]
    path.write_text("a,b\n")
    assert metadata_columns(path) is None
    # A first column without a name, as spreadsheets export numbers of rows: the reader refuses it.
    path.write_text("\tsample-id\tage\n0\tS1\t3\n")
    assert metadata_columns(path) is None


def test_an_absent_column_is_refused_with_similar_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'sit'.*age, subject.*did you mean 'site'"):
        label_samples(metadata(tmp_path, STUDY), "sit", IDS, classifier=True)
    with pytest.raises(DataError, match=r"it has 3: .*name one of them"):
        metadata(tmp_path, STUDY).groups("zzzzzz", IDS)
    with pytest.raises(DataError, match=r"no sample in common.*2 \(a, b\).*3 \(2538.10, .*alike"):
        label_samples(metadata(tmp_path, STUDY), "age", ("a", "b"))
    with pytest.raises(DataError, match=r"'x' is empty"):
        column(tmp_path, "", "NA")[0].groups("x", ("s0", "s1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id\tx\na\t1\na\t2\n", r"Duplicated sample ids.*1 \(a\)"),
        ("id,x\na,1\n", "comma-separated.*first line of.*is 'id,x'; save it as tab-separated"),
        ("id;x\na;1,5\n", "semicolon-separated.*is 'id;x'; save it as tab-separated"),
        ("sample\tx\na\t1\n", "first column is called 'sample'.*is called sample-id"),
        ("id\tx\ty\tx\na\t1\t2\n", r"several columns have one name: 1 \(x\); rename"),
        ("id\tx\t\ty\na\t1\t2\t3\n", r"columns without a name: 1 \(3\); name"),
        ("id\tx\na\t1\n\t2\n", "line 3 has no sample id"),
        ("id\tx\n#q2:types\tnumeric\na\thigh\n", "'x' is not numeric.*1 .high.; correct them"),
        ("id\tx\n#q2:types\tnumeric\na\t1,5\nb\t2,5\n", "2 .1,5, 2,5.; write decimal points"),
        ("id\tx\n#q2:types\tnumeric\na\t1\nb\tmissing\n", "missing cells of a typed column empty"),
        ("id\tx\n", "it has no sample"),
        ("", "metadata is empty"),
        ("# a comment\n", "it has no header"),
        ('id\tx\na\t1\n"b\t1\n', "quote that is not closed.*in line 3.*remove the quote"),
        ('id\tx\na\t1\nb\t"1"0\nc\t1\n', "text after one, in line 3.*remove the quote"),
    ],
)
def test_metadata_against_the_rules_of_qiime2_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        metadata(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "Keemei" not in str(caught.value)
    assert ("is called sample-id" in str(caught.value)) == text.startswith("sample\t")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(["id", "#SampleID", "a", " b ", "1", "1.50", "", "# c", "#q2:types",
                             "numeric", "categorical", '"q\tq"', "é"]),
            min_size=1, max_size=4,
        ),
        max_size=6,
    )
)  # fmt: skip
def test_metadata_is_what_scikit_bio_reads(rows: list[list[str]]) -> None:
    text = "\n".join(["id\tx\ty", *map("\t".join, rows)]) + "\n"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metadata.tsv"
        path.write_text(text)
        try:
            # With every column categorical values keep their spelling.
            SampleMetadata.load(str(path))
            types = {"x": "categorical", "y": "categorical"}
            frame = SampleMetadata.load(str(path), column_types=types).to_dataframe()
        except MetadataFileError:
            with pytest.raises(DataError):
                read_metadata(path)
            return
        found = read_metadata(path)
    assert list(found.ids) == frame.index.tolist()
    known = frame.astype(object).where(frame.notna(), "")
    assert {name: list(cells) for name, cells in found.columns.items()} == known.to_dict("list")


def test_gzip_and_the_header_sample_id(tmp_path: Path) -> None:
    expected = metadata(tmp_path, STUDY)
    packed = tmp_path / "metadata.tsv.gz"
    packed.write_bytes(gzip.compress(STUDY.encode()))
    assert read_metadata(packed) == expected
    assert metadata(tmp_path, STUDY.replace("#SampleID", "sample_id")) == expected


def test_absent_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"does not exist"):
        read_metadata(tmp_path / "none.tsv")
    with pytest.raises(MissingInput, match=r"is a folder"):
        read_metadata(tmp_path)
    (tmp_path / "m.xlsx").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(DataError, match=r"not text: .* is a zip archive or a spreadsheet"):
        read_metadata(tmp_path / "m.xlsx")
    (tmp_path / "m.tsv").write_bytes("id\tx\na\t1\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"UTF-16; save it as UTF-8 in a text editor"):
        read_metadata(tmp_path / "m.tsv")
    (tmp_path / "m.tsv").write_bytes("id\tx\na\tJosé\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"at byte 10; save it as UTF-8 in a text editor"):
        read_metadata(tmp_path / "m.tsv")
    (tmp_path / "m.tsv").write_bytes(b"\x00\xff\x00")
    with pytest.raises(DataError, match=r"check that it is the right file"):
        read_metadata(tmp_path / "m.tsv")
