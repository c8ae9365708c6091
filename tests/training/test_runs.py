"""Training runs from files to a run folder: its content, predictions and reproducibility."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any, get_args

import biom
import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

from aam import __version__
from aam.contract.errors import UsageError
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.study import PhylogenyOptions, TableOptions
from aam.contract.options.training import LoopOptions, LossType, TransformName
from aam.data.study import Study, load_study
from aam.model.distance import PairwiseDistance
from aam.model.network import Encoder, Predictor
from aam.model.shape import NetworkShape, least_weights
from aam.training import checkpoints
from aam.training.data_loader import FixedBatches, loader
from aam.training.inference import encode_asvs
from aam.training.labelled_study import class_weights
from aam.training.lightning_module import LossWeights, TrainingModule
from aam.training.losses import distance_loss
from aam.training.model_config import ModelConfig
from aam.training.target import LOSSES, Target
from aam.training.target_transforms import TRANSFORMS, OutputRange, TargetTransform
from tests.support.commands import aam, pretrain, read, train

FILES = {
    ".lock",
    "run.json",
    "metrics.csv",
    "progress.json",
    "splits.tsv",
    "embeddings.tsv",
    "checkpoints/best.ckpt",
    "checkpoints/last.ckpt",
}
FIRST = ["epoch", "step", "seconds", "lr"]
PARTS = {
    "unifrac": {"unifrac"},
    "nucleotide": {"nucleotide", "nucleotide_accuracy"},
    "target": {"target"},
}
NUMBER, CLASS = {"val_r2", "val_mae"}, {"val_accuracy", "val_f1"}


def files(folder: Path) -> set[str]:
    """Name the files of a run folder; TensorBoard's have names of their own."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    events = {name for name in found if "tensorboard/" in name}
    assert any("tfevents" in name for name in events)
    return found - events


def columns(*parts: str) -> set[str]:
    """Columns of metrics.csv for parts of the loss."""
    names = {"loss"}.union(*(PARTS[part] for part in parts))
    return {f"{side}_{name}" for side in ("train", "val") for name in names}


def check_metrics(path: Path, expected: set[str], epochs: int = 1) -> pd.DataFrame:
    table = read(path)
    assert list(table.columns[:4]) == FIRST
    assert set(table.columns[4:]) == expected
    assert table["epoch"].tolist() == list(range(epochs))
    assert np.isfinite(table.to_numpy(float)).all()
    return table


def check_one_side(splits: pd.DataFrame) -> None:
    """No group and no sample is on two sides of a fold."""
    sides = splits.groupby(["fold", "group"])["split"].nunique()
    assert (sides == 1).all()
    assert not splits.duplicated(["fold", "sample-id"]).any()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    _, content = checkpoints.read(checkpoints.find(folder, "best.ckpt"))
    found: dict[str, torch.Tensor] = content["state_dict"]
    return found


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(v, two[k]) for k, v in one.items())


@pytest.fixture(scope="module")
def tree(study_dir: Path) -> tuple[str, Path]:
    return "--tree", study_dir / "tree.nwk"


