"""Inference: outputs, what is computed once for each ASV, and integrated gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aam.data.study import Study
from aam.data.targets import TargetTransform
from aam.network.batches import BatchPlan, make_batch
from aam.network.inference.outputs import (
    LoadedNetwork,
    apply_network,
    apply_to_batch,
    encode_asvs,
    profile_terms,
)
from aam.network.inference.stored_networks import DiversityScale, ModelConfig, Target
from aam.network.model.network import Predictor
from aam.network.model.shape import NetworkShape
from aam.network.training.runs import fit_profile
from aam.network.transformer_member import integrated_gradients
from tests.support.models import loaded

CPU = torch.device("cpu")


def model_of(study: Study, target: Target, profile: int) -> LoadedNetwork:
    """Return a network with random weights; the baseline and the samples differ in its output."""
    torch.manual_seed(0)
    shape = NetworkShape(
        max_bp=study.tokens_FL.shape[1],
        embedding_dim=16,
        attention_heads=2,
        attention_layers=1,
        outputs=target.outputs,
        profile_features=profile,
    )
    plan = BatchPlan(seed=1, rarefy_depth=500, token_limit=1024)
    config = ModelConfig("train", shape, "unweighted", plan, DiversityScale(), target, {})
    network = config.network()
    assert isinstance(network, Predictor)
    fit_profile(network, study, plan, np.arange(len(study.table.sample_ids)))
    return loaded(config, network)


@pytest.fixture
def samples(study: Study) -> Study:
    """Twelve samples."""
    return study.take_samples(np.arange(12))


@pytest.mark.parametrize(
    ("target", "profile"),
    [
        (Target("y", transform=TargetTransform("zscore", 3.0, 2.0)), 32),
        (Target("y", transform=TargetTransform("none", 0, 1), quantiles=(0.1, 0.5, 0.9)), 0),
        (Target("y", classes=("a", "b")), 0),
        (Target("y", classes=("a", "b", "c")), 32),
    ],
    ids=["number", "quantiles", "two classes", "three classes"],
)
def test_contributions_sum_to_the_difference_from_the_baseline(
    samples: Study, target: Target, profile: int
) -> None:
    model = model_of(samples, target, profile)
    found = integrated_gradients(model, samples, 7)
    sums_NC = np.stack([values.sum(axis=1) for values in found.values], axis=1)
    expected_NC = found.scores_NC - found.baselines_NC
    assert expected_NC.std(axis=0).min() > 1e-3
    assert sums_NC == pytest.approx(expected_NC, abs=1e-3 * np.abs(expected_NC).max())
    vectors_FD = encode_asvs(model.network.encoder, samples, CPU)
    how = model.config.plan.for_inference, np.arange(12), 9, CPU, vectors_FD
    outputs_NC = apply_network(model.network, samples, *how)[1]
    assert outputs_NC is not None
    predicted_NC = target.decode(outputs_NC)
    if target.classes:
        logs = np.log(predicted_NC)
        wanted = (
            logs[:, 1:] - logs[:, :1] if len(target.classes) == 2 else logs - logs.mean(1)[:, None]
        )
    else:
        wanted = np.array([target.point_predictions(predicted_NC)]).T - target.transform.shift
    if not target.quantiles:  # predictions sort the quantiles of an untrained network
        assert found.scores_NC == pytest.approx(wanted, abs=1e-4)


def test_contributions_do_not_depend_on_the_batch(samples: Study) -> None:
    model = model_of(samples, Target("y", classes=("a", "b")), 32)
    one, other = (integrated_gradients(model, samples, size).values[0] for size in (5, 12))
    assert one.toarray() == pytest.approx(other.toarray(), abs=1e-5)


def test_only_asvs_with_reads_contribute(samples: Study) -> None:
    model = model_of(samples, Target("y", classes=("a", "b")), 32)
    whole = dataclasses.replace(model.config.plan, rarefy_depth=0)
    model = loaded(dataclasses.replace(model.config, plan=whole), model.network)
    (values,) = integrated_gradients(model, samples, 8).values
    counts = samples.table.counts[np.arange(len(samples.table.sample_ids))]
    assert ((values != 0).toarray() == (counts.toarray() > 0)).all()


WIDTH = 512
TARGET = Target("y", transform=TargetTransform("none", 0, 1))
PLAN = BatchPlan(seed=1, rarefy_depth=0, token_limit=1024)


def test_features_of_the_profile_are_computed_once_for_each_asv(study: Study) -> None:
    network = model_of(study, TARGET, WIDTH).network
    assert isinstance(network, Predictor)
    vectors_FD = encode_asvs(network.encoder, study, CPU)
    flops = []
    for times in (1, 4):
        rows = np.tile(np.arange(4), times)
        with FlopCounterMode(display=False) as counter:
            apply_network(network, study, PLAN, rows, 4, CPU, vectors_FD)
        flops.append(counter.get_total_flops())
    features = 2 * len(study.tokens_FL) * 4 * study.tokens_FL.shape[1] * WIDTH
    assert flops[0] > features
    assert flops[1] < flops[0] + features


def test_outputs_are_those_of_the_sequences_of_the_batch(study: Study) -> None:
    network = model_of(study, TARGET, WIDTH).network
    assert isinstance(network, Predictor)
    vectors_FD = encode_asvs(network.encoder, study, CPU)
    batch = make_batch(study, PLAN, np.array([5, 0, 7]))
    with torch.no_grad():
        terms_FW = profile_terms(network, study.tokens_FL, CPU)
        embedding_BD, outputs_BC = apply_to_batch(network, batch, vectors_FD, terms_FW)
        expected_BD, members_BSD = network.encoder.samples(
            vectors_FD[batch.asvs_U], batch.slots_BS, batch.counts_BS, batch.attend_BS
        )
        expected_XBC = network.target(
            expected_BD,
            members_BSD,
            batch.attend_BS,
            batch.tokens_UL,
            batch.slots_BS,
            batch.counts_BS,
        )
    torch.testing.assert_close(embedding_BD, expected_BD)
    torch.testing.assert_close(outputs_BC, expected_XBC.mean(dim=0))
