"""Errors of tables, sequences, phylogenies and distances: one sentence, and no run folder."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pandas as pd
import pytest

from aam.cli import main
from tests.support.bench import DATA, NO_INPUT, Bench, Refused
from tests.support.commands import aam


def short(name: str) -> str:
    """A long id as messages show it."""
    return name if len(name) <= 40 else f"{name[:37]}..."


# Ids that do not meet


def test_table_and_metadata_without_a_common_sample(bench: Bench, refused: Refused) -> None:
    path = bench.table(bench.counts.add_prefix("X"))
    phrases = ("no sample in common", "36 (XS01, XS02, XS03, XS04, XS05, ...)",
               "36 (S01, S02, S03, S04, S05, ...)")  # fmt: skip
    refused(bench.train("--table", path), DATA, *phrases)


def test_samples_without_metadata_are_counted(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.train("--metadata", bench.metadata(bench.rows[:-3])) == 0
    assert "Samples left out: 3 of 36 (3 without metadata)" in capsys.readouterr().err


def test_tree_without_any_asv_of_the_table(bench: Bench, refused: Refused) -> None:
    path = bench.table(bench.counts.rename(index=lambda name: "TT" + name))
    phrases = ("None of the table's features is in the tree", "90 (TT", "tree.nwk' has 90")
    refused(bench.pretrain("--table", path), DATA, *phrases)


def test_tree_that_lacks_asvs(
    bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    names = list(bench.counts.index[:7])
    path = bench.table(bench.counts.rename(index={name: "TT" + name for name in names}))
    phrases = ("not in the tree: 7 (", *(short("TT" + name) for name in sorted(names)[:2]),
               ", ...) of 90", "--drop-missing-asvs")  # fmt: skip
    refused(bench.pretrain("--table", path), DATA, *phrases)
    assert bench.pretrain("--table", path, "--drop-missing-asvs") == 0
    assert "Features that are not in the tree are left out: 7" in capsys.readouterr().err


def test_matrix_that_lacks_samples(bench: Bench, refused: Refused) -> None:
    ids = list(bench.counts.columns[:29])
    matrix = pd.DataFrame(0.0, index=ids, columns=ids)
    matrix.to_csv(bench.work / "m.tsv", sep="\t", index_label="")
    phrases = ("not in the distance matrix", "7 (S30, S31, S32, S33, S34, ...) of 36",
               "29 (S01, S02")  # fmt: skip
    refused(bench.pretrain("--unifrac-matrix", bench.work / "m.tsv", tree=False), DATA, *phrases)


def test_sequences_that_do_not_meet_the_table(bench: Bench, refused: Refused) -> None:
    names = {asv: f"hash{k}" for k, asv in enumerate(bench.counts.index)}
    path = bench.table(bench.counts.rename(index=names))
    refused(bench.train("--table", path), DATA, "90 (hash0, hash1", "--sequences")
    records = [f">{name}\n{asv}\n" for asv, name in names.items()]
    fasta = bench.text("few.fasta", "".join(records[3:]))
    phrases = ("without a sequence", "3 (hash0, hash1, hash2) of 90")
    refused(bench.train("--table", path, "--sequences", fasta), DATA, *phrases)
    dna = bench.table(bench.counts, "dna.tsv")
    refused(bench.train("--table", dna, "--sequences", fasta), DATA, "leave --sequences out")
    fasta = bench.text("all.fasta", "".join(records))
    assert bench.train("--table", path, "--sequences", fasta) == 0


# Duplicated ids


def test_duplicated_ids(bench: Bench, refused: Refused) -> None:
    counts, asvs = bench.counts, list(bench.counts.index)
    twice = counts.copy()
    twice.columns = ["S01", *counts.columns[:-1]]
    refused(bench.train("--table", bench.table(twice)), DATA, "Duplicated sample ids", "1 (S01)")
    twice = counts.copy()
    twice.index = [asvs[1], *asvs[1:]]
    phrases = ("Duplicated feature ids", f"1 ({short(asvs[1])})")
    refused(bench.train("--table", bench.table(twice)), DATA, *phrases)
    path = bench.metadata([*bench.rows, bench.rows[4]])
    status = bench.train("--metadata", path)
    refused(status, DATA, "Duplicated sample ids in the metadata", "S04", "keep one row of each")
    tree = bench.text("twice.nwk", bench.newick.replace(asvs[1] + ":", asvs[0] + ":"))
    phrases = ("in the tree more than once", f"1 ({short(asvs[0])})")
    refused(bench.pretrain("--tree", tree), DATA, *phrases)
    matrix = pd.DataFrame(0.0, index=counts.columns, columns=counts.columns)
    ids = ["S02", *counts.columns[1:]]
    matrix.set_axis(ids).set_axis(ids, axis=1).to_csv(bench.work / "m.tsv", sep="\t")
    given = ("--unifrac-matrix", bench.work / "m.tsv")
    refused(bench.pretrain(*given, tree=False), DATA, "twice in the distance matrix", "1 (S02)")


# Counts


@pytest.mark.parametrize(
    ("value", "phrases"),
    [
        ("-3", ("Negative counts",)),
        ("1.5", ("Fractional counts", "relative abundances")),
        ("NaN", ("Counts that are NaN or infinite",)),
        ("many", ("A count that is not a number",)),
    ],
)
def test_counts_that_are_none(
    bench: Bench, refused: Refused, value: str, phrases: tuple[str, ...]
) -> None:
    counts = bench.counts.astype(object)
    counts.iloc[0, 3] = value
    status = bench.train("--table", bench.table(counts))
    where = "line 2" if value == "many" else "1 (S04)"
    refused(status, DATA, "table.tsv", where, *phrases)


def test_relative_abundances_train_kernel_and_forest(
    bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the predictions of the counts that they were made from; a transformer needs reads."""
    shares = bench.table(bench.counts / bench.counts.sum(), "shares.tsv")
    status = bench.train("--table", shares)
    refused(status, DATA, "relative abundances, not reads", "--members kernel forest")
    refused(bench.pretrain("--table", shares), DATA, "relative abundances, not reads")
    predicted = []
    for table in (bench.table(bench.counts, "counts.tsv"), shares):
        members = ("--members", "kernel", "forest", "--overwrite")
        assert bench.train("--table", table, *members) == 0
        predicted.append(pd.read_csv(bench.out / "predictions.tsv", sep="\t", index_col=0))
    assert "are relative abundances, not reads" in capsys.readouterr().err
    np.testing.assert_allclose(predicted[1].predicted, predicted[0].predicted, 0.02)
    status = main(["inspect", "--table", str(shares)])
    shown = capsys.readouterr().out
    assert status == 0 and "relative abundances, not reads" in " ".join(shown.split())
    assert "rarefaction depth" not in shown


