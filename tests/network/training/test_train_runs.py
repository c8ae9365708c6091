"""Runs of `aam train`: targets, losses, folds, schedules, run record and splits."""

from __future__ import annotations

import hashlib
import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from aam.contract.errors import UsageError
from aam.contract.version import __version__
from aam.network.inference.stored_networks import read_networks
from aam.pipeline.labelled_study import class_weights
from tests.support.commands import aam, read, train
from tests.support.models import Editable, rewrite
from tests.support.runs import (
    CLASS,
    FILES,
    NUMBER,
    check_metrics,
    check_one_side,
    columns,
    files,
    predict,
    weights,
)

BOTH = ("unifrac", "nucleotide", "target")

TRAINED = {
    *("model/training.safetensors", "predictions.tsv", "importance.tsv", "report.html"),
    "scores.json",
    "explanations.tsv",
}
"""Files of a run with a target, besides those of pretraining."""


@pytest.mark.parametrize(
    "args",
    [
        "--loss-type mse --target-transform none --where site=site-1 --batch-size 4",
        "--loss-type mae --target-transform minmax --patience 0 --max-grad-norm 0",
        "--loss-type asymmetric --over-penalty 3 --target-transform log-zscore --best-metric mae",
    ],
)
def test_train_numbers(study_dir: Path, tree: tuple[str, Path], tmp_path: Path, args: str) -> None:
    folder = tmp_path / "run"
    assert train(study_dir, folder, *tree, *args.split()) == 0
    assert files(folder) == FILES | TRAINED
    check_metrics(folder / "metrics.csv", columns(*BOTH) | NUMBER)
    predictions = read(folder / "predictions.tsv")
    assert list(predictions.columns) == [
        *("sample-id", "fold", "split", "actual", "predicted"),
        "transformer_predicted",
    ]
    if "none" not in args:
        # A model that has learnt nothing yet answers near the mean of what it was trained on.
        actual = read(study_dir / "metadata.tsv")["ph"].drop(index=0).astype(float)
        assert actual.min() < predictions["predicted"].mean() < actual.max()


def test_train_without_a_tree(study_dir: Path, tmp_path: Path) -> None:
    assert train(study_dir, tmp_path) == 0
    check_metrics(tmp_path / "metrics.csv", columns("nucleotide", "target") | NUMBER)
    of_before = [tmp_path / name for name in ("importance.tsv", "predictions.tsv", "splits.tsv")]
    for path in of_before:
        path.write_text("")
    assert train(study_dir, tmp_path, "--nuc-penalty", 0, "--overwrite") == 0
    check_metrics(tmp_path / "metrics.csv", columns("target") | NUMBER)
    assert all(path.stat().st_size for path in of_before)


def test_quantiles_rise(study_dir: Path, tmp_path: Path) -> None:
    quantiles = ("--loss-type", "quantile", "--quantiles", 0.9, 0.1, 0.5)
    assert train(study_dir, tmp_path, *quantiles) == 0
    predictions = read(tmp_path / "predictions.tsv")
    levels = predictions[["q_0.1", "q_0.5", "q_0.9"]].to_numpy()
    assert (np.diff(levels, axis=1) >= 0).all()
    assert predictions["predicted"].tolist() == predictions["q_0.5"].tolist()


def test_classes(study_dir: Path, classes: Path) -> None:
    assert files(classes) == FILES | TRAINED
    check_metrics(classes / "metrics.csv", columns("nucleotide", "target") | CLASS)
    predictions = read(classes / "predictions.tsv")
    names = ["site-1", "site-2", "site-3"]
    chances = predictions[[f"p_{name}" for name in names]]
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    likeliest = [names[i] for i in chances.to_numpy().argmax(axis=1)]
    assert predictions["predicted"].tolist() == likeliest
    truth = read(study_dir / "metadata.tsv").set_index("sample-id")["site"]
    assert predictions["actual"].tolist() == truth[predictions["sample-id"]].tolist()
    # Stratified: the same share of each site's samples validates.
    shares = predictions["actual"].value_counts() / truth.iloc[1:].value_counts()
    assert shares.max() - shares.min() < 0.15
    config = read_networks(classes)[0].config
    assert config.target is not None
    assert config.target.classes == tuple(names)
    assert len(config.target.class_weights) == 3


def keep(fold: int, content: Editable) -> None:
    """Leave the network of one fold in a model."""
    settings, arrays = content.settings["transformer"], content.arrays
    settings["networks"] = [settings["networks"][fold - 1]]
    arrays["transformer"] = {
        f"1/{name.removeprefix(f'{fold}/')}": array
        for name, array in arrays["transformer"].items()
        if name.startswith(f"{fold}/")
    }


