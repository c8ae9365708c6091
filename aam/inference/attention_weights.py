"""Attention of a trained network to the ASVs of one sample.

The target is predicted from a weighted mean of the ASVs of a sample, after a layer in which each
ASV attends to all. Both sets of weights are computed explicitly, since the backends of attention
return none. Shape suffixes: see `aam.data.batches`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.data.batches import FixedBatches, reading_plan
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.inference.network_outputs import encode_asvs
from aam.inference.stored_networks import StoredNetwork
from aam.model.attention import Backend, Backends
from aam.model.network import Predictor

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SampleAttention:
    """Attention to the S ASVs of a sample.

    Attributes:
        asvs_S: int64, columns of the study.
        abundance_S: relative abundances of the reads that the network reads, of sum 1.
        pooling_S: weight of each ASV in the mean that predicts the target; the sum is 1.
        mixing_SS: weight of each ASV (column) for each ASV (row) in the layer before, the mean of
            its heads; the sum of a row is 1.
    """

    asvs_S: npt.NDArray[np.int64]
    abundance_S: F64
    pooling_S: F64
    mixing_SS: F64


class _Recorder:
    """Backend of attention that keeps the weights of its latest call."""

    def __init__(self) -> None:
        self.weights_NHKK = torch.empty(0)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        self.weights_NHKK = scores.softmax(dim=-1)
        return self.weights_NHKK @ v


def sample_attention(
    stored: StoredNetwork,
    sample: Study,
    device: torch.device,
    covariates: Covariates | None = None,
) -> SampleAttention:
    """Compute the attention of the target's readout to the ASVs of one sample.

    Args:
        stored: network with a target.
        sample: study with one sample.
        device: device of the computation.
        covariates: metadata of the sample, for a model that reads metadata; else None.

    Returns:
        Weights of the ASVs that the network reads of the sample, after rarefaction.
    """
    recorder, pooled = _Recorder(), list[tuple[Tensor, Tensor | None]]()
    # The backends of PyTorch return no weights, so a backend in plain operations replaces them.
    backend = Backend("recorded", recorder)
    config, network = stored.config, stored.build(Backends(backend, backend))
    assert isinstance(network, Predictor)
    network.to(device).eval()
    # The weights of the pooling depend on its inputs, which only the forward pass of the heads has.
    network.pooling.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs))
    vectors_FD = encode_asvs(network.encoder, sample, device)
    batch = FixedBatches(sample, reading_plan(config.plan), np.arange(1), 1)[0].to(device)
    inputs = config.inputs(covariates)
    with torch.no_grad():
        embedding_BD, hidden_BSD = network.encoder.samples(
            vectors_FD[batch.asvs_U], batch.slots_BS, batch.counts_BS, batch.attend_BS
        )
        known = None if inputs is None else inputs.take(batch.rows_B)
        network.heads(embedding_BD, hidden_BSD, batch.attend_BS, None, known)
        (weights_S,) = network.pooling.weights(*pooled[0])
    # The slots that pad the sample have no reads.
    present_S = (batch.counts_BS[0] > 0).cpu().numpy()
    counts_S = batch.counts_BS[0].double().cpu().numpy()[present_S]
    mixing_SS = recorder.weights_NHKK[0].mean(dim=0).double().cpu().numpy()
    asvs_S = batch.asvs_U[batch.slots_BS[0]].cpu().numpy()[present_S]
    return SampleAttention(
        asvs_S,
        counts_S / counts_S.sum(),
        weights_S.double().cpu().numpy()[present_S],
        mixing_SS[np.ix_(present_S, present_S)],
    )
