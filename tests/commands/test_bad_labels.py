"""Errors of metadata columns, targets, groups and splits: one sentence, and no run folder."""

from __future__ import annotations

import shutil

import pytest

from tests.support.bench import DATA, USAGE, Bench, Refused
from tests.support.commands import read

# Targets


def test_target_that_is_absent_or_constant(bench: Bench, refused: Refused) -> None:
    phrases = ("no column 'phh'", "4: ph, site, subject, depth", "did you mean 'ph'?")
    refused(bench.train("--metadata-column", "phh"), DATA, *phrases)
    constant = bench.column(["5"] * 36)
    refused(bench.train(*constant), DATA, "'x' has one value only", "'5' in 36 samples")
    refused(bench.train(*bench.column(["sick"] * 36), "--classifier"), DATA,
            "'x' has one value only", "'sick' in 36 samples")  # fmt: skip
    one = ("--metadata-column", "site", "--classifier", "--where", "site=site-1")
    refused(bench.train(*one), DATA, "'site' has one value only", "'site-1'")


def test_target_that_is_not_numeric(bench: Bench, refused: Refused) -> None:
    values = ["acid", "acid", "basic", "NA", *(str(k) for k in range(32))]
    phrases = ("'x' is not numeric", "3 of 35 values", "2 (acid, basic)", "--classifier")
    refused(bench.train(*bench.column(values)), DATA, *phrases)
    dates = [f"{1 + k % 28:02}/0{1 + k // 28}/2020" for k in range(36)]
    refused(bench.train(*bench.column(dates)), DATA, "write dates as numbers")
    refused(bench.train(*bench.column(dates), "--classifier"), DATA,
            "'x' has another value in every sample", "ids and dates")  # fmt: skip


def test_missing_values_are_dropped_and_counted(
    bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ["NA", "Missing: Not provided", "Missing: Not provided", ""]
    assert bench.train(*bench.column([*missing, *(str(k) for k in range(32))])) == 0
    shown = capsys.readouterr().err
    assert "Samples left out: 4 of 36" in shown
    assert "2 with 'x' 'Missing: Not provided'" in shown
    assert "1 with 'x' 'NA'" in shown
    listed = (bench.out / "splits.tsv").read_text()
    assert not any(f"{name}\t" in listed for name in ("S01", "S02", "S03", "S04"))
    shutil.rmtree(bench.out)
    phrases = ("No sample has a value in the column 'x'", "36 of 36 (36 with 'x' 'NA')")
    refused(bench.train(*bench.column(["NA"] * 36)), DATA, *phrases)


def test_a_target_that_the_transform_or_the_split_cannot_take(
    bench: Bench, refused: Refused
) -> None:
    values = ["-4", *(str(k) for k in range(35))]
    phrases = ("log-zscore is not defined", "1 of -1 or less", "--target-transform zscore")
    refused(bench.train(*bench.column(values), "--target-transform", "log-zscore"), DATA, *phrases)
    header = "sample-id\tfold\tsplit\tgroup"
    rare = ["a"] * 18 + ["b"] * 17 + ["c"]
    sides = ["train"] * 30 + ["validation"] * 6
    lines = [f"{row[0]}\t1\t{side}\t" for row, side in zip(bench.rows[1:], sides, strict=True)]
    splits = bench.text("splits.tsv", "\n".join([header, *lines]) + "\n")
    given = (*bench.column(rare), "--classifier", "--splits", splits, "--rarefy-depth", 0)
    refused(bench.train(*given), DATA, "no training sample", "c")


def test_too_few_samples(bench: Bench, refused: Refused) -> None:
    phrases = ("Fewer training samples than a batch", "28 samples", "--batch-size 64")
    refused(bench.train("--batch-size", 64), DATA, *phrases)
    refused(bench.pretrain("--batch-size", 64), DATA, *phrases)
    phrases = ("rarefaction depth", "0 of 36 have 90000 reads", "lower --rarefy-depth")
    refused(bench.pretrain("--rarefy-depth", 90000), DATA, *phrases)
    refused(bench.train("--folds", 40), DATA, "Too few samples", "40 parts")


# Groups and splits


def test_groups_that_are_not_there(bench: Bench, refused: Refused) -> None:
    phrases = ("no column 'host'", "4: ph, site, subject, depth")
    refused(bench.train("--group-column", "host"), DATA, *phrases)
    refused(bench.pretrain("--group-column", "subject"), USAGE, "add --metadata")
    given = ("--metadata", bench.good / "metadata.tsv", "--group-column", "host")
    refused(bench.pretrain(*given), DATA, "no column 'host'")
    phrases = ("Too few groups", "3 for 5 parts")
    refused(bench.train("--group-column", "site", "--folds", 5), DATA, *phrases)


@pytest.mark.parametrize(
    ("lines", "phrases"),
    [
        (["a\tb"], ("Not a splits file", r"'sample-id\tfold\tsplit\tgroup'")),
        (["", "S01\t1\ttrian\t"], ("line 2", "has the split 'trian'")),
        (["", "S01\t1\ttrain\t", "S01\t1\tvalidation\t"], ("line 3", "repeats a sample")),
        (["", "Z01\t1\ttrain\t"], ("leaves no training sample",)),
        (["", "S01\t1\ttrain\t", "S02\t1\ttrain\t"], ("leaves no validation or test sample",)),
        ([], ("Not a splits file",)),
    ],
)
def test_splits_that_are_wrong(
    bench: Bench, refused: Refused, lines: list[str], phrases: tuple[str, ...]
) -> None:
    if lines and not lines[0]:
        lines = ["sample-id\tfold\tsplit\tgroup", *lines[1:]]
    path = bench.text("splits.tsv", "".join(f"{line}\n" for line in lines))
    refused(bench.train("--splits", path), DATA, *phrases, "splits.tsv")


def test_splits_that_tear_a_group_apart(bench: Bench, refused: Refused) -> None:
    header = "sample-id\tfold\tsplit\tgroup"
    ids = read(bench.good / "metadata.tsv")["sample-id"].iloc[1:]
    parts = ("train" if row % 4 else "validation" for row in range(len(ids)))
    lines = [f"{name}\t1\t{part}\t" for name, part in zip(ids, parts, strict=True)]
    path = bench.text("splits.tsv", "\n".join([header, *lines]) + "\n")
    phrases = ("divides groups between", "leave out --group-column")
    refused(bench.train("--splits", path, "--group-column", "subject"), DATA, *phrases)


def test_conditions_that_nobody_meets(bench: Bench, refused: Refused) -> None:
    phrases = ("No sample meets the condition", "site-1, site-2, site-3")
    refused(bench.train("--where", "site=mars"), DATA, *phrases)