@pytest.mark.medium
def test_folds_test_every_sample_once(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--folds", 3, "--group-column", "subject", "--rarefy-depth", 200)
    assert train(study_dir, tmp_path / "run", *tree, *args) == 0
    printed = capsys.readouterr()
    labels = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph")
    assert aam("evaluate", "--predictions", tmp_path / "run/predictions.tsv", *labels) == 0
    table = capsys.readouterr().out
    first_cells = [line.strip().split("  ")[0] for line in table.splitlines() if line.strip()]
    assert first_cells[-6:] == ["fold 1", "fold 2", "fold 3", "mean", "sd", "all samples"]
    assert f"Model and report: {tmp_path / 'run' / 'report.html'}" in printed.err.splitlines()
    inside = {"metrics.csv", "checkpoints/best.ckpt", "checkpoints/last.ckpt"}
    top = {".lock", "run.json", "progress.json", "splits.tsv", "predictions.tsv", "embeddings.tsv"}
    top |= {"model/model.json", "model/transformer.safetensors", *TRAINED}
    top |= {"ro-crate-metadata.json"}
    assert files(tmp_path / "run") == top | {f"fold-{k}/{n}" for k in (1, 2, 3) for n in inside}
    splits = read(tmp_path / "run/splits.tsv")
    check_one_side(splits)
    tested = splits[splits["split"] == "test"]
    assert sorted(tested["sample-id"]) == sorted(splits[splits["fold"] == 1]["sample-id"])
    predictions = read(tmp_path / "run/predictions.tsv")
    assert set(predictions["split"]) == {"test"}
    key = ["sample-id", "fold"]
    assert predictions[key].values.tolist() == tested[key].values.tolist()
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert [set(fold) >= {"best", "epochs", "parameters"} for fold in record["folds"]] == [True] * 3

    # The same split again from its file, and the mean of the folds for a table.
    again = ("--splits", tmp_path / "run/splits.tsv", "--rarefy-depth", 200)
    assert train(study_dir, tmp_path / "again", *tree, *again) == 0
    text = (tmp_path / "again/splits.tsv").read_text().splitlines()
    given = (tmp_path / "run/splits.tsv").read_text().splitlines()
    assert [line.split("\t")[:3] for line in text] == [line.split("\t")[:3] for line in given]
    means = predict(study_dir / "table.biom", tmp_path / "run", tmp_path / "mean.tsv")
    each = [
        predict(
            study_dir / "table.biom",
            rewrite(tmp_path / "run", tmp_path / f"network-{k}", partial(keep, k)),
            tmp_path / f"{k}.tsv",
        )
        for k in (1, 2, 3)
    ]
    expected = np.mean([table["predicted"] for table in each], axis=0)
    np.testing.assert_allclose(means["predicted"], expected, rtol=2e-5)


def test_recomputed_activations_change_no_number(
    study_dir: Path, tree: tuple[str, Path], numbers: Path, tmp_path: Path
) -> None:
    args = ("--epochs", 2, "--lr", 0.01, "--group-column", "subject", "--gradient-checkpointing")
    assert train(study_dir, tmp_path, *tree, *args) == 0
    one, two = (
        read(folder / "metrics.csv").drop(columns="seconds") for folder in (numbers, tmp_path)
    )
    pd.testing.assert_frame_equal(one, two, rtol=1e-4)


def test_accumulated_batches_are_one_step(study_dir: Path, tmp_path: Path) -> None:
    args = ("--gradient-accumulation-steps", 3, "--epochs", 2, "--batch-size", 4)
    assert train(study_dir, tmp_path, *args) == 0
    training = (read(tmp_path / "splits.tsv")["split"] == "train").sum()
    steps = math.ceil(math.ceil(training / 4) / 3)
    assert read(tmp_path / "metrics.csv")["step"].tolist() == [steps, 2 * steps]


def test_the_learning_rate_falls_to_zero(numbers: Path) -> None:
    assert read(numbers / "metrics.csv")["lr"].iloc[-1] == pytest.approx(0, abs=1e-9)


# The run folder


def test_run_json_records_command_versions_and_inputs(study_dir: Path, numbers: Path) -> None:
    record = json.loads((numbers / "run.json").read_text())
    assert (record["aam"], record["command"]) == (__version__, "train")
    assert record["versions"]["torch"] == torch.__version__
    assert set(record["inputs"]) == {"--table", "--tree", "--metadata"}
    data = (study_dir / "table.biom").read_bytes()
    assert record["inputs"]["--table"] == {
        "path": str((study_dir / "table.biom").resolve()),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert record["options"]["loop"]["lr"] == 0.01
    assert record["options"]["split"]["group_column"] == "subject"
    splits = read(numbers / "splits.tsv")["split"].value_counts()
    assert record["samples"] == {"train": splits["train"], "validation": splits["validation"],
                                 "test": 0}  # fmt: skip
    assert record["finished"] >= record["started"]
    learnt = {name: v for name, v in weights(numbers).items() if ".profile." not in name}
    assert record["parameters"] == sum(v.numel() for v in learnt.values())
    best = read(numbers / "metrics.csv")["val_loss"].min()
    assert record["best"]["best_val_loss"] == pytest.approx(best, rel=1e-6)
    config = read_networks(numbers)[0].config
    assert json.loads(json.dumps(config.options)) == record["options"]


def test_class_weights_are_given_by_name() -> None:
    classes, samples = ("gut", "oral=wet", "skin"), np.array([10, 20, 30])
    assert class_weights("none", classes, samples) == ()
    assert class_weights("balanced", classes, samples) == (2, 1, pytest.approx(2 / 3))
    assert class_weights("skin=0.5, oral=wet=3", classes, samples) == (1, 3, 0.5)
    for text, expected in (
        ("skim=2", "did you mean 'skin'"),
        ("gut=1,gut=2", "'gut' is given twice"),
        ("gut=much", "not a number above 0"),
    ):
        with pytest.raises(UsageError) as caught:
            class_weights(text, classes, samples)
        assert expected in str(caught.value)
