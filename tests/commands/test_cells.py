"""What the cells of metadata and tables say: types, separators, codes and orders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aam.data.metadata import read_metadata
from tests.support.bench import DATA, Bench, Refused
from tests.support.commands import aam


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


def test_numbers_without_a_type_stay_numbers(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        bench.train(*typed(bench, [str(1 + k % 3) for k in range(36)], ""), "--members", "kernel")
        == 0
    )
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
