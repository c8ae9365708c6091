"""Several targets of `aam train`: one run each on the same folds, joined predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.commands import TINY, aam, read
from tests.support.run_folders import make_study

BOTH = "ph,depth of site"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose first ten samples have no pH and whose last ten have no depth."""
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, samples=80)
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    depth = 2 * metadata["ph"].astype(float) + 1
    metadata["depth of site"] = [f"{value:.3f}" for value in depth]
    metadata["early"] = metadata["ph"].where(metadata.index < 40, "")
    metadata["late"] = metadata["ph"].where(metadata.index >= 40, "")
    metadata["place"] = "here"
    metadata["month"] = [f"2024-{1 + row % 4:02d}-01" for row in metadata.index]
    metadata["limited"] = metadata["ph"].where(metadata.index < 20, "below detection")
    metadata.loc[:9, "ph"] = ""
    metadata.loc[70:, "depth of site"] = "not collected"
    metadata.to_csv(folder / "metadata.tsv", sep="\t", index=False)
    return folder


def train(study: Path, folder: Path, *args: object, columns: str = BOTH) -> int:
    depth = ("--rarefy-depth", 0) if "transformer" in args else ()
    return aam(
        "train", "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
        "--metadata-column", columns, "--output-dir", folder, *depth, *args,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "both"
    args = ("--members", "kernel", "--folds", 3, "--group-column", "subject")
    assert train(study, folder, *args) == 0
    return folder


@pytest.mark.medium
def test_repeats_of_each_target_are_joined(study: Path, tmp_path: Path) -> None:
    args = ("--members", "kernel", "--folds", 3, "--repeats", 2)
    assert train(study, tmp_path / "both", *args) == 0
    found = read(tmp_path / "both" / "predictions.tsv")
    assert len(found) == 80 and found["sample-id"].is_unique
    repeats = read(tmp_path / "both" / "predictions-repeats.tsv")
    assert len(repeats) == 160 and {*repeats["repeat"]} == {1, 2}
    labels = ("--metadata", study / "metadata.tsv", "--output", tmp_path / "e.json", "--overwrite")
    for column in ("ph", "depth of site"):
        given = ("--predictions", tmp_path / "both" / "predictions.tsv", *labels)
        assert aam("evaluate", *given, "--metadata-column", column) == 0
        expected = json.loads((tmp_path / f"both/target-{column}/scores.json").read_text())
        value = json.loads((tmp_path / "e.json").read_text())["overall"]["r2"]
        metrics = expected["models"]["ensemble"]["metrics"]
        assert value == pytest.approx(metrics["r2"]["value"])


def test_words_are_classes_and_numbers_are_not(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--members", "kernel", "--folds", 3, "--group-column", "subject")
    assert train(study, tmp_path / "both", *args, columns="ph,site") == 0
    assert "with 'site', 298 ASVs; 3 classes: " in capsys.readouterr().err
    assert "p_site-1" in read(tmp_path / "both" / "target-site" / "predictions.tsv")
    assert "lower" in read(tmp_path / "both" / "target-ph" / "predictions.tsv")
    # As with the option.
    assert train(study, tmp_path / "site", *args, columns="site") == 0
    assert train(study, tmp_path / "option", *args, "--classifier", columns="site") == 0
    tables = [(tmp_path / name / "predictions.tsv").read_bytes() for name in ("site", "option")]
    assert tables[0] == tables[1]
    # The class of two has an effect on words, and none on numbers.
    capsys.readouterr()
    words = ("--where", "site in (site-1, site-2)", "--positive-class", "site-1")
    assert train(study, tmp_path / "two", *args, *words, columns="ph,site") == 0
    printed = shown(capsys)
    assert "'ph': Without --classifier this option has no effect: --positive-class." in printed
    assert printed.count("--positive-class") == printed.count("; 2 classes: ") == 1
    # An option of numbers alone is refused, not ignored.
    assert train(study, tmp_path / "range", *args, "--output-min", 0, columns="site") == 64
    assert "--output-min 0.0 with --classifier" in capsys.readouterr().err


@pytest.mark.parametrize("column", ["month", "limited"])
def test_shared_dates_and_values_below_a_limit_are_no_classes(
    column: str, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(study, tmp_path / "run", "--members", "kernel", columns=column) == 65
    assert f"'{column}' is not numeric" in capsys.readouterr().err


def test_a_file_of_the_user_is_no_target(run: Path, study: Path, tmp_path: Path) -> None:
    held = shutil.copytree(run / "target-ph", tmp_path / "run")
    (held / "target-genes.tsv").write_text("mine")
    assert aam("report", "--run-dir", held) == 0
    given = ("--table", study / "table.biom", "--model", held)
    assert aam("predict", *given, "--output", tmp_path / "p.tsv") == 0


@pytest.mark.medium
def test_each_target_is_predicted_on_the_same_folds(run: Path, study: Path) -> None:
    found = read(run / "predictions.tsv")
    assert len(found) == 80 and found["sample-id"].is_unique
    ids = read(study / "metadata.tsv")["sample-id"]
    for column, without in (("ph", ids[:10]), ("depth of site", ids[70:])):
        own = read(run / f"target-{column}" / "predictions.tsv")
        assert len(own) == 70 and not set(own["sample-id"]) & set(without)
        empty = found.loc[found[f"{column}_predicted"].isna(), "sample-id"]
        assert set(empty) == set(without)
        together = own.merge(found, on=["sample-id", "fold", "split"])  # the same fold
        assert len(together) == 70
        np.testing.assert_array_equal(together["predicted"], together[f"{column}_predicted"])
        scores = json.loads((run / f"target-{column}" / "scores.json").read_text())
        assert (scores["column"], scores["samples"]) == (column, 70)
    record = json.loads((run / "run.json").read_text())
    assert record["targets"] == {name: f"target-{name}" for name in ("ph", "depth of site")}


@pytest.mark.medium
def test_predict_evaluate_and_report_read_the_run(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "p.tsv"
    args = ("--table", study / "table.biom", "--output", output)
    assert aam("predict", "--model", run, *args) == 0
    found = read(output)
    for column in ("ph", "depth of site"):
        target = run / f"target-{column}"
        assert aam("predict", "--model", target, *args, "--overwrite") == 0
        own = read(output)["predicted"]
        np.testing.assert_array_equal(found[f"{column}_predicted"], own)
    args = ("--predictions", run / "predictions.tsv", "--metadata", study / "metadata.tsv")
    json_file = tmp_path / "metrics.json"
    assert aam("evaluate", *args, "--metadata-column", "ph", "--output", json_file) == 0
    r2 = json.loads(json_file.read_text())["overall"]["r2"]
    scores = json.loads((run / "target-ph" / "scores.json").read_text())
    assert scores["models"]["ensemble"]["metrics"]["r2"]["value"] == pytest.approx(r2)
    assert aam("report", "--run-dir", run) == 0
    for column in ("ph", "depth of site"):
        assert column in (run / f"target-{column}" / "report.html").read_text()
    args = ("--table", study / "table.biom", "--output", tmp_path / "i.tsv")
    assert aam("importance", "--model", run, *args) != 0
    assert "has target-depth of site, target-ph; name the folder" in shown(capsys)


@pytest.mark.medium
def test_options_of_single_targets(study: Path, tmp_path: Path) -> None:
    """Logarithmic pH and quantiles of the depth; the other options are those of all targets."""
    (tmp_path / "loss.yaml").write_text(
        "ph:\n  target-transform: log-zscore\n  output-max: 14\n"
        "depth of site:\n  loss-type: quantile\n  quantiles: [0.2, 0.8]\n  target-penalty: 2\n"
    )
    args = ("--loss-config", tmp_path / "loss.yaml", "--members", "transformer", *TINY)
    assert train(study, tmp_path / "run", *args) == 0
    ph, depth = (
        json.loads((tmp_path / "run" / f"target-{column}" / "run.json").read_text())["options"]
        for column in ("ph", "depth of site")
    )
    assert (ph["target_transform"], ph["output_max"]) == ("log-zscore", 14)
    assert (depth["target_transform"], depth["loss_type"]) == ("zscore", "quantile")
    assert depth["target_penalty"] == 2
    found = read(tmp_path / "run" / "predictions.tsv")
    assert {"depth of site_q_0.2", "depth of site_q_0.8"} < set(found)
    # A resumed run continues each target.
    resumed = ("--resume-from", "auto", "--epochs", 2)
    assert train(study, tmp_path / "run", *args, *resumed) == 0
    for column in ("ph", "depth of site"):
        assert len(read(tmp_path / "run" / f"target-{column}" / "metrics.csv")) == 2


def test_options_of_single_targets_without_effect_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loss.yaml").write_text("ph:\n  loss-type: quantile\n  target-penalty: 2\n")
    args = ("--loss-config", tmp_path / "loss.yaml", "--members", "kernel")
    assert train(study, tmp_path / "run", *args) == 0
    printed = shown(capsys)
    assert "'ph': Without the member transformer these options have no effect:" in printed
    assert "'depth of site': Without" not in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("pH:\n  loss-type: mse\n", "An unknown key: 'pH'"),
        ("ph:\n  lr: 0.1\n", "Not an option of a target: 'lr' of 'ph'"),
        ("ph:\n  loss-type: squared\n", "Invalid value for --loss-type: 'squared' in"),
        ("ph: mse\n", "An entry of a target without options: 'ph'"),
    ],
)
def test_wrong_options_of_targets_are_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "loss.yaml").write_text(content)
    assert train(study, tmp_path / "run", "--loss-config", tmp_path / "loss.yaml") != 0
    assert message in shown(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("columns", "args", "message"),
    [
        ("early,late", (), "'early' and 'late' have no sample in common: 'early' in 40"),
        ("ph,ph", (), "Duplicate target"),
        (BOTH, ("--resume-from", __file__), "A checkpoint belongs to one target"),
    ],
)
def test_targets_that_cannot_be_trained_together_are_refused(
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    columns: str,
    args: tuple[str, ...],
    message: str,
) -> None:
    members = ("--members", "transformer") if "--resume-from" in args else ()
    assert train(study, tmp_path / "run", *args, *members, columns=columns) != 0
    assert message in shown(capsys)


@pytest.mark.medium
def test_every_target_is_checked_before_the_folder_is_made(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--members", "kernel", "--folds", 2)
    assert train(study, tmp_path / "run", *args, columns="ph,place") == 65
    assert "The column 'place' has one value only" in shown(capsys)
    assert not (tmp_path / "run").exists()


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())