@pytest.fixture(scope="module")
def matrix(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "unweighted.tsv"
    assert aam("unifrac", "--table", study_dir / "table.biom", *tree, "--output", path) == 0
    return path


@pytest.fixture(scope="module")
def encoder(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    assert pretrain(study_dir, folder, *tree, "--epochs", 2) == 0
    return folder


@pytest.fixture(scope="module")
def numbers(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    words = ("--epochs", 2, "--lr", 0.01, "--group-column", "subject")
    assert train(study_dir, folder, *tree, *words) == 0
    return folder


@pytest.fixture(scope="module")
def classes(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    words = ("--classifier", "--stratify", "--class-weights", "balanced")
    assert train(study_dir, folder, *words, column="site") == 0
    return folder


# Pretraining


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ("unifrac", "nucleotide")),
        ("--penalty 0", ("nucleotide",)),
        ("--nuc-penalty 0", ("unifrac",)),
        ("--nuc-mask-strategy span", ("unifrac", "nucleotide")),
        ("--nucleotide-patch 1", ("unifrac", "nucleotide")),
        ("--nucleotide-patch 3", ("unifrac", "nucleotide")),
        ("--token-limit 9 --asv-sampling random", ("unifrac", "nucleotide")),
        ("--rarefy-depth 0 --no-rarefy-each-epoch --max-bp 31", ("unifrac", "nucleotide")),
        *(
            (f"--unifrac-metric {metric}", ("unifrac", "nucleotide"))
            for metric in ("unifrac", "weighted", "weighted_normalized", "generalized", "faith_pd")
        ),
    ],
)
def test_pretrain(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, words: str, parts: tuple[str, ...]
) -> None:
    assert pretrain(study_dir, tmp_path / "run", *tree, *words.split()) == 0
    assert files(tmp_path / "run") == FILES
    check_metrics(tmp_path / "run/metrics.csv", columns(*parts))
    embeddings = read(tmp_path / "run/embeddings.tsv")
    assert list(embeddings.columns) == ["sample-id", *(f"e{i}" for i in range(8))]
    assert np.isfinite(embeddings.iloc[:, 1:].to_numpy()).all()
    config, _ = checkpoints.read(tmp_path / "run/checkpoints/last.ckpt")
    assert (config.command, config.target) == ("pretrain", None)


def test_pretrain_without_a_phylogeny(study_dir: Path, tmp_path: Path) -> None:
    assert pretrain(study_dir, tmp_path, "--penalty", 0) == 0
    assert files(tmp_path) == FILES
    check_metrics(tmp_path / "metrics.csv", columns("nucleotide"))


def test_a_matrix_in_any_order_serves_as_the_tree_does(
    study_dir: Path, tree: tuple[str, Path], matrix: Path, tmp_path: Path
) -> None:
    table = pd.read_csv(matrix, sep="\t", index_col=0).iloc[::-1, ::-1]
    table.to_csv(tmp_path / "turned.tsv", sep="\t", index_label="")
    whole = ("--rarefy-depth", 0)
    assert pretrain(study_dir, tmp_path / "tree", *tree, *whole) == 0
    given = ("--unifrac-matrix", tmp_path / "turned.tsv")
    assert pretrain(study_dir, tmp_path / "matrix", *given, *whole) == 0
    one, two = (read(tmp_path / name / "metrics.csv") for name in ("tree", "matrix"))
    for name in ("train_unifrac", "val_unifrac", "train_nucleotide"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-4)


def test_groups_stay_together_in_pretraining(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path
) -> None:
    grouped = ("--metadata", study_dir / "metadata.tsv", "--group-column", "subject")
    assert pretrain(study_dir, tmp_path, *tree, *grouped) == 0
    splits = read(tmp_path / "splits.tsv")
    check_one_side(splits)
    assert set(splits["split"]) == {"train", "validation"}


# Training


BOTH = ("unifrac", "nucleotide", "target")


@pytest.mark.parametrize(
    "words",
    [
        "--loss-type mse --target-transform none",
        "--loss-type mae --target-transform minmax",
        "--target-transform log-minmax --best-metric r2",
        "--target-transform log-zscore --best-metric mae",
        "--loss-type asymmetric --over-penalty 3 --under-penalty 0.5",
        "--optimizer adam --scheduler plateau",
        "--optimizer sgd --scheduler constant",
        "--patience 0 --max-grad-norm 0 --checkpoint-every-n-steps 2 --warmup-fraction 0",
        "--where site=site-1 --batch-size 4",
    ],
)
def test_train_numbers(study_dir: Path, tree: tuple[str, Path], tmp_path: Path, words: str) -> None:
    folder = tmp_path / "run"
    assert train(study_dir, folder, *tree, *words.split()) == 0
    assert files(folder) == FILES | {"predictions.tsv"}
    check_metrics(folder / "metrics.csv", columns(*BOTH) | NUMBER)
    predictions = read(folder / "predictions.tsv")
    assert list(predictions.columns) == ["sample-id", "fold", "split", "actual", "predicted"]
    if "none" not in words:
        # A model that has learnt nothing yet answers near the mean of what it was trained on.
        actual = read(study_dir / "metadata.tsv")["ph"].drop(index=0).astype(float)
        assert actual.min() < predictions["predicted"].mean() < actual.max()


def test_train_without_a_tree(study_dir: Path, tmp_path: Path) -> None:
    assert train(study_dir, tmp_path) == 0
    check_metrics(tmp_path / "metrics.csv", columns("nucleotide", "target") | NUMBER)
    assert train(study_dir, tmp_path, "--nuc-penalty", 0, "--overwrite") == 0
    check_metrics(tmp_path / "metrics.csv", columns("target") | NUMBER)


def test_quantiles_rise(study_dir: Path, tmp_path: Path) -> None:
    quantiles = ("--loss-type", "quantile", "--quantiles", 0.9, 0.1, 0.5)
    assert train(study_dir, tmp_path, *quantiles) == 0
    predictions = read(tmp_path / "predictions.tsv")
    levels = predictions[["q_0.1", "q_0.5", "q_0.9"]].to_numpy()
    assert (np.diff(levels, axis=1) >= 0).all()
    assert predictions["predicted"].tolist() == predictions["q_0.5"].tolist()


def test_classes(study_dir: Path, classes: Path) -> None:
    assert files(classes) == FILES | {"predictions.tsv"}
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
    config, _ = checkpoints.read(classes / "checkpoints/best.ckpt")
    assert config.target is not None
    assert config.target.classes == tuple(names)
    assert len(config.target.class_weights) == 3


def test_folds_test_every_sample_once(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--folds", 3, "--group-column", "subject", "--rarefy-depth", 200)
    assert train(study_dir, tmp_path / "run", *tree, *words) == 0
    printed = capsys.readouterr()
    labels = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph")
    assert aam("evaluate", "--predictions", tmp_path / "run/predictions.tsv", *labels) == 0
    assert printed.out == capsys.readouterr().out
    first_cells = [line.strip().split("  ")[0] for line in printed.out.splitlines() if line.strip()]
    assert first_cells[-6:] == ["fold 1", "fold 2", "fold 3", "mean", "sd", "all samples"]
    assert printed.err.splitlines()[-1] == f"Next: aam report --run-dir {tmp_path / 'run'}"
    inside = {"metrics.csv", "checkpoints/best.ckpt", "checkpoints/last.ckpt"}
    top = {".lock", "run.json", "progress.json", "splits.tsv", "predictions.tsv", "embeddings.tsv"}
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
        predict(study_dir / "table.biom", tmp_path / f"run/fold-{k}", tmp_path / f"{k}.tsv")
        for k in (1, 2, 3)
    ]
    expected = np.mean([table["predicted"] for table in each], axis=0)
    np.testing.assert_allclose(means["predicted"], expected, rtol=2e-5)


def test_recomputed_activations_change_no_number(
    study_dir: Path, tree: tuple[str, Path], numbers: Path, tmp_path: Path
) -> None:
    words = ("--epochs", 2, "--lr", 0.01, "--group-column", "subject", "--gradient-checkpointing")
    assert train(study_dir, tmp_path, *tree, *words) == 0
    one, two = (
        read(folder / "metrics.csv").drop(columns="seconds") for folder in (numbers, tmp_path)
    )
    pd.testing.assert_frame_equal(one, two, rtol=1e-4)


def test_accumulated_batches_are_one_step(study_dir: Path, tmp_path: Path) -> None:
    words = ("--gradient-accumulation-steps", 3, "--epochs", 2, "--batch-size", 4)
    assert train(study_dir, tmp_path, *words) == 0
    training = (read(tmp_path / "splits.tsv")["split"] == "train").sum()
    steps = math.ceil(math.ceil(training / 4) / 3)
    assert read(tmp_path / "metrics.csv")["step"].tolist() == [steps, 2 * steps]


def test_schedules(study_dir: Path, numbers: Path, tmp_path: Path) -> None:
    assert read(numbers / "metrics.csv")["lr"].iloc[-1] == pytest.approx(0, abs=1e-9)
    words = ("--scheduler", "constant", "--lr", 0.003, "--epochs", 2)
    assert train(study_dir, tmp_path, *words) == 0
    assert read(tmp_path / "metrics.csv")["lr"].tolist() == pytest.approx([0.003, 0.003])


# The run folder


def test_run_json_records_command_versions_and_inputs(
    study_dir: Path, numbers: Path, encoder: Path
) -> None:
    record = json.loads((numbers / "run.json").read_text())
    assert record["aam"] == __version__
    assert record["command"] == "train"
    assert {"torch", "lightning", "numpy", "scikit-bio", "python"} <= set(record["versions"])
    assert record["versions"]["torch"] == torch.__version__
    named = {"--table": "table.biom", "--tree": "tree.nwk", "--metadata": "metadata.tsv"}
    assert set(record["inputs"]) == set(named)
    for flag, name in named.items():
        data = (study_dir / name).read_bytes()
        assert record["inputs"][flag] == {
            "path": str((study_dir / name).resolve()),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    assert record["options"]["loop"]["lr"] == 0.01
    assert record["options"]["target"]["metadata_column"] == "ph"
    assert record["options"]["split"]["group_column"] == "subject"
    splits = read(numbers / "splits.tsv")["split"].value_counts()
    assert record["samples"] == {"train": splits["train"], "validation": splits["validation"],
                                 "test": 0}  # fmt: skip
    assert record["finished"] >= record["started"]
    learnt = {name: v for name, v in weights(numbers).items() if ".profile." not in name}
    assert record["parameters"] == sum(v.numel() for v in learnt.values())
    best = read(numbers / "metrics.csv")["val_loss"].min()
    assert record["best"]["best_val_loss"] == pytest.approx(best, rel=1e-6)
    config, _ = checkpoints.read(numbers / "checkpoints/best.ckpt")
    assert json.loads(json.dumps(config.options)) == record["options"]
    options = json.loads((encoder / "run.json").read_text())["options"]
    assert set(options) == {field.name for field in dataclasses.fields(Pretrain)}


def test_splits_keep_groups_on_one_side(study_dir: Path, numbers: Path) -> None:
    splits = read(numbers / "splits.tsv")
    assert list(splits.columns) == ["sample-id", "fold", "split", "group"]
    check_one_side(splits)
    truth = read(study_dir / "metadata.tsv").set_index("sample-id")["subject"]
    assert splits["group"].tolist() == truth[splits["sample-id"]].tolist()


def test_figures_of_the_run_are_those_of_its_predictions(
    study_dir: Path, numbers: Path, tmp_path: Path
) -> None:
    output = tmp_path / "figures.json"
    words = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph")
    predictions = numbers / "predictions.tsv"
    assert aam("evaluate", "--predictions", predictions, *words, "--output", output) == 0
    figures = json.loads(output.read_text())["overall"]
    best = json.loads((numbers / "run.json").read_text())["best"]
    assert figures["mae"] == pytest.approx(best["validation_mae"], rel=1e-4)
    assert figures["r2"] == pytest.approx(best["validation_r2"], rel=1e-3)
    table = read(predictions)
    assert best["validation_mae"] == pytest.approx(
        (table["actual"] - table["predicted"]).abs().mean(), rel=1e-4
    )


# Prediction


def predict(table: Path, model: Path, output: Path, *words: object) -> pd.DataFrame:
    given = ("--table", table, "--model", model, "--output", output, "--device", "cpu")
    assert aam("predict", *given, *words) == 0
    return read(output)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_checkpoint_alone_predicts_what_the_run_did(
    request: pytest.FixtureRequest, study_dir: Path, tmp_path: Path, kind: str
) -> None:
    folder: Path = request.getfixturevalue(kind)
    shutil.copy(folder / "checkpoints/best.ckpt", tmp_path / "model.ckpt")
    shutil.copy(study_dir / "table.biom", tmp_path / "elsewhere.biom")
    found = predict(tmp_path / "elsewhere.biom", tmp_path / "model.ckpt", tmp_path / "p.tsv")
    expected = read(folder / "predictions.tsv").set_index("sample-id")
    found = found.set_index("sample-id").loc[expected.index]
    for column in found.columns[: list(found.columns).index("split")]:
        if found[column].dtype.kind == "f":
            # Both files hold six digits.
            np.testing.assert_allclose(found[column], expected[column], rtol=1e-5)
        else:
            assert found[column].tolist() == expected[column].tolist()


def test_a_checkpoint_of_the_first_format_is_read(
    study_dir: Path, numbers: Path, tmp_path: Path
) -> None:
    best = numbers / "checkpoints/best.ckpt"
    content = torch.load(best, weights_only=True)
    content["aam"]["format"] = 1
    name = "network.encoder.distance.scale"
    content["state_dict"][name] = content["state_dict"][name].squeeze()
    torch.save(content, tmp_path / "first.ckpt")
    table = study_dir / "table.biom"
    found = predict(table, tmp_path / "first.ckpt", tmp_path / "first.tsv")
    pd.testing.assert_frame_equal(found, predict(table, best, tmp_path / "now.tsv"))


def test_predictions_do_not_depend_on_the_other_samples_or_on_any_order(
    study_dir: Path, numbers: Path, tmp_path: Path
) -> None:
    whole = predict(study_dir / "table.biom", numbers, tmp_path / "whole.tsv")
    counts = biom.load_table(str(study_dir / "table.biom")).to_dataframe(dense=True).astype(int)
    rng = np.random.default_rng(1)
    mixed = counts.iloc[rng.permutation(counts.shape[0]), rng.permutation(counts.shape[1])]
    for name, table in (("mixed", mixed), ("subset", counts[counts.columns[[20, 3, 8]]])):
        table.to_csv(tmp_path / f"{name}.tsv", sep="\t", index_label="#OTU ID")
        found = predict(tmp_path / f"{name}.tsv", numbers, tmp_path / f"{name}-out.tsv",
                        "--batch-size", 5)  # fmt: skip
        assert found["sample-id"].tolist() == list(table.columns)
        expected = whole.set_index("sample-id").loc[found["sample-id"], "predicted"]
        np.testing.assert_allclose(found["predicted"], expected, rtol=1e-5)


def test_passes_are_rarefactions_with_a_spread(
    study_dir: Path, numbers: Path, tmp_path: Path
) -> None:
    table = study_dir / "table.biom"
    found = predict(table, numbers, tmp_path / "p.tsv", "--prediction-passes", 3)
    assert (found["spread"] >= 0).all()
    assert (found["spread"] > 0).any()


@pytest.mark.parametrize("kind", ["encoder", "numbers", "classes"])
def test_embeddings_are_those_of_the_run(
    request: pytest.FixtureRequest, study_dir: Path, tmp_path: Path, kind: str
) -> None:
    folder: Path = request.getfixturevalue(kind)
    out = tmp_path / "embedded"
    words = ("--metadata", study_dir / "metadata.tsv", "--color-by", "site", "--device", "cpu")
    table = ("--table", study_dir / "table.biom")
    assert aam("embed", *table, "--model", folder, "--output-dir", out, *words) == 0
    written = {"embeddings.tsv", "ordination.txt", "pcoa.png", "embed.run.json"}
    assert {path.name for path in out.iterdir()} == written
    expected = read(folder / "embeddings.tsv").set_index("sample-id")
    found = read(out / "embeddings.tsv").set_index("sample-id").loc[expected.index]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_numbers_of_subjects_colour_an_embedding_as_categories(
    study_dir: Path, encoder: Path, tmp_path: Path
) -> None:
    header, _, *lines = (study_dir / "metadata.tsv").read_text().splitlines()
    numbered = [f"{line}\t{number}" for number, line in enumerate(lines)]
    metadata = tmp_path / "metadata.tsv"
    metadata.write_text("\n".join([f"{header}\tnumber", *numbered]))
    given = ("--table", study_dir / "table.biom", "--model", encoder, "--device", "cpu")
    pictures = []
    for words in ((), ("--categories", "number")):
        out = tmp_path / f"embedded-{len(words)}"
        colours = ("--metadata", metadata, "--color-by", "number", *words)
        assert aam("embed", *given, "--output-dir", out, *colours) == 0
        pictures.append((out / "pcoa.png").read_bytes())
    assert pictures[0] != pictures[1]


# Encoders that are kept, frozen, remembered


def test_a_pretrained_encoder_decides_the_shape(
    study_dir: Path, tree: tuple[str, Path], encoder: Path, tmp_path: Path
) -> None:
    words = ("--pretrained-encoder", encoder, "--embedding-dim", 32, "--attention-heads", 4)
    assert train(study_dir, tmp_path, *tree, *words) == 0
    config, _ = checkpoints.read(tmp_path / "checkpoints/best.ckpt")
    assert config.shape.embedding_dim == 8
    learnt, given = weights(tmp_path), weights(encoder)
    moved = [not torch.equal(learnt[f"network.encoder.{k[8:]}"], v) for k, v in given.items()]
    assert sum(moved) > len(moved) / 2


def test_a_frozen_encoder_does_not_change_and_its_vectors_are_reused(
    study_dir: Path, study: Study, tree: tuple[str, Path], encoder: Path, tmp_path: Path
) -> None:
    words = ("--pretrained-encoder", encoder / "checkpoints/best.ckpt", "--freeze-base")
    assert train(study_dir, tmp_path, *tree, *words, "--epochs", 2, "--lr", 0.01) == 0
    check_metrics(tmp_path / "metrics.csv", columns("target") | NUMBER, epochs=2)
    learnt, given = weights(tmp_path), weights(encoder)
    for name, value in given.items():
        assert torch.equal(learnt[f"network.encoder.{name.removeprefix('network.')}"], value)

    network, config = load(tmp_path)
    asv_vectors_FD = encode_asvs(network.encoder, study, torch.device("cpu"))
    batch = FixedBatches(study, config.plan, np.arange(8), 8)[0]
    with torch.no_grad():
        fresh_UD, _ = network.encoder.nucleotides(
            batch.tokens_UL, batch.ragged(network.encoder.nucleotides.patch)
        )
    torch.testing.assert_close(asv_vectors_FD[batch.asvs_U], fresh_UD, rtol=0, atol=1e-5)
    task = TrainingModule(
        network, LossWeights(), LoopOptions(), 1, asv_vectors_FD=asv_vectors_FD
    ).train()
    assert task.network.training
    assert not any(part.training for part in network.encoder.modules())
    values = np.linspace(4, 8, len(study.table.sample_ids))
    with_memory, without = (
        validate(network, config, study, 7, values, memory) for memory in (asv_vectors_FD, None)
    )
    assert with_memory["val_target"] == pytest.approx(without["val_target"], rel=1e-5)


def load(folder: Path) -> tuple[Predictor, ModelConfig]:
    config, content = checkpoints.read(checkpoints.find(folder, "best.ckpt"))
    network = checkpoints.load_network(config, content)
    assert isinstance(network, Predictor)
    return network, config


def validate(
    network: Encoder | Predictor,
    config: ModelConfig,
    study: Study,
    batch_size: int,
    values: npt.NDArray[np.float64] | None = None,
    asv_vectors_FD: torch.Tensor | None = None,
) -> dict[str, float]:
    """Validate a network on all samples of a study with Lightning's own loop."""
    loop = LoopOptions(batch_size=batch_size)
    task = TrainingModule(
        network, LossWeights(), loop, 1, config.target, values, asv_vectors_FD, config.standard
    )
    rows = np.arange(len(study.table.sample_ids))
    batches = FixedBatches(study, config.plan, rows, batch_size)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    [figures] = trainer.validate(task, loader(batches, None, 0, False), verbose=False)
    return dict(figures)


# Laws of losses and seeds


@pytest.mark.parametrize("kind", ["numbers", "classes", "encoder"])
def test_validation_does_not_depend_on_the_batch_size(
    request: pytest.FixtureRequest, study: Study, kind: str
) -> None:
    folder: Path = request.getfixturevalue(kind)
    config, content = checkpoints.read(checkpoints.find(folder, "best.ckpt"))
    network = checkpoints.load_network(config, content)
    samples = len(study.table.sample_ids)
    values = np.arange(samples) % 3 if kind == "classes" else np.linspace(4, 8, samples)
    labels = None if config.target is None else values.astype(float)
    small, large = (validate(network, config, study, size, labels) for size in (5, 36))
    assert small.keys() == large.keys()
    compared = [name for name in small if name not in ("val_unifrac", "val_loss")]
    assert {"val_nucleotide", "val_nucleotide_accuracy"} <= set(compared)
    assert config.target is None or "val_target" in compared
    for name in compared:
        assert small[name] == pytest.approx(large[name], rel=1e-5), name


def test_registries_hold_the_choices_of_the_options() -> None:
    assert set(LOSSES) == set(get_args(LossType))
    assert set(TRANSFORMS) == set(get_args(TransformName))


def test_numbers_are_clipped_to_the_range_of_the_outputs() -> None:
    transform = TargetTransform("zscore", 5.0, 2.0)
    outputs, expected = torch.tensor([[-9.0], [0.5], [4.0]]), [[0.0], [6.0], [10.0]]
    target = Target("ph", transform=transform, range=OutputRange(0.0, 10.0))
    assert target.decode(outputs).tolist() == expected
    assert Target("ph", transform=transform).decode(outputs).tolist() == [[-13.0], [6.0], [13.0]]


def test_class_weights_weigh_the_loss() -> None:
    target = Target("site", ("a", "b"), (0.5, 3.0))
    logits, codes = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 0, 0])
    loss = target.loss(logits, codes)
    expected = torch.nn.functional.cross_entropy(logits, codes, torch.tensor([0.5, 3.0]))
    torch.testing.assert_close(loss.mean, expected)


