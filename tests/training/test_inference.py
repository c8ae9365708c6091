"""Inference: what is computed once for each ASV, and what for each sample."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from aam.data.batches import BatchPlan, make_batch
from aam.data.study import Study
from aam.data.targets import TargetTransform
from aam.inference.outputs import (
    LoadedNetwork,
    apply_network,
    apply_to_batch,
    embed,
    encode_asvs,
    profile_terms,
)
from aam.inference.stored_networks import DiversityScale, ModelConfig, Target
from aam.inference.tables import InferenceSettings
from aam.model.network import Predictor
from aam.model.shape import NetworkShape
from tests.support.models import loaded

CPU = torch.device("cpu")
WIDTH = 512
PLAN = BatchPlan(seed=1, rarefy_depth=0, token_limit=1024)


def model(study: Study) -> LoadedNetwork:
    torch.manual_seed(0)
    target = Target("y", transform=TargetTransform("none", 0, 1))
    length = study.tokens_FL.shape[1]
    shape = NetworkShape(length, 8, 2, 1, outputs=target.outputs, profile_features=WIDTH)
    config = ModelConfig("train", shape, "unweighted", PLAN, DiversityScale(), target, {})
    return loaded(config, config.network().eval())


def test_features_of_the_profile_are_computed_once_for_each_asv(study: Study) -> None:
    network = model(study).network
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
    network = model(study).network
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


def test_an_embedding_needs_the_encoder_alone(study: Study) -> None:
    predictor = model(study)
    encoder = dataclasses.replace(predictor, network=predictor.network.encoder)
    found = []
    for one in (predictor, encoder):
        with FlopCounterMode(display=False) as counter:
            embeddings_ND = embed(one, study, InferenceSettings(4))
        found.append((counter.get_total_flops(), embeddings_ND))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
