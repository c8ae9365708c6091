"""Several tables in one store: sample ids, ASVs by sequence, trimming, regions, metadata."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from aam.contract.errors import DataError, UsageError
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.metadata import read_metadata
from aam.data.sequences import decode
from aam.data.study import Study, load_study
from tests.support.commands import aam

Capture = pytest.CaptureFixture[str]
COMMON = "TACGGAGGATCCGAGCGTTATCCG"
ASVS = {name: COMMON + name for name in ("AAAAAAAA", "CCCCCCCC", "GGGGGGGG")}


def write_table(path: Path, samples: dict[str, dict[str, int]]) -> Path:
    """Write sample -> ASV -> reads as TSV."""
    asvs = sorted({asv for counts in samples.values() for asv in counts})
    rows = [[asv, *(str(counts.get(asv, 0)) for counts in samples.values())] for asv in asvs]
    lines = [["#OTU ID", *samples], *rows]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    return path


def counts_of(study: Study) -> dict[str, dict[str, int]]:
    """Return sample -> sequence -> reads."""
    sequences = decode(study.tokens_FL)
    return {
        name: {
            sequences[column]: int(row[column]) for column in np.flatnonzero(row)
        }
        for name, row in zip(study.table.sample_ids, whole(study), strict=True)
    }  # fmt: skip


def whole(study: Study) -> np.ndarray:
    return np.asarray(study.table.counts[np.arange(len(study.reads))].toarray())


def messages(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


def prepare(output: Path, *tables: Path, more: tuple[object, ...] = ()) -> int:
    given = [word for table in tables for word in ("--table", table)]
    return aam("prepare", *given, "--output", output, *more)


def test_parts_of_a_study_are_joined_to_the_study(study_dir: Path, tmp_path: Path) -> None:
    complete = load_study(
        TableOptions(table=study_dir / "table.biom"), PhylogenyOptions(tree=study_dir / "tree.nwk")
    )
    samples = counts_of(complete)
    parts = [dict(list(samples.items())[:20]), dict(list(samples.items())[20:])]
    tables = [write_table(tmp_path / f"{n}.tsv", part) for n, part in enumerate(parts)]
    lines = (study_dir / "metadata.tsv").read_text().splitlines(keepends=True)
    files = []
    for number, part in enumerate(parts):
        files.append(tmp_path / f"metadata{number}.tsv")
        rows = [line for line in lines[1:] if line.split("\t")[0] in part]
        files[-1].write_text("".join([lines[0], *rows]))
    joined = tmp_path / "joined.aam"
    metadata = ("--metadata", files[0], "--metadata", files[1])
    more = ("--tree", study_dir / "tree.nwk", *metadata)
    assert prepare(joined, *tables, more=more) == 0
    found = load_study(TableOptions(table=joined), PhylogenyOptions())
    assert tuple(found.table.sample_ids) == tuple(complete.table.sample_ids)
    assert tuple(found.table.feature_ids) == tuple(complete.table.feature_ids)
    np.testing.assert_array_equal(whole(found), whole(complete))
    np.testing.assert_array_equal(found.tokens_FL, complete.tokens_FL)
    assert found.phylogeny is not None
    assert complete.phylogeny is not None
    np.testing.assert_array_equal(found.phylogeny.lengths_G, complete.phylogeny.lengths_G)
    expected, stored = read_metadata(study_dir / "metadata.tsv"), read_metadata(joined)
    ids = complete.table.sample_ids
    for column in expected.columns:
        assert list(stored.values(column, ids)) == list(expected.values(column, ids))
    made_from = json.loads((joined / "store.json").read_text())["made_from"]
    assert [made_from[flag]["name"] for flag in ("--table", "--table 2")] == ["0.tsv", "1.tsv"]
    record = joined.with_name("joined.aam.run.json")
    again = tmp_path / "again.aam"
    assert aam("prepare", "--config", record, "--output", again) == 0
    assert (again / "counts.npy").read_bytes() == (joined / "counts.npy").read_bytes()


def test_asvs_are_joined_by_sequence_not_by_id(tmp_path: Path, capsys: Capture) -> None:
    a, c, g = ASVS.values()
    one = write_table(tmp_path / "one.tsv", {"s1": {a: 3, c: 1}})
    md5 = {hashlib.md5(dna.encode()).hexdigest(): dna for dna in (a, g)}
    fasta = tmp_path / "two.fasta"
    fasta.write_text("".join(f">{name}\n{dna}\n" for name, dna in md5.items()))
    two = write_table(tmp_path / "two.tsv", {"s2": dict(zip(md5, (5, 7), strict=True))})
    assert prepare(tmp_path / "s.aam", one, two, more=("--sequences", fasta)) == 0
    assert "4 ASVs of 2 tables are 3 different sequences" in messages(capsys)
    study = load_study(TableOptions(table=tmp_path / "s.aam"))
    assert counts_of(study) == {"s1": {a: 3, c: 1}, "s2": {a: 5, g: 7}}
    assert set(study.table.feature_ids) == {a, c, list(md5)[1]}


def test_sample_ids_of_two_tables_need_names_of_studies(tmp_path: Path, capsys: Capture) -> None:
    a, c, _ = ASVS.values()
    one = write_table(tmp_path / "one.tsv", {"s1": {a: 3}, "s2": {c: 1}})
    two = write_table(tmp_path / "two.tsv", {"s1": {c: 4}})
    for name, header, rows in (("one", "age", "s1\t5\ns2\t6\n"), ("two", "age\tsite", "s1\t7\tx")):
        (tmp_path / f"{name}-metadata.tsv").write_text(f"sample-id\t{header}\n{rows}")
    metadata = [f"--metadata={tmp_path / name}-metadata.tsv" for name in ("one", "two")]
    store = tmp_path / "s.aam"
    assert prepare(store, one, two, more=tuple(metadata)) == DataError.status
    assert "Sample ids stand in two files: 1 (s1); name the tables with --studies" in messages(
        capsys
    )
    assert not store.exists()
    tables = ("--table", str(one), str(two))
    for number, given in enumerate((["gut", "skin"], ["gut,skin"], ["gut,", "skin"])):
        named = ("--studies", *given, *metadata)
        assert aam("prepare", *tables, *named, "--output", tmp_path / f"{number}.aam") == 0
        made = load_study(TableOptions(table=tmp_path / f"{number}.aam"))
        assert tuple(made.table.sample_ids) == ("gut.s1", "s2", "skin.s1")
    store = tmp_path / "0.aam"
    assert aam("prepare", "--table", f"{one},{two}", "--output", tmp_path / "x.aam") != 0
    assert "separate files by blanks, or repeat the option for each" in messages(capsys)
    study = load_study(TableOptions(table=store))
    assert counts_of(study) == {"gut.s1": {a: 3}, "s2": {c: 1}, "skin.s1": {c: 4}}
    stored = read_metadata(store)
    assert list(stored.values("age", study.table.sample_ids)) == ["5", "6", "7"]
    assert list(stored.values("site", study.table.sample_ids)) == ["", "", "x"]
    # One file for all tables has the ids with prefixes.
    both = tmp_path / "both.tsv"
    both.write_text("sample-id\tage\ns2\t2\nskin.s1\t3\n")
    more = ("--metadata", both, "--studies", "gut", "skin", "--overwrite")
    assert prepare(store, one, two, more=more) == 0
    assert list(read_metadata(store).values("age", study.table.sample_ids)) == ["", "2", "3"]


@pytest.mark.parametrize("more", [("--trim-length", len(COMMON)), ("--studies", "one,two")])
def test_trimmed_asvs_are_joined_and_their_reads_added(
    more: tuple[object, ...], tmp_path: Path, capsys: Capture
) -> None:
    a, c, _ = ASVS.values()
    one = write_table(tmp_path / "one.tsv", {"s1": {a: 3, c: 1}, "s2": {c: 2}})
    two = write_table(tmp_path / "two.tsv", {"s3": {COMMON: 9}})
    assert prepare(tmp_path / "apart.aam", one, two) == 0
    assert "--trim-length 24 cuts them to one length" in messages(capsys)
    assert prepare(tmp_path / "s.aam", one, two, more=more) == 0
    assert ("ASVs are cut to 24 nucleotides" in messages(capsys)) == ("--studies" in more)
    study = load_study(TableOptions(table=tmp_path / "s.aam"))
    assert counts_of(study) == {"s1": {COMMON: 4}, "s2": {COMMON: 2}, "s3": {COMMON: 9}}
    assert tuple(study.table.feature_ids) == (COMMON,)
    assert prepare(tmp_path / "long.aam", one, two, more=("--trim-length", 30)) == 0
    assert "1 of 3 ASVs are shorter than 30 nucleotides" in messages(capsys)


def test_asvs_of_different_regions_are_reported(tmp_path: Path, capsys: Capture) -> None:
    a, c, _ = ASVS.values()
    one = write_table(tmp_path / "one.tsv", {"s1": {a: 3, c: 1}})
    two = write_table(tmp_path / "two.tsv", {"s2": {"AAGGGCCGTATCTCAGTCCCCTTGTGGCCGTC": 4}})
    assert prepare(tmp_path / "s.aam", one, two) == 0
    assert "begin differently (0% share the first 8 nucleotides" in messages(capsys)
    assert prepare(tmp_path / "t.aam", one, write_table(tmp_path / "3.tsv", {"s3": {a: 1}})) == 0
    assert "begin differently" not in messages(capsys)


@pytest.mark.parametrize(
    ("more", "error", "sentence"),
    [
        (("--studies", "a"), UsageError, "Not one name for each table"),
        (("--studies", "a,a"), UsageError, "Two studies with one name"),
        (("--studies", "a,b c"), UsageError, "A study's name with spaces"),
        (("--trim-length", "-1"), UsageError, "give 0 or more for --trim-length"),
        (("--metadata", __file__) * 3, UsageError, "3 times --metadata for 2"),
    ],
)
def test_wrong_options_are_refused(
    more: tuple[str, ...], error: type[DataError], sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    a, *_ = ASVS.values()
    tables = [write_table(tmp_path / f"{n}.tsv", {f"s{n}": {a: 3}}) for n in range(2)]
    assert prepare(tmp_path / "s.aam", *tables, more=more) == error.status
    assert sentence in messages(capsys)
    assert not (tmp_path / "s.aam").exists()


def test_an_id_of_two_sequences_is_refused(tmp_path: Path, capsys: Capture) -> None:
    a, c, _ = ASVS.values()
    tables, fastas = [], []
    for number, dna in enumerate((a, c)):
        tables.append(write_table(tmp_path / f"{number}.tsv", {f"s{number}": {"OTU_1": 3}}))
        fastas.append(f"--sequences={tmp_path / f'{number}.fasta'}")
        (tmp_path / f"{number}.fasta").write_text(f">OTU_1\n{dna}\n")
    assert prepare(tmp_path / "s.aam", *tables, more=tuple(fastas)) == DataError.status
    assert "Feature ids with different sequences: 1 (OTU_1)" in messages(capsys)
    assert prepare(tmp_path / "s.aam", *tables, more=(*fastas, "--trim-length", 32)) == 0
    assert counts_of(load_study(TableOptions(table=tmp_path / "s.aam"))) == {
        "s0": {a: 3}, "s1": {c: 3}
    }  # fmt: skip


def test_reads_beyond_a_count_are_refused(tmp_path: Path, capsys: Capture) -> None:
    a, c, _ = ASVS.values()
    table = write_table(tmp_path / "one.tsv", {"s1": {a: 2**30, c: 2**30}})
    more = ("--trim-length", len(COMMON))
    assert prepare(tmp_path / "s.aam", table, more=more) == DataError.status
    assert "Counts beyond 2147483647 after trimming" in messages(capsys)
