"""Metadata columns, targets, groups and splits: what cells say, and errors in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aam.data.metadata import read_metadata
from tests.support.bench import DATA, USAGE, Bench, Refused
from tests.support.commands import aam, read

# Targets


def test_target_that_is_constant(bench: Bench, refused: Refused) -> None:
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


# Groups and splits


def test_groups_that_are_not_there(bench: Bench, refused: Refused) -> None:
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


# --- cells: types, separators, codes and orders


def typed(bench: Bench, values: list[str], kind: str) -> tuple[str, ...]:
    """Metadata whose column x has values and a type."""
    metadata = Path(bench.column(values)[1])
    header, *rows = metadata.read_text().splitlines()
    columns = header.split("\t")
    types = ["#q2:types", *(kind if name == "x" else "" for name in columns[1:])]
    metadata.write_text("\n".join([header, "\t".join(types), *rows]) + "\n")
    return "--metadata", str(metadata), "--metadata-column", "x"


def test_whole_numbers_of_the_type_categorical_are_classes(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    vineyards = [str(1 + k % 3) for k in range(36)]
    of_column = typed(bench, vineyards, "categorical")
    assert bench.train(*of_column, "--members", "kernel") == 0
    assert " classes: " in capsys.readouterr().err
    assert json.loads((bench.out / "run.json").read_text())["classes"] == ["1", "2", "3"]
    # A prepared study keeps the type.
    store = bench.work / "study.aam"
    table = bench.good / "table.biom"
    assert aam("prepare", "--table", table, "--metadata", of_column[1], "--output", store) == 0
    assert read_metadata(store).categorical == {"x"}


def test_numbers_without_a_type_stay_numbers(bench: Bench) -> None:
    values = [str(1 + k % 3) for k in range(36)]
    assert bench.train(*typed(bench, values, ""), "--members", "kernel") == 0
    assert json.loads((bench.out / "run.json").read_text())["classes"] == []


def test_separators_of_thousands_are_ambiguous(bench: Bench, refused: Refused) -> None:
    values = [f"1,{400 + k}" for k in range(36)]
    refused(bench.train(*bench.column(values)), DATA, "1400 for 1,400", "1.400 if it is a decimal")
    values = [f"{k},5" for k in range(36)]
    refused(bench.train(*bench.column(values)), DATA, "write decimal points, not commas")


def target(bench: Bench, values: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What `aam inspect` prints about a column as target."""
    _, metadata, *_ = bench.column(values)
    aam("inspect", bench.good / "table.biom", metadata, "x", "--members", "kernel", "--json")
    findings = json.loads(capsys.readouterr().out)["findings"]
    return " ".join(one["text"] for one in findings if one["subject"] == "target")


@pytest.mark.parametrize(
    ("numbers", "code"), [(range(18, 54), "-9999"), (range(1, 37), "999"), (range(36), "-99")]
)
def test_codes_of_missing_values(
    bench: Bench, capsys: pytest.CaptureFixture[str], numbers: range, code: str
) -> None:
    values = [*map(str, numbers)]
    values[3] = values[8] = code
    assert f"'x' is {code} in 2 of 36 samples" in target(bench, values, capsys)
    # Also of a column that is no target.
    _, metadata, *_ = bench.column(values)
    assert aam("inspect", bench.good / "table.biom", metadata, "--json") == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    named = [one["subject"] for one in findings if "code for a missing value" in one["text"]]
    assert named == ["x"]


@pytest.mark.parametrize("first", [64, -99, 980, -9])
def test_plausible_numbers_are_no_codes(
    bench: Bench, capsys: pytest.CaptureFixture[str], first: int
) -> None:
    values = [str(first + k) for k in range(36)]
    assert "missing value" not in target(bench, values, capsys)


@pytest.mark.parametrize(
    "order",
    ["low,medium,high", "I,II,III,IV", "<20,20-40,40-60,>60", "stage i,stage ii,Stage III"],
)
def test_ordered_words_hint_at_the_option(
    bench: Bench, capsys: pytest.CaptureFixture[str], order: str
) -> None:
    names = order.split(",")
    hint = target(bench, [names[k % len(names)] for k in range(36)], capsys)
    assert f"--ordinal {order}." in hint.replace("'", "")


@pytest.mark.parametrize("names", [["mix", "six", "fix"], ["low", "high"], ["1a", "2a", "3a"]])
def test_names_without_an_order_have_no_hint(
    bench: Bench, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    assert "--ordinal" not in target(bench, [names[k % len(names)] for k in range(36)], capsys)
