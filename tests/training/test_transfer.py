"""Pretrained encoders: shape, frozen weights and their vectors in `aam train`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from aam.contract.options.training import LoopOptions
from aam.data.batches import FixedBatches
from aam.data.study import Study
from aam.inference.outputs import encode_asvs
from aam.inference.stored_networks import ModelConfig, read_networks
from aam.model.network import Predictor
from aam.training.module import LossWeights, TrainingModule
from tests.support.commands import train
from tests.support.runs import NUMBER, check_metrics, columns, validate, weights


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