def test_empty_samples(bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    counts = bench.counts.copy()
    counts.iloc[:, [1, 4]] = 0
    path = bench.table(counts)
    phrases = ("Samples without reads", "2 (S02, S05)", "--drop-empty-samples")
    refused(bench.train("--table", path), DATA, *phrases)
    assert bench.train("--table", path, "--drop-empty-samples") == 0
    message = f"Samples without reads in '{path}' are left out: 2 (S02, S05)."
    assert message in capsys.readouterr().err


def test_files_that_are_none(bench: Bench, refused: Refused) -> None:
    cut = bench.work / "cut.biom"
    cut.write_bytes((bench.good / "table.biom").read_bytes()[:5000])
    for path in (cut, bench.text("empty.tsv", ""), bench.text("prose.txt", "no table\n")):
        refused(bench.train("--table", path), DATA, str(path))
    tree = bench.text("cut.nwk", bench.newick[:200])
    refused(bench.pretrain("--tree", tree), DATA, "cannot be read as Newick", "cut.nwk")
    table = bench.good / "table.biom"
    refused(bench.pretrain("--tree", table), DATA, "tree is not text", "is HDF5")
    refused(bench.train("--metadata", table), DATA, "metadata is not text", "is HDF5")
    commas = bench.text("table.csv", bench.counts.to_csv())
    refused(bench.train("--table", commas), DATA, "comma-separated", "table.csv", "(.tsv)")


def test_a_misspelt_file_is_answered_with_the_nearest(bench: Bench, refused: Refused) -> None:
    status = bench.train("--table", bench.good / "Tabel.biom")
    refused(status, NO_INPUT, "Tabel.biom' does not exist", "did you mean 'table.biom'?")


def test_messages_list_few_sequences(bench: Bench, refused: Refused) -> None:
    tree = bench.text("other.nwk", "((a:1,b:1):1,c:1);")
    message = refused(bench.pretrain("--tree", tree), DATA, "features is in the tree")
    assert len(message.replace(str(tree), "")) < 250


# Trees


@pytest.mark.parametrize(
    ("pattern", "by", "phrases"),
    [
        (r":[0-9.e+-]+", "", ("no branch lengths", "none of 179 branches")),
        (r"(ASV):", r"\1:-", ("negative length", "1 (ASV)", "set negative lengths to zero")),
        (r"(ASV):[0-9.e+-]+", r"\1", ("without a length", "1 (ASV)")),
    ],
)
def test_trees_without_good_lengths(
    bench: Bench, refused: Refused, pattern: str, by: str, phrases: tuple[str, ...]
) -> None:
    asv = str(bench.counts.index[0])
    tree = bench.text("bad.nwk", re.sub(pattern.replace("ASV", asv), by, bench.newick))
    expected = (word.replace("ASV", short(asv)) for word in phrases)
    refused(bench.pretrain("--tree", tree), DATA, "bad.nwk", *expected)


def test_the_next_command_takes_the_same_table(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = bench.counts.copy()
    counts["S01"] = 0
    noise = [str((7 * row) % 36) for row in range(36)]
    more = ("--table", bench.table(counts), "--drop-empty-samples", "--members", "kernel")
    assert bench.train(*bench.column(noise), *more, "--folds", 3) == 0
    *_, printed = [line for line in capsys.readouterr().out.splitlines() if "Next, " in line]
    assert aam(*shlex.split(printed.partition(": aam ")[2])) == 0
