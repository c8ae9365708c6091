"""Runs of `aam pretrain`, and of `aam train` with its encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from aam.contract.options.groups import LoopOptions
from aam.data.study import Study
from aam.network.batches import FixedBatches
from aam.network.inference.outputs import encode_asvs
from aam.network.inference.stored_networks import ModelConfig, read_networks
from aam.network.model.network import Predictor
from aam.network.training import checkpoints
from aam.network.training.module import LossWeights, TrainingModule
from tests.support.commands import aam, pretrain, read, train
from tests.support.runs import (
    FILES,
    NUMBER,
    check_metrics,
    check_one_side,
    columns,
    files,
    validate,
    weights,
)


@pytest.fixture(scope="module")
def matrix(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "unweighted.tsv"
    assert aam("unifrac", "--table", study_dir / "table.biom", *tree, "--output", path) == 0
    return path


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("--penalty 0 --nucleotide-patch 3 --token-limit 9", ("nucleotide",)),
        ("--nuc-penalty 0", ("unifrac",)),
        ("--penalty 0 --nuc-penalty 0 --count-penalty 1", ("count",)),
        ("--rarefy-depth 0 --no-rarefy-each-epoch --max-bp 31", ("unifrac", "nucleotide")),
        *(
            (f"--unifrac-metric {metric}", ("unifrac", "nucleotide"))
            for metric in ("weighted", "generalized", "faith_pd")
        ),
    ],
)
def test_pretrain(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, args: str, parts: tuple[str, ...]
) -> None:
    assert pretrain(study_dir, tmp_path / "run", *tree, *args.split()) == 0
    assert files(tmp_path / "run") == FILES
    check_metrics(tmp_path / "run/metrics.csv", columns(*parts))
    embeddings = read(tmp_path / "run/embeddings.tsv")
    assert list(embeddings.columns) == ["sample-id", *(f"e{i}" for i in range(8))]
    assert np.isfinite(embeddings.iloc[:, 1:].to_numpy()).all()
    config = checkpoints.read(tmp_path / "run/checkpoints/last.ckpt").config
    assert (config.command, config.target) == ("pretrain", None)


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


def test_a_pretrained_encoder_decides_the_shape(
    study_dir: Path, tree: tuple[str, Path], encoder: Path, tmp_path: Path
) -> None:
    args = ("--pretrained-encoder", encoder, "--embedding-dim", 32, "--attention-heads", 4)
    assert train(study_dir, tmp_path, *tree, *args) == 0
    config = read_networks(tmp_path)[0].config
    assert config.shape.embedding_dim == 8
    learnt, given = weights(tmp_path), weights(encoder)
    moved = [not torch.equal(learnt[f"network.encoder.{k[8:]}"], v) for k, v in given.items()]
    assert sum(moved) > len(moved) / 2


def test_a_frozen_encoder_does_not_change_and_its_vectors_are_reused(
    study_dir: Path, study: Study, tree: tuple[str, Path], encoder: Path, tmp_path: Path
) -> None:
    args = ("--pretrained-encoder", encoder / "model", "--freeze-base")
    assert train(study_dir, tmp_path, *tree, *args, "--epochs", 2, "--lr", 0.01) == 0
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
    network.train()
    task = TrainingModule(network, LossWeights(), LoopOptions(), 1, asv_vectors_FD=asv_vectors_FD)
    for one in (task, task.train()):
        assert one.network.training
        assert not any(part.training for part in network.encoder.modules())
    values = np.linspace(4, 8, len(study.table.sample_ids))
    with_memory, without = (
        validate(network, config, study, 7, values, memory) for memory in (asv_vectors_FD, None)
    )
    assert with_memory["val_target"] == pytest.approx(without["val_target"], rel=1e-5)


def load(folder: Path) -> tuple[Predictor, ModelConfig]:
    stored = read_networks(folder)[0]
    config, network = stored.config, stored.build()
    assert isinstance(network, Predictor)
    return network, config
