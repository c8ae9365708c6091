"""Several studies in one store: the column `study`, what they have in common, what disagrees."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from aam.contract.errors import AamError, DataError, UsageError
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.metadata import read_metadata
from aam.data.sequences import decode
from aam.data.study import load_study
from aam.data.taxonomy import read_taxonomy
from tests.data.test_joined_tables import Capture, counts_of, messages, prepare, write_table

RNG = np.random.default_rng(3)
START = "TACGGAGG"
DNA = [START + "".join(RNG.choice(list("ACGT"), 42)) for _ in range(8)]
"""Eight ASVs of 50 nucleotides that begin alike, as those of one region do."""


def write_study(
    folder: Path, name: str, rows: dict[str, str], header: str = "class", asvs: list[str] = DNA
) -> tuple[Path, Path]:
    """Write NAME.tsv and NAME-metadata.tsv: random reads of each sample, and its metadata."""
    counts = {
        s: dict(zip(asvs, RNG.integers(1, 999, len(asvs)).tolist(), strict=True)) for s in rows
    }
    table = write_table(folder / f"{name}.tsv", counts)
    metadata = folder / f"{name}-metadata.tsv"
    lines = [f"sample-id\t{header}", *(f"{sample}\t{cells}" for sample, cells in rows.items())]
    metadata.write_text("\n".join(lines) + "\n")
    return table, metadata


def join(output: Path, studies: dict[str, tuple[Path, Path]], more: tuple[object, ...] = ()) -> int:
    tables = [table for table, _ in studies.values()]
    metadata = [word for _, path in studies.values() for word in ("--metadata", path)]
    named = ("--studies", ",".join(studies))
    return prepare(output, *tables, more=(*metadata, *named, *more))


def two(folder: Path, **rows: dict[str, str]) -> dict[str, tuple[Path, Path]]:
    return {name: write_study(folder, name, cells) for name, cells in rows.items()}


EMPTY_NAME = "a file with an empty new name"
CLASSES = ("case", "case", "control", "control")
ONE = {f"a{row}": value for row, value in enumerate(CLASSES)}
TWO = {f"b{row}": value for row, value in enumerate(CLASSES)}


def test_two_studies_of_different_length_become_one(tmp_path: Path, capsys: Capture) -> None:
    a = write_study(tmp_path, "a", {"s1": "case\t5", "s2": "control\t6"}, "class\tage")
    short = [dna[:40] for dna in DNA[:6]] + [DNA[0][:40]]
    b = write_study(tmp_path, "b", {"s1": "case\tx", "t2": "control\ty"}, "class\tsite", short[:6])
    store = tmp_path / "s.aam"
    assert join(store, {"a": a, "b": b}) == 0
    printed = messages(capsys)
    assert "ASVs are cut to 40 nucleotides" in printed
    assert "2 studies: 6 ASVs are in all of them, 6 of 8 in two or more" in printed
    assert "Study 'b': 2 samples, 6 ASVs; 6 with 100% of the reads" in printed
    assert "a.s1" in printed
    study, metadata = load_study(TableOptions(table=store)), read_metadata(store)
    ids = ("a.s1", "s2", "b.s1", "t2")
    assert tuple(study.table.sample_ids) == ids
    assert set(decode(study.tokens_FL)) == {dna[:40] for dna in DNA}
    assert metadata.values("study", ids).tolist() == ["a", "a", "b", "b"]
    assert metadata.values("class", ids).tolist() == ["case", "control"] * 2
    assert metadata.values("age", ids).tolist() == ["5", "6", "", ""]
    # Reads are those of the files.
    assert sum(counts_of(study)["t2"].values()) == study.reads[3]


def test_asvs_of_one_length_are_not_cut(tmp_path: Path) -> None:
    """A study whose shortest ASV is an artefact keeps the others whole."""
    a = write_study(tmp_path, "a", ONE, asvs=[*DNA, DNA[0][:20]])
    assert join(tmp_path / "s.aam", {"a": a, "b": write_study(tmp_path, "b", TWO)}) == 0
    found = decode(load_study(TableOptions(table=tmp_path / "s.aam")).tokens_FL)
    assert set(found) == {*DNA, DNA[0][:20]}


def test_the_tips_of_the_tree_stand_for_asvs_that_are_cut(tmp_path: Path) -> None:
    twins = [DNA[0] + "A", DNA[0] + "C", DNA[1] + "A"]
    a = write_study(tmp_path, "a", ONE, asvs=twins)
    b = write_study(tmp_path, "b", TWO, asvs=[DNA[0], DNA[1]])
    tree = tmp_path / "tree.nwk"
    tree.write_text(f"(({twins[0]}:1,{twins[1]}:2):1,{twins[2]}:3);\n")
    store = tmp_path / "s.aam"
    assert join(store, {"a": a, "b": b}, ("--tree", tree)) == 0
    study = load_study(TableOptions(table=store), PhylogenyOptions())
    assert study.phylogeny is not None
    below = np.split(study.phylogeny.indices, study.phylogeny.indptr[1:-1])
    lengths = {
        name: float(study.phylogeny.lengths_G[branches].sum())
        for name, branches in zip(study.table.feature_ids, below, strict=True)
    }
    assert lengths == {DNA[0]: 2.0, DNA[1]: 3.0}


def test_hashes_have_a_fasta_each(tmp_path: Path) -> None:
    """The same id may name a short sequence in one study and a long one in the other."""
    studies, files = {}, []
    for name, length in (("a", 50), ("b", 40)):
        dna_of = {hashlib.md5(dna[:length].encode()).hexdigest(): dna[:length] for dna in DNA}
        rows = {f"{name}{row}": value for row, value in enumerate(CLASSES)}
        studies[name] = write_study(tmp_path, name, rows, asvs=[*dna_of])
        fasta = tmp_path / f"{name}.fasta"
        fasta.write_text("".join(f">{md5}\n{dna}\n" for md5, dna in dna_of.items()))
        taxonomy = tmp_path / f"{name}.taxonomy.tsv"
        # The studies name the genus of the first ASV differently, and b has no taxon of the last.
        genera = [f"G{k}{name if k == 0 else ''}" for k in range(len(DNA) - (name == "b"))]
        lines = [f"{md5}\td__B; g__{g}\n" for md5, g in zip(dna_of, genera, strict=False)]
        taxonomy.write_text("".join(["Feature ID\tTaxon\n", *lines]))
        files += ["--sequences", fasta, "--taxonomy", taxonomy]
    assert join(tmp_path / "s.aam", studies, tuple(files)) == 0
    found = decode(load_study(TableOptions(table=tmp_path / "s.aam")).tokens_FL)
    assert set(found) == {dna[:40] for dna in DNA}
    # ASVs that are cut have other ids than the taxonomies.
    taxa = read_taxonomy(tmp_path / "s.aam")
    genera = {dna[:40]: f"d__B; g__G{k}" for k, dna in enumerate(DNA)}
    assert taxa == genera | {DNA[0][:40]: "d__B"}
    assert join(tmp_path / "t.aam", studies, tuple(files[:2] + files[4:6])) == 0
    with pytest.raises(DataError, match="holds no taxonomy"):
        read_taxonomy(tmp_path / "t.aam")


def test_the_same_sample_in_two_studies_is_kept_in_the_first(
    tmp_path: Path, capsys: Capture
) -> None:
    studies = two(tmp_path, a=ONE, b=TWO)
    lines = [line.split("\t") for line in studies["a"][0].read_text().splitlines()]
    first = {row[0]: int(row[1]) for row in lines[1:]}
    table = write_table(tmp_path / "b.tsv", {"b0": first, "b1": {DNA[0]: 7}})
    store = tmp_path / "s.aam"
    assert join(store, {"a": studies["a"], "b": (table, studies["b"][1])}) == 0
    assert "left out: 1 (b0); b0 is a copy of a0 of 'a'" in messages(capsys)
    study = load_study(TableOptions(table=store))
    assert tuple(study.table.sample_ids) == (*ONE, "b1")
    assert set(read_metadata(store).ids) == {*ONE, "b1"}
    copy = write_table(tmp_path / "b.tsv", {"b0": first})
    assert join(store, {"a": studies["a"], "b": (copy, studies["b"][1])}, ("--overwrite",)) != 0
    assert "Study 'b' has no sample of its own" in messages(capsys)


@pytest.mark.parametrize(
    ("asvs", "sentence"),
    [
        ([dna[5:] for dna in DNA], "ASVs of study 'b' begin 5 nucleotides later"),
        ([f"ACCA{dna}" for dna in DNA], "ASVs of study 'a' begin 4 nucleotides later"),
        (
            [dna[::-1].translate(str.maketrans("ACGT", "TGCA")) for dna in DNA],
            "ASVs of study 'b' have the opposite direction",
        ),
        (["".join(RNG.choice(list("ACGT"), 50)) for _ in range(6)], "regions or primers differ"),
    ],
    ids=["later", "primer", "reverse", "region"],
)
def test_studies_of_another_region_or_start_are_refused(
    asvs: list[str], sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    studies = two(tmp_path, a=ONE) | {"b": write_study(tmp_path, "b", TWO, asvs=asvs)}
    assert join(tmp_path / "s.aam", studies) == DataError.status
    printed = messages(capsys)
    assert "ASVs of study 'a' and study 'b' begin differently" in printed
    assert sentence in printed
    assert not (tmp_path / "s.aam").exists()


def test_studies_without_a_common_asv_are_named(tmp_path: Path, capsys: Capture) -> None:
    b = write_study(tmp_path, "b", TWO, asvs=[dna + "A" for dna in DNA[:4]])
    studies = two(tmp_path, a=ONE) | {"b": b}
    assert join(tmp_path / "s.aam", studies, ("--trim-length", 0)) == 0
    assert "Studies without an ASV in common: 1 (a and b)" in messages(capsys)


@pytest.mark.parametrize(
    ("headers", "cells", "sentence"),
    [
        (("Age", "age"), ("5", "7"), "'Age' in 'a', 'age' in 'b'; --relabel age=Age joins them"),
        (("age", "age"), ("5", "old"), "has numbers in studies 1 (a), but words in 'b': 1 (old)"),
        (("age", "age"), ("3", "36"), "its median is 3 in 'a', 36 in 'b'"),
        (("study", "site"), ("x", "y"), "The column 'study' of the metadata is now"),
    ],
)
def test_columns_that_do_not_agree_are_warned_of(
    headers: tuple[str, str], cells: tuple[str, str], sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    studies = {
        name: write_study(tmp_path, name, dict.fromkeys(rows, cell), header)
        for name, rows, cell, header in zip("ab", (ONE, TWO), cells, headers, strict=True)
    }
    assert join(tmp_path / "s.aam", studies) == 0
    assert sentence in messages(capsys)


def test_classes_of_two_names_are_relabelled(tmp_path: Path, capsys: Capture) -> None:
    other = {name: {"case": "CD", "control": "HC"}[value] for name, value in TWO.items()}
    studies = two(tmp_path, a=ONE) | {"b": write_study(tmp_path, "b", other, "Class")}
    store = tmp_path / "s.aam"
    pairs = ("--relabel", "Class=class")
    assert join(store, studies, pairs) == 0
    printed = messages(capsys)
    assert "has other classes: case, control in 'a' but CD, HC in 'b'" in printed
    assert "--relabel class:CD=" in printed
    by_option = ("--relabel", "Class=class,class:CD=case,class:HC=control", "--overwrite")
    file = tmp_path / "names.tsv"
    file.write_text("column\tvalue\tnew\nClass\t\tclass\nclass\tCD\tcase\nclass\tHC\tcontrol\n")
    for more in (by_option, ("--relabel-file", file, "--overwrite")):
        assert join(store, studies, more) == 0
        assert "other classes" not in messages(capsys)
        ids = (*ONE, *TWO)
        assert read_metadata(store).values("class", ids).tolist() == [*CLASSES, *CLASSES]


def test_equal_columns_cause_no_warning(tmp_path: Path, capsys: Capture) -> None:
    assert join(tmp_path / "s.aam", two(tmp_path, a=ONE, b=TWO)) == 0
    assert "warning" not in messages(capsys)


@pytest.mark.parametrize(
    ("more", "error", "sentence"),
    [
        (("--relabel", "klass=x"), DataError, "did you mean 'class'?"),
        (("--relabel", "class:kase=x"), DataError, "did you mean 'case'?"),
        (("--relabel", "class"), UsageError, "write COLUMN:VALUE=NEW"),
        (("--relabel-file", __file__), DataError, "give three tab-separated columns"),
        (("--relabel-file", EMPTY_NAME), UsageError, "line 2 of"),
        (("--studies", "NA,b"), UsageError, "'NA'"),
        (("--studies", "b,B"), UsageError, "Two studies with one name"),
    ],
)
def test_wrong_names_are_refused(
    more: tuple[str, ...], error: type[AamError], sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    if EMPTY_NAME in more:
        more = ("--relabel-file", str(tmp_path / "names.tsv"))
        (tmp_path / "names.tsv").write_text("column\tvalue\tnew\nclass\tcase\t \n")
    if "--studies" in more:
        (a, of_a), (b, of_b) = two(tmp_path, a=ONE, b=TWO).values()
        given = ("--metadata", of_a, "--metadata", of_b, *more)
        assert prepare(tmp_path / "s.aam", a, b, more=given) == error.status
        assert sentence in messages(capsys)
        return
    assert join(tmp_path / "s.aam", two(tmp_path, a=ONE, b=TWO), more) == error.status
    assert sentence in messages(capsys)


def test_one_study_or_one_without_metadata_is_refused(tmp_path: Path, capsys: Capture) -> None:
    studies = two(tmp_path, a=ONE, b=TWO)
    (a, of_a), (b, _) = studies.values()
    store = tmp_path / "s.aam"
    assert prepare(store, a, more=("--studies", "a")) == UsageError.status
    assert "One study alone cannot be joined" in messages(capsys)
    for files in ([of_a], [of_a, of_a]):
        given = [word for path in files for word in ("--metadata", path)]
        assert prepare(store, a, b, more=("--studies", "a,b", *given)) == DataError.status
        assert "Study 'b' has no metadata: none of its samples, 4 (b0, " in messages(capsys)
    # Ids that both tables have get a prefix, which a single file does not have.
    same = two(tmp_path, c=ONE, d=ONE)
    given = ("--studies", "c,d", "--metadata", same["c"][1])
    assert prepare(store, same["c"][0], same["d"][0], more=given) == DataError.status
    assert "give one file of metadata for each table" in messages(capsys)
    tree = tmp_path / "tree.nwk"
    tree.write_text("(a:1,b:1);")
    given = ("--studies", "a,b", "--tree", tree, "--tree", tree)
    assert prepare(store, a, b, more=given) == DataError.status
    printed = messages(capsys)
    assert "--tree is given 2 times" in printed
    assert "None of the table's features is in the tree" in printed
    # A sample without a row still has its study, and so do studies without metadata.
    b_alone = tmp_path / "b-one.tsv"
    b_alone.write_text("sample-id\tclass\nb0\tcase\n")
    assert join(store, {"a": (a, of_a), "b": (b, b_alone)}) == 0
    assert "Samples without metadata: 3 of 8" in messages(capsys)
    assert read_metadata(store).values("study", ["b0", "b3"]).tolist() == ["b", "b"]
    store = tmp_path / "t.aam"
    assert prepare(store, a, b, more=("--studies", "a,b")) == 0
    assert dict(read_metadata(store).columns).keys() == {"study"}


@pytest.mark.parametrize(("turned", "warned"), [(4, True), (0, False)])
def test_asvs_that_are_read_in_the_other_direction_are_counted(
    turned: int, warned: bool, tmp_path: Path, capsys: Capture
) -> None:
    complement = str.maketrans("ACGT", "TGCA")
    asvs = [dna.translate(complement)[::-1] for dna in DNA[:turned]] + DNA[turned:]
    studies = two(tmp_path, a=ONE) | {"b": write_study(tmp_path, "b", TWO, asvs=asvs)}
    assert join(tmp_path / "s.aam", studies) == 0
    said = "4 of 8 ASVs of study 'b' and the ASVs of study 'a' have opposite" in messages(capsys)
    assert said == warned


def test_taxonomies_that_differ_are_named(tmp_path: Path, capsys: Capture) -> None:
    studies = two(tmp_path, a=ONE, b=TWO)
    files = []
    for name, genus in (("one", "g__A"), ("two", "g__B"), ("short", "g__")):
        rows = [
            f"{dna}\td__Bacteria; {genus if row < 3 else 'g__C'}" for row, dna in enumerate(DNA)
        ]
        files.append(tmp_path / f"{name}.tsv")
        files[-1].write_text("\n".join(["Feature ID\tTaxon", *rows]) + "\n")
    one, other, short = files
    assert join(tmp_path / "s", studies, ("--taxonomy", one, "--taxonomy", other)) == 0
    assert "The taxonomies differ for 3 ASVs" in messages(capsys)
    # A rank without a name is no other name, and one file for both does not differ from itself.
    for more in ((one, short), (one,)):
        given = [word for path in more for word in ("--taxonomy", path)]
        assert join(tmp_path / "s", studies, (*given, "--overwrite")) == 0
        assert "taxonomies differ" not in messages(capsys)


def test_a_study_without_samples_is_named(tmp_path: Path, capsys: Capture) -> None:
    (a, of_a), (b, of_b) = two(tmp_path, a=ONE, b=TWO).values()
    write_table(b, {name: dict.fromkeys(DNA, 0) for name in TWO})
    given = ("--metadata", of_a, "--metadata", of_b, "--studies", "a,b", "--drop-empty-samples")
    assert prepare(tmp_path / "s.aam", a, b, more=given) == DataError.status
    assert "Study 'b' has no sample" in messages(capsys)
    assert not (tmp_path / "s.aam").exists()


@pytest.mark.parametrize(
    ("headers", "cells", "sentence"),
    [
        (("sex", "gender"), ("female", "male"), "--relabel gender=sex joins them"),
        (("smoker", "antibiotics"), ("yes", "no"), ""),
    ],
)
def test_columns_of_other_names_with_the_same_classes(
    headers: tuple[str, str],
    cells: tuple[str, str],
    sentence: str,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    studies = {
        name: write_study(
            tmp_path, name, {s: cells[k % 2] for k, s in enumerate(rows)}, f"{header}"
        )
        for name, rows, header in zip("ab", (ONE, TWO), headers, strict=True)
    }
    assert join(tmp_path / "s.aam", studies) == 0
    printed = messages(capsys)
    assert sentence in printed and ("warning" in printed) == bool(sentence)


def test_free_text_is_no_class(tmp_path: Path, capsys: Capture) -> None:
    texts = ("sampled at home by post", "sampled at home by nurse"), ("clinic", "first visit")
    studies = {
        name: write_study(tmp_path, name, {s: of[k % 2] for k, s in enumerate(rows)}, "note")
        for name, rows, of in zip("ab", (ONE, TWO), texts, strict=True)
    }
    assert join(tmp_path / "s.aam", studies) == 0
    assert "warning" not in messages(capsys)
