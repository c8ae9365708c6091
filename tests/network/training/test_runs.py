"""Training runs: reproducibility, losses, validation, precision, and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from aam.contract.errors import UsageError
from aam.contract.options import from_plain
from aam.contract.options.command_line import parse
from aam.contract.options.commands.train import Pretrain
from aam.contract.options.groups import LossType
from aam.data.study import Study
from aam.data.targets import OutputRange, TargetTransform
from aam.network.inference.stored_networks import Target, read_networks
from aam.network.model.network import Encoder, PairwiseDistance
from aam.network.model.shape import NetworkShape
from aam.network.numerics.device import choose_precision, has_bf16
from aam.network.training.configuration import least_weights
from aam.network.training.losses import LOSSES, distance_loss, target_loss
from tests.support.commands import pretrain, read, train
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


def test_losses_of_numbers() -> None:
    """Of an error of 2 above and of 1 below; the registry has the names of --loss-type."""
    expected = {"mse": 2.5, "mae": 1.5, "huber": 1.0, "quantile": 0.55, "asymmetric": 3.25}
    assert set(LOSSES) == set(get_args(LossType)) == set(expected)
    outputs, labels = torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 1.0])
    for name, loss in expected.items():
        target = Target("y", loss_type=name, quantiles=(0.9,), over_penalty=3, under_penalty=0.5)  # type: ignore[arg-type]
        assert target_loss(target, outputs, labels).mean.item() == pytest.approx(loss), name


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


def test_a_network_beyond_the_memory_is_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--penalty", 0, "--embedding-dim", 65_536, "--attention-layers", 1000)
    assert pretrain(study_dir, tmp_path / "run", *args) == UsageError.status
    assert "does not fit into memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


BF16 = {
    "cpu": True,
    "gfx906": False,
    "gfx942": True,
    "gfx1030": False,
    "gfx2000": None,
    "sm_75": False,
    "sm_90": True,
}


@pytest.mark.parametrize("arch", BF16)
def test_bf16_by_architecture(arch: str) -> None:
    assert has_bf16(arch) is BF16[arch]
    expected = "bf16" if BF16[arch] and arch != "cpu" else "none"
    assert choose_precision("auto", arch) == expected
    assert choose_precision("none", arch) == "none"
    if BF16[arch] is False:
        with pytest.raises(
            UsageError, match=f"no bf16: --mixed-precision bf16 on {arch}; use fp16"
        ):
            choose_precision("bf16", arch)
    else:
        assert choose_precision("bf16", arch) == "bf16"
    if arch == "cpu":
        with pytest.raises(UsageError, match="fp16 needs a GPU"):
            choose_precision("fp16", arch)
    else:
        assert choose_precision("fp16", arch) == "fp16"


@pytest.mark.medium
def test_bf16_trains_close_to_fp32(study_dir: Path, tmp_path: Path) -> None:
    args = ("--tree", study_dir / "tree.nwk", "--epochs", "8", "--dropout", "0")
    runs = {}
    for precision in ("none", "bf16", "auto"):
        folder = tmp_path / precision
        more = (*args, "--mixed-precision", precision, "--report-fp32-fallbacks")
        assert pretrain(study_dir, folder, *more) == 0
        losses = read(folder / "metrics.csv")["val_loss"]
        runs[precision] = (losses, json.loads((folder / "run.json").read_text()))
    plain, half = runs["none"][0], runs["bf16"][0]
    # It learns, and by nearly as much.
    assert half.iloc[-1] < half.iloc[0]
    assert abs(half.iloc[-1] - plain.iloc[-1]) < 0.2 * (plain.iloc[0] - plain.iloc[-1])
    assert not half.equals(plain)
    # On a CPU 'auto' is fp32.
    assert runs["auto"][0].equals(plain)
    assert [runs[name][1]["precision"] for name in runs] == ["none", "bf16", "none"]
    fallbacks = runs["bf16"][1]["fp32_fallbacks"]
    assert "fp32_fallbacks" not in runs["none"][1]
    named = {name for names in fallbacks.values() for name in names}
    # The distance is computed in fp32 on purpose; products are not.
    assert any(name.endswith("distance") for name in named)
    assert "Linear" not in fallbacks


def test_weights_of_samples_and_classes_weigh_the_loss() -> None:
    """A sample of weight 2 counts as two samples, and the weight of its class multiplies it."""
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    codes = torch.tensor([0, 1, 1])
    for class_weights in ((), (1.0, 3.0)):
        target = Target("site", ("a", "b"), class_weights)
        weighted = target_loss(target, logits, codes, torch.tensor([1.0, 2.0, 1.0]))
        repeated = target_loss(target, logits[[0, 1, 1, 2]], codes[[0, 1, 1, 2]])
        assert weighted.mean.item() == pytest.approx(repeated.mean.item())
    # So do ranks of ordered categories, which are numbers.
    ranks, rank = torch.tensor([[0.5], [2.0], [1.0]]), torch.tensor([0.0, 1.0, 2.0])
    weighted = target_loss(Target("stage"), ranks, rank, torch.tensor([1.0, 2.0, 1.0]))
    repeated = target_loss(Target("stage"), ranks[[0, 1, 1, 2]], rank[[0, 1, 1, 2]])
    assert weighted.mean.item() == pytest.approx(repeated.mean.item())
