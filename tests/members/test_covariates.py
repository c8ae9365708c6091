"""Metadata as input of the ensemble: training, comparison of the inputs, prediction."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import aam
from aam.contract.errors import DataError, UsageError
from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import DeviceOptions
from aam.data.covariates import Covariates
from aam.data.simulation import simulate, write_study
from aam.evaluation.labels import Labels
from aam.members.member import estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.network.inference.stored_networks import read_networks
from aam.network.training import checkpoints
from tests.support.commands import TINY, merged, read
from tests.support.commands import aam as run_aam
from tests.support.models import Editable, rewrite

COLUMNS = ("--categorical-columns", "batch,site", "--numeric-columns", "offset")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose target is the pH and an offset that only the metadata have."""
    folder = tmp_path_factory.mktemp("study")
    options = Example(
        output_dir=folder, samples=60, asvs=150, length=60, richness=40, depth=2000, subjects=15
    )
    write_study(simulate(options), options)
    frame = pd.read_csv(folder / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    ph, rng = frame["ph"].astype(float), np.random.default_rng(0)
    frame["batch"] = [f"b{k}" for k in rng.integers(3, size=len(frame))]
    offset = frame["batch"].map({"b0": 0.0, "b1": 3.0, "b2": -3.0}) + rng.normal(size=len(frame))
    frame["offset"] = offset.round(2)
    frame["target"] = (ph + offset).round(3)
    frame["copy"] = [f"c{value:.0f}" for value in ph]
    frame.loc[:2, "batch"] = ""
    frame.to_csv(folder / "metadata.tsv", sep="\t", index=False)
    return folder


def train(study: Path, folder: Path, *args: object, column: str = "target") -> int:
    defaults = (
        "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
        "--metadata-column", column, "--output-dir", folder, "--rarefy-depth", 0,
        "--group-column", "subject", "--members", "kernel", "--folds", 3,
    )  # fmt: skip
    return run_aam("train", *merged(defaults, args))


def predict(study: Path, run: Path, output: Path, *args: object) -> int:
    table = ("--table", study / "table.biom")
    return run_aam("predict", "--model", run, *table, "--output", output, *args)


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "both"
    assert train(study, folder, *COLUMNS) == 0
    return folder


@pytest.mark.medium
def test_both_inputs_are_compared_with_each_alone(run: Path, tmp_path: Path) -> None:
    inputs = json.loads((run / "scores.json").read_text())["inputs"]
    assert inputs["columns"] == ["batch", "site", "offset"]
    r2 = {name: metrics["r2"]["value"] for name, metrics in inputs["models"].items()}
    assert list(r2) == ["metadata alone", "counts alone", "metadata and counts"]
    assert r2["metadata and counts"] > r2["metadata alone"] + 0.05
    assert r2["metadata and counts"] > r2["counts alone"] + 0.3
    assert inputs["counts_add"]
    assert inputs["conclusion"].startswith("The microbiome improves on the metadata alone.")
    page = tmp_path / "report.html"
    assert run_aam("report", "--run-dir", run, "--output", page) == 0
    text = page.read_text()
    assert "Metadata as input: batch, site, offset" in text
    assert "The microbiome improves on the metadata alone." in text


@pytest.mark.medium
def test_metadata_that_predict_as_well_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(study, tmp_path / "run", "--categorical-columns", "copy", column="ph") == 0
    printed = capsys.readouterr()
    shown = " ".join(printed.err.split())
    assert "metadata alone 0.9" in shown and "counts alone " in shown
    assert "The microbiome does not significantly improve on the metadata alone" in shown
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert not scores["inputs"]["counts_add"]
    assert "copy" not in {one["column"] for one in scores["confounders"]}


@pytest.mark.medium
def test_predict_reads_the_columns_and_names_what_is_absent(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = study / "metadata.tsv"
    assert predict(study, run, tmp_path / "a.tsv", "--metadata", metadata) == 0
    found = read(tmp_path / "a.tsv").set_index("sample-id")
    frame = pd.read_csv(metadata, sep="\t", dtype=str, index_col=0)
    target = frame["target"].astype(float).loc[found.index]
    assert np.corrcoef(found["predicted"], target)[0, 1] > 0.9
    by_python = aam.load(run).predict(study / "table.biom", metadata=frame)
    assert by_python["predicted"].to_numpy() == pytest.approx(found["predicted"].to_numpy())
    capsys.readouterr()
    assert predict(study, run, tmp_path / "b.tsv") == UsageError.status
    assert "The model reads metadata besides the table: the columns batch, site, offset" in (
        " ".join(capsys.readouterr().err.split())
    )
    frame.drop(columns=["site", "offset"]).to_csv(tmp_path / "m.tsv", sep="\t")
    args = ("--metadata", tmp_path / "m.tsv")
    assert predict(study, run, tmp_path / "b.tsv", *args) == DataError.status
    assert "lacks columns that the model reads: site, offset" in capsys.readouterr().err
    frame["batch"] = "new"
    frame.to_csv(tmp_path / "m.tsv", sep="\t")
    assert predict(study, run, tmp_path / "b.tsv", *args) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "'batch' without training samples count as unknown: 60 of 60 samples" in shown


@pytest.mark.medium
def test_importance_reads_the_columns(run: Path, study: Path, tmp_path: Path) -> None:
    args = ("--table", study / "table.biom", "--model", run, "--output", tmp_path / "i.tsv")
    assert run_aam("importance", *args) == UsageError.status
    assert run_aam("importance", *args, "--metadata", study / "metadata.tsv") == 0
    found = pd.read_csv(tmp_path / "i.tsv", sep="\t")
    assert np.isfinite(found["effect"]).all()
    assert found["effect"].abs().max() > 0
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, index_col=0)
    by_python = aam.load(run).importance(study / "table.biom", metadata=metadata)
    assert by_python.index.tolist() == found["feature-id"].tolist()
    with pytest.raises(UsageError):
        aam.load(run).importance(study / "table.biom")


@pytest.mark.medium
def test_a_damaged_encoder_is_refused(run: Path, study: Path, tmp_path: Path) -> None:
    def change(content: Editable) -> None:
        content.settings["kernel"]["covariates"] = {"numbers": {}}

    model, metadata = rewrite(run, tmp_path / "changed", change), study / "metadata.tsv"
    status = predict(study, model, tmp_path / "p.tsv", "--metadata", metadata)
    assert status == DataError.status


@pytest.mark.parametrize("name", ["kernel", "forest"])
def test_a_model_with_covariates_is_restored_from_its_arrays(name: str) -> None:
    """The forest splits on them, and the kernel adds their product; the counts are noise."""
    rng = np.random.default_rng(1)
    from scipy import sparse

    counts = sparse.csr_array(rng.integers(1, 50, size=(80, 6)))
    tokens_FL = rng.integers(1, 5, size=(6, 20)).astype(np.uint8)
    site, age = rng.choice(["a", "b", "c"], size=80), rng.normal(size=80)
    values = 3.0 * (site == "a") + age
    samples = Samples(counts, tokens_FL, Covariates({"site": site}, {"age": age}))
    member, labels = estimator(name), Labels.of(values, (), None)
    inputs = member.read(samples, AsvRelations(tokens_FL))
    model = member.fit(inputs.take(np.arange(60)), labels.take(np.arange(60)), 0)
    predicted = model.predict(inputs.take(np.arange(60, 80)))
    assert np.corrcoef(predicted[:, 0], values[60:])[0, 1] > 0.9
    restored = member.restore(model.state(), 6, 1, DeviceOptions())
    assert restored.encoder == model.encoder
    assert restored.predict(inputs.take(np.arange(60, 80))).tolist() == predicted.tolist()


def test_the_transformer_with_metadata_runs_in_one_process(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (*COLUMNS, "--members", "transformer", "--fsdp", *TINY)
    assert train(study, tmp_path / "run", *args) == UsageError.status
    assert "in one process only" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_transformer_reads_metadata(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frozen encoder, folds with other categories, and an ensemble with the kernel."""
    encoder, run, output = tmp_path / "encoder", tmp_path / "run", tmp_path / "p.tsv"
    small = (*TINY, "--rarefy-depth", 0)
    table = ("--table", study / "table.biom")
    assert run_aam("pretrain", *table, *small, "--penalty", 0, "--output-dir", encoder) == 0
    args = ("--members", "transformer", "kernel", "--pretrained-encoder", encoder, "--freeze-base")
    more = ("--epochs", 3, "--lr", 0.01, "--categorical-fusion", "add", "--folds", 2)
    assert train(study, run, *COLUMNS, *small, *args, *more) == 0
    inputs = json.loads((run / "scores.json").read_text())["inputs"]
    assert list(inputs["models"]) == ["metadata alone", "counts alone", "metadata and counts"]
    r2 = {name: model["r2"]["value"] for name, model in inputs["models"].items()}
    assert r2["counts alone"] != r2["metadata and counts"]
    alone = checkpoints.read(run / "counts-alone" / "fold-1" / "checkpoints" / "best.ckpt").config
    assert alone.covariates is None
    network = read_networks(run)[0]
    config = network.config
    assert config.covariates is not None
    assert config.covariates.columns == ("batch", "site", "offset")
    codes = network.weights["covariates.categories.0.weight"]
    assert codes.shape == (4, 16)
    start = read_networks(encoder)[0].encoder_weights
    trained = network.encoder_weights
    assert all(torch.equal(start[name], trained[name]) for name in start)
    metadata = ("--metadata", study / "metadata.tsv")
    capsys.readouterr()
    assert predict(study, run, output) == UsageError.status
    assert "the columns batch, site, offset" in " ".join(capsys.readouterr().err.split())
    assert predict(study, run, output, *metadata) == 0
    assert {"kernel_predicted", "transformer_predicted"} <= set(read(output))
    known = read(output)["predicted"]
    frame = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, index_col=0)
    frame[["batch", "site"]] = "new"
    by_python = aam.load(run).predict(study / "table.biom", metadata=frame)
    assert np.isfinite(by_python["predicted"]).all()
    assert not np.allclose(by_python["predicted"], known)
    assert len(aam.load(run).embed(study / "table.biom")) == 60
