"""`aam evaluate` on predictions and metadata files: join by id, table, JSON, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from aam.cli import main
from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.members.prediction_tables import join_targets

METADATA = "sample-id\tage\till\na\t1\tyes\nb\t2\tno\nc\t3\tyes\nd\t\tno\ne\t5\tno\n"


def evaluate(
    folder: Path, predictions: str, *more: str, column: str = "age", metadata: str = METADATA
) -> int:
    (folder / "predictions.tsv").write_text(predictions)
    (folder / "metadata.tsv").write_text(metadata)
    args = ["--predictions", str(folder / "predictions.tsv")]
    args += ["--metadata", str(folder / "metadata.tsv"), "--metadata-column", column]
    return main(["evaluate", *args, *more])


def test_rows_are_joined_by_id_not_by_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "figures.json"
    text = "sample-id\tpredicted\ne\t5\nc\t3\na\t2\nb\t2\nd\t9\n"
    assert evaluate(tmp_path, text, "--output", str(output)) == 0
    found = json.loads(output.read_text())
    assert found["overall"]["samples"] == 4
    assert found["overall"]["mae"] == pytest.approx(0.25)
    assert found["folds"] == {}
    shown = capsys.readouterr()
    assert "R²" in shown.out
    assert "0.250" in shown.out
    assert "1 with 'age' ''" in shown.err
    assert evaluate(tmp_path, text, "--output", str(output)) == CannotCreate.status
    assert evaluate(tmp_path, text, "--output", str(output), "--overwrite") == 0


def test_a_condition_restricts_the_scored_samples(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    text = "sample-id\tpredicted\ne\t5\nc\t99\na\t2\nb\t2\n"
    where = ("--where", "age!=3 and ill in (yes, no)")
    assert evaluate(tmp_path, text, "--output", str(output), *where) == 0
    found = json.loads(output.read_text())["overall"]
    assert (found["samples"], found["mae"]) == (3, pytest.approx(1 / 3))
    assert evaluate(tmp_path, text, "--where", "age") == UsageError.status


def test_errors_are_shown_by_the_values_of_metadata_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(f"s{k}", k, "north" if k < 6 else "south" if k < 9 else "") for k in range(10)]
    metadata = "sample-id\tage\tsite\tdepth\n"
    metadata += "".join(f"{name}\t{age}\t{site}\t{100 - age}\n" for name, age, site in rows)
    text = "sample-id\tpredicted\n"
    text += "".join(f"{name}\t{age + (2 if site == 'south' else 0)}\n" for name, age, site in rows)
    output = tmp_path / "figures.json"
    args = ("--by", "site", "depth", "--output", str(output))
    assert evaluate(tmp_path, text, *args, metadata=metadata) == 0
    found = json.loads(output.read_text())["by"]
    figures = {name: (one["samples"], one["mae"]) for name, one in found["site"].items()}
    assert figures == {"(missing)": (1, 0), "north": (6, 0), "south": (3, 2)}
    # Ten depths in four bins; the samples of the south have the lowest.
    assert list(found["depth"]) == ["91 to 93.25", "93.25 to 95.5", "95.5 to 97.75", "97.75 to 100"]
    assert [one["samples"] for one in found["depth"].values()] == [3, 2, 2, 3]
    assert [one["mae"] for one in found["depth"].values()] == pytest.approx([4 / 3, 1, 0, 0])
    shown = capsys.readouterr().out
    assert "By site" in shown
    assert "By depth" in shown
    assert evaluate(tmp_path, text, "--by", "sex", metadata=metadata) == DataError.status


def test_bins_of_numbers_that_begin_alike_keep_their_samples(tmp_path: Path) -> None:
    metadata = "sample-id\tage\tdate\n"
    metadata += "".join(f"s{k}\t{k}\t{20190101 + k}\n" for k in range(100))
    text = "sample-id\tpredicted\n" + "".join(f"s{k}\t{k}\n" for k in range(100))
    output = tmp_path / "figures.json"
    args = ("--by", "date", "--output", str(output))
    assert evaluate(tmp_path, text, *args, metadata=metadata) == 0
    found = json.loads(output.read_text())["by"]["date"]
    assert list(found)[:2] == ["20190101 to 20190126", "20190126 to 20190150"]
    assert [one["samples"] for one in found.values()] == [25, 25, 25, 25]


def test_predictions_of_another_column_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "sample-id\tactual\tpredicted\na\t1.0\t1\nb\t2\t2\nc\t3\t2\n"
    metadata = "sample-id\tage\tdays\na\t1\t1\nb\t2\t60\nc\t3\t90\n"
    assert evaluate(tmp_path, text, metadata=metadata) == 0
    assert "differs" not in capsys.readouterr().err
    assert evaluate(tmp_path, text, column="days", metadata=metadata) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "'days' differs from the true values" in shown
    assert "in 2 of 3 samples" in shown
    text = "sample-id\tactual\tpredicted\na\tyes\tno\nb\tno\tno\nc\tno\tno\n"
    assert evaluate(tmp_path, text, column="ill") == 0
    assert "in 1 of 3 samples" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("other", ["p_crp", "ill_p"])
def test_the_columns_of_other_targets_are_no_probabilities(tmp_path: Path, other: str) -> None:
    """Targets of one file, also where the name of one begins with that of the other."""
    ill = pd.DataFrame({
        "sample-id": ["a", "b", "c"], "fold": 1, "split": "test", "actual": ["yes", "no", "yes"],
        "predicted": ["yes", "no", "no"], "p_no": [0.2, 0.7, 0.6], "p_yes": [0.8, 0.3, 0.4],
    })  # fmt: skip
    number = ill.assign(actual=[1, 2, 3], predicted=[1, 2, 3], lower=0, kernel_predicted=1)
    number = number.drop(columns=["p_no", "p_yes"])
    for order in (("ill", other), (other, "ill")):
        tables = {name: ill if name == "ill" else number for name in order}
        text = join_targets(tables).to_csv(sep="\t", index=False)
        output = tmp_path / "figures.json"
        args = ("--output", str(output), "--overwrite")
        assert evaluate(tmp_path, text, "--classifier", *args, column="ill") == 0
        found = json.loads(output.read_text())
        assert found["confusion"]["classes"] == ["no", "yes"]
        assert found["overall"]["auc"] == 1
        metadata = f"sample-id\t{other}\na\t1\nb\t2\nc\t3\n"
        assert evaluate(tmp_path, text, *args, column=other, metadata=metadata) == 0
        assert json.loads(output.read_text())["overall"]["mae"] == 0


def test_only_held_out_rows_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "sample-id\tsplit\tpredicted\na\ttrain\t1\nb\tvalidation\t99\nc\ttest\t3\ne\ttest\t5\n"
    assert evaluate(tmp_path, text, "--output", str(tmp_path / "f.json")) == 0
    assert json.loads((tmp_path / "f.json").read_text())["overall"]["mae"] == 0
    assert "2 test rows; left out: 1 train, 1 validation rows" in capsys.readouterr().err
    assert evaluate(tmp_path, "sample-id\tsplit\tpredicted\na\ttrain\t1\n") == DataError.status


def test_classes_with_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "sample-id\tpredicted\tp_no\tp_yes\na\tyes\t0.2\t0.8\nb\tno\t0.7\t0.3\nc\tno\t0.6\t0.4\n"
        "e\tyes\t0.1\t0.9\n"
    )
    output = ["--classifier", "--output", str(tmp_path / "f.json")]
    assert evaluate(tmp_path, text, *output, column="ill") == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["overall"]["accuracy"] == 0.5
    assert found["overall"]["auc"] == 0.5
    assert found["confusion"] == {"classes": ["no", "yes"], "counts": [[1, 1], [1, 1]]}
    assert "true \\ predicted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "column", "status", "message"),
    [
        (
            "sample-id\tpredicted\nx\t1\ny\t2\n",
            "age",
            65,
            "no sample in common: the predictions have 2 (x",
        ),
        ("sample-id\tpredicted\na\t1\nb\t2\n", "agee", 65, "did you mean 'age'"),
        ("sample-id\tpredicted\na\tyes\nb\tno\n", "age", 65, "add --classifier"),
        ("sample-id\tpredicted\na\t1\na\t2\n", "age", 65, "samples twice: 1 (a)"),
    ],
)
def test_refusals(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    column: str,
    status: int,
    message: str,
) -> None:
    assert evaluate(tmp_path, text, column=column) == status
    assert message in capsys.readouterr().err
