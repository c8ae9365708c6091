"""Prediction of hidden abundances (--count-penalty): batches, network, loss and runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.contract.errors import UsageError
from aam.data.study import Study
from aam.network.batches import BatchPlan, make_batch
from aam.network.inference.stored_networks import read_networks
from aam.network.model.network import Encoder
from aam.network.model.shape import NetworkShape
from aam.network.training.losses import count_loss
from tests.support.commands import pretrain, train
from tests.support.runs import NUMBER, check_metrics, columns, weights

PLAN = BatchPlan(1, 200, 1024, mask_ratio=0.15, metric="unweighted")
HIDDEN = dataclasses.replace(PLAN, hidden_ratio=0.15)


def test_a_share_of_the_present_asvs_is_hidden(study: Study) -> None:
    rows = np.arange(36)
    batch = make_batch(study, HIDDEN, rows)
    assert batch.hidden_BS is not None
    present_BS = batch.counts_BS > 0
    assert not (batch.hidden_BS & ~present_BS).any()
    assert 0.1 < batch.hidden_BS.sum() / present_BS.sum() < 0.2
    # Nothing else differs, and other masks hide others.
    without = make_batch(study, PLAN, rows)
    assert without.hidden_BS is None
    for name, value in vars(without).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(batch, name)), name
    alone = make_batch(study, HIDDEN, rows[2:3]).hidden_BS  # whatever the other samples
    assert alone is not None and torch.equal(batch.hidden_BS[2, : alone.shape[1]], alone[0])
    other = make_batch(study, HIDDEN, rows, masks=1).hidden_BS
    assert other is not None and not torch.equal(other, batch.hidden_BS)


def test_the_network_does_not_read_what_is_hidden(study: Study) -> None:
    batch = make_batch(study, HIDDEN, np.arange(6))
    assert batch.hidden_BS is not None
    torch.manual_seed(2)
    shape = NetworkShape(study.tokens_FL.shape[1], 16, 2, 1, predicts_counts=True)
    encoder = Encoder(shape, "unweighted").eval()
    asvs_UD, _ = encoder.nucleotides(batch.tokens_UL, batch.ragged(5))
    asvs = asvs_UD, batch.slots_BS
    changed_BS = torch.where(batch.hidden_BS, 7 * batch.counts_BS, batch.counts_BS)
    one = encoder.samples(*asvs, batch.counts_BS, batch.attend_BS, batch.hidden_BS)
    other = encoder.samples(*asvs, changed_BS, batch.attend_BS, batch.hidden_BS)
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    read = encoder.samples(*asvs, changed_BS, batch.attend_BS)
    assert not torch.allclose(read[0], one[0])
    # With nothing hidden it is the network without the head.
    nothing = torch.zeros_like(batch.hidden_BS)
    shown = encoder.samples(*asvs, changed_BS, batch.attend_BS, nothing)
    torch.testing.assert_close(shown, read)


def test_the_loss_is_of_hidden_abundances_alone() -> None:
    counts_BS = torch.tensor([[10.0, 90.0, 0.0], [1.0, 1.0, 8.0]])
    hidden_BS = torch.tensor([[True, False, False], [False, True, True]])
    predicted_BS = torch.tensor([[0.0, 99.0, torch.nan], [torch.nan, -1.0, 0.5]])
    term = count_loss(predicted_BS, counts_BS, hidden_BS)
    expected = 1.0**2 + 0.0**2 + (0.5 - np.log10(0.8)) ** 2
    assert term.total.item() == pytest.approx(expected)
    assert term.number.item() == 3
    nothing = count_loss(predicted_BS, counts_BS, torch.zeros_like(hidden_BS))
    assert nothing.mean.item() == 0


def test_runs_with_and_without_the_head(
    study_dir: Path,
    tree: tuple[str, Path],
    encoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pretrained head goes on learning, or stays; without one there is nothing to learn with."""
    folder = tmp_path / "pretrained"
    args = ("--count-penalty", 1, "--epochs", 2, "--lr", 0.01)
    assert pretrain(study_dir, folder, *tree, *args) == 0
    table = check_metrics(
        folder / "metrics.csv", columns("unifrac", "nucleotide", "count"), epochs=2
    )
    assert table["train_count"].iloc[1] < table["train_count"].iloc[0]
    config = read_networks(folder)[0].config
    assert config.shape.predicts_counts and config.plan.hidden_ratio == 0.15
    readout = "network.samples.counts.readout.weight"
    given = weights(folder)[readout]

    more = ("--pretrained-encoder", folder, "--lr", 0.01)
    expected = columns("unifrac", "nucleotide", "target") | NUMBER
    learning, idle = tmp_path / "learning", tmp_path / "idle"
    assert train(study_dir, learning, *tree, *more, "--count-penalty", 0.5) == 0
    # The target is validated with all abundances, so none is predicted.
    check_metrics(learning / "metrics.csv", expected | {"train_count"})
    assert train(study_dir, idle, *tree, *more) == 0
    check_metrics(idle / "metrics.csv", expected)
    inside = readout.replace("network.", "network.encoder.", 1)
    assert not torch.equal(weights(learning)[inside], given)
    assert torch.equal(weights(idle)[inside], given)

    # The other encoder has no head: it loads, and cannot predict abundances.
    more = ("--pretrained-encoder", encoder)
    assert train(study_dir, tmp_path / "plain", *tree, *more) == 0
    assert not any("counts" in name for name in weights(tmp_path / "plain"))
    refused = train(study_dir, tmp_path / "refused", *tree, *more, "--count-penalty", 1)
    assert refused == UsageError.status
    assert "was pretrained without --count-penalty" in capsys.readouterr().err