def test_class_weights_are_given_by_name() -> None:
    classes, samples = ("gut", "oral=wet", "skin"), np.array([10, 20, 30])
    assert class_weights("none", classes, samples) == ()
    assert class_weights("balanced", classes, samples) == (2, 1, pytest.approx(2 / 3))
    assert class_weights("skin=0.5, oral=wet=3", classes, samples) == (1, 3, 0.5)
    for text, expected in (
        ("skim=2", "did you mean 'skin'"),
        ("gut=1,gut=2", "given twice"),
        ("gut", "is no class"),
        ("gut=0", "not a number above 0"),
        ("gut=much", "not a number above 0"),
    ):
        with pytest.raises(UsageError) as caught:
            class_weights(text, classes, samples)
        assert expected in str(caught.value)


def test_the_diagonal_is_in_no_loss() -> None:
    torch.manual_seed(0)
    head, embeddings_BD = PairwiseDistance(bounded=True), torch.randn(5, 8)
    distances_BB = torch.rand(5, 5)
    distances_BB = (distances_BB + distances_BB.T) / 2
    plain = distance_loss(head, embeddings_BD, distances_BB)
    spoilt = distance_loss(head, embeddings_BD, distances_BB.fill_diagonal_(100))
    assert torch.equal(plain.total, spoilt.total)
    assert plain.number == 10
    alone = distance_loss(head, embeddings_BD[:1], distances_BB[:1, :1])
    assert alone.number == 0
    assert alone.mean == 0


