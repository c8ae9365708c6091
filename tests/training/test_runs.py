"""Training runs: reproducibility, losses and validation, devices, and options at their limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aam.contract.options import from_plain, parse
from aam.contract.options.commands.pretrain import Pretrain
from aam.data.study import Study
from aam.data.targets import OutputRange, TargetTransform
from aam.inference.stored_networks import Target, read_networks
from aam.model.distance import PairwiseDistance
from aam.model.network import Encoder
from aam.model.shape import NetworkShape, least_weights
from aam.training.losses import distance_loss, target_loss
from tests.support.commands import pretrain, train
from tests.support.runs import validate, weights


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(v, two[k]) for k, v in one.items())


def test_the_record_has_numbers_in_place_of_auto(encoder: Path) -> None:
    """The command line in the record says what the user gave."""
    record = json.loads((encoder / "run.json").read_text())
    device, speed = record["options"]["device"], record["options"]["speed"]
    assert (device["device"], device["num_workers"]) == ("cpu", 0)
    assert device["cpu_threads"] == torch.get_num_threads()
    assert speed["mixed_precision"] == "none"
    assert record["argv"]
    args = ["pretrain", "--config", str(encoder), "--output-dir", "new"]
    assert "--device" not in parse(args).given  # another host has other numbers
    assert parse(args).build().model == from_plain(Pretrain, record["options"]).model


@pytest.mark.parametrize("kind", ["numbers", "classes", "encoder"])
def test_validation_does_not_depend_on_the_batch_size(
    request: pytest.FixtureRequest, study: Study, kind: str
) -> None:
    folder: Path = request.getfixturevalue(kind)
    stored = read_networks(folder)[0]
    config, network = stored.config, stored.build()
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


def test_numbers_are_clipped_to_the_range_of_the_outputs() -> None:
    transform = TargetTransform("zscore", 5.0, 2.0)
    outputs, expected = torch.tensor([[-9.0], [0.5], [4.0]]), [[0.0], [6.0], [10.0]]
    target = Target("ph", transform=transform, range=OutputRange(0.0, 10.0))
    assert target.decode(outputs).tolist() == expected
    assert Target("ph", transform=transform).decode(outputs).tolist() == [[-13.0], [6.0], [13.0]]


def test_class_weights_weigh_the_loss() -> None:
    target = Target("site", ("a", "b"), (0.5, 3.0))
    logits, codes = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 0, 0])
    loss = target_loss(target, logits, codes)
    expected = torch.nn.functional.cross_entropy(logits, codes, torch.tensor([0.5, 3.0]))
    torch.testing.assert_close(loss.mean, expected)


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


@pytest.mark.medium
def test_the_same_seed_gives_the_same_run_and_another_does_not(
    study_dir: Path, tree: tuple[str, Path], numbers: Path, tmp_path: Path
) -> None:
    args = ("--epochs", 2, "--lr", 0.01, "--group-column", "subject")
    assert train(study_dir, tmp_path / "same", *tree, *args) == 0
    assert train(study_dir, tmp_path / "other", *tree, *args, "--seed", 43) == 0
    for name in ("predictions.tsv", "splits.tsv", "embeddings.tsv"):
        text = (numbers / name).read_text()
        assert (tmp_path / "same" / name).read_text() == text
        assert (tmp_path / "other" / name).read_text() != text
    assert same(weights(tmp_path / "same"), weights(numbers))
    assert not same(weights(tmp_path / "other"), weights(numbers))


def test_a_kernel_that_cannot_run_is_replaced_with_a_warning(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (*tree, "--attn-implementation", "mem_efficient")
    assert pretrain(study_dir, tmp_path / "run", *args) == 0
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
    ("args", "message"),
    [
        (("--embedding-dim", 10**9), "--embedding-dim 1000000000; give 1 to 65536"),
        (("--embedding-dim", 65_536, "--attention-layers", 1000), "does not fit into memory"),
        (("--lr", "1e300"), "--lr 1e+300; give more than 0 and at most 1000000"),
        (("--batch-size", 10**18), "--batch-size 1000000000000000000; choose a smaller"),
        (("--rarefy-depth", 10**18), "1000000000000000000"),
    ],
)
def test_options_at_their_extremes_are_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: Any, message: str
) -> None:
    tree = ("--tree", study_dir / "tree.nwk")
    assert pretrain(study_dir, tmp_path / "run", *tree, *args) in (64, 65)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("aam: ") and message in last
    assert not (tmp_path / "run").exists()
