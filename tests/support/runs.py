"""Checks of the files and metrics of a run folder, for the tests of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from aam.contract.options.groups import LoopOptions
from aam.data.study import Study
from aam.network.batches import FixedBatches, loader
from aam.network.inference.stored_networks import ModelConfig, read_networks
from aam.network.model.network import Encoder, Predictor
from aam.network.training.module import LossWeights, TrainingModule
from tests.support.commands import aam, read

FILES = {
    ".lock",
    "run.json",
    "ro-crate-metadata.json",
    "metrics.csv",
    "progress.json",
    "splits.tsv",
    "embeddings.tsv",
    "checkpoints/best.ckpt",
    "checkpoints/last.ckpt",
    "model/model.json",
    "model/transformer.safetensors",
}
FIRST = ["epoch", "step", "seconds", "lr"]
PARTS = {
    "unifrac": {"unifrac"},
    "nucleotide": {"nucleotide", "nucleotide_accuracy"},
    "target": {"target"},
    "count": {"count"},
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
    return {f"network.{name}": value for name, value in read_networks(folder)[0].weights.items()}


def predict(table: Path, model: Path, output: Path, *args: object) -> pd.DataFrame:
    given = ("--table", table, "--model", model, "--output", output, "--device", "cpu")
    assert aam("predict", *given, *args) == 0
    return read(output)


def validate(
    network: Encoder | Predictor,
    config: ModelConfig,
    study: Study,
    batch_size: int,
    values: npt.NDArray[np.float64] | None = None,
    asv_vectors_FD: torch.Tensor | None = None,
) -> dict[str, float]:
    """Validate a network on all samples of a study, as the training loop does."""
    loop = LoopOptions(batch_size=batch_size)
    task = TrainingModule(
        network, LossWeights(), loop, 1, config.target, values, asv_vectors_FD, config.standard
    )
    rows = np.arange(len(study.table.sample_ids))
    batches = FixedBatches(study, config.plan, rows, batch_size)
    task.eval()
    for batch in loader(batches, None, 0, False):
        task.validation_step(batch.to(torch.device("cpu")))
    return task.validation_metrics()