def test_the_same_seed_gives_the_same_run_and_another_does_not(
    study_dir: Path, tree: tuple[str, Path], numbers: Path, tmp_path: Path
) -> None:
    words = ("--epochs", 2, "--lr", 0.01, "--group-column", "subject")
    assert train(study_dir, tmp_path / "same", *tree, *words) == 0
    assert train(study_dir, tmp_path / "other", *tree, *words, "--seed", 43) == 0
    for name in ("predictions.tsv", "splits.tsv", "embeddings.tsv"):
        text = (numbers / name).read_text()
        assert (tmp_path / "same" / name).read_text() == text
        assert (tmp_path / "other" / name).read_text() != text
    assert same(weights(tmp_path / "same"), weights(numbers))
    assert not same(weights(tmp_path / "other"), weights(numbers))


def test_the_order_of_the_table_changes_no_study(study_dir: Path, tmp_path: Path) -> None:
    counts = biom.load_table(str(study_dir / "table.biom")).to_dataframe(dense=True).astype(int)
    counts.iloc[::-1].to_csv(tmp_path / "turned.tsv", sep="\t", index_label="#OTU ID")
    phylogeny = PhylogenyOptions(tree=study_dir / "tree.nwk")
    one, two = (
        load_study(TableOptions(table=path), phylogeny)
        for path in (study_dir / "table.biom", tmp_path / "turned.tsv")
    )
    assert one.table.feature_ids == two.table.feature_ids
    assert (one.table.counts != two.table.counts).nnz == 0
    np.testing.assert_array_equal(one.tokens_FL, two.tokens_FL)


def test_a_kernel_that_cannot_run_is_replaced_with_a_warning(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*tree, "--attn-implementation", "mem_efficient")
    assert pretrain(study_dir, tmp_path / "run", *words) == 0
    assert "mem_efficient cannot run on cpu; flash runs instead" in capsys.readouterr().err


def test_fp16_needs_a_gpu(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(study_dir, tmp_path / "run", *tree, "--mixed-precision", "fp16") == 64
    assert "fp16 needs a GPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("dim", "layers"), [(64, 1), (256, 4)])
def test_the_predicted_number_of_weights_is_a_close_lower_bound(dim: int, layers: int) -> None:
    network = Encoder(NetworkShape(150, dim, 4, layers), "unweighted")
    number = sum(parameter.numel() for parameter in network.parameters())
    assert 0.8 * number < least_weights(dim, layers) < number


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--embedding-dim", 10**9), "--embedding-dim 1000000000; give 1 to 65536"),
        (("--attention-layers", 100_000), "--attention-layers 100000; give 1 to 1000"),
        (("--embedding-dim", 65_536, "--attention-layers", 1000), "does not fit into memory"),
        (("--num-workers", 10**6), "--num-workers 1000000; give 0 to 1024"),
        (("--processes", 10**6), "--processes 1000000; give 0 to 1024"),
        (("--lr", "1e300"), "--lr 1e+300; give more than 0 and at most 1000000"),
        (("--weight-decay", "1e300"), "--weight-decay 1e+300; give 0 to 1000000"),
        (("--penalty", "1e300"), "--penalty 1e+300; give 0 to 1000000"),
        (("--rank-timeout", "1e300"), "--rank-timeout 1e+300; give more than 0"),
        (("--batch-size", 10**18), "--batch-size 1000000000000000000; choose a smaller"),
        (("--rarefy-depth", 10**18), "1000000000000000000"),
    ],
)
def test_options_at_their_extremes_are_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Any, message: str
) -> None:
    tree = ("--tree", study_dir / "tree.nwk")
    assert pretrain(study_dir, tmp_path / "run", *tree, *words) in (64, 65)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("aam: ") and message in last
    assert not (tmp_path / "run").exists()


def test_a_plateau_needs_validation(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--scheduler", "plateau", "--folds", 2, "--test-size", 0)
    assert train(study_dir, tmp_path / "run", *tree, *words) == 64
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("aam: --scheduler plateau needs validation samples: ")
    assert not (tmp_path / "run").exists()
