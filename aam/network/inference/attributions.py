"""Attributions of a trained network: integrated gradients, and attention to the ASVs of a sample.

The target is predicted from a weighted mean of the ASVs of a sample, after a layer in which each
ASV attends to all ASVs. The weights of the mean and of the attention are computed explicitly, since
attention backends return no weights. Shape suffixes: see `aam.network.batches`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from aam.arrays import F64
from aam.console import track
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.data.targets import contrasts
from aam.members.member import SampleAttention
from aam.network.batches import Batch, FixedBatches
from aam.network.inference.outputs import LoadedNetwork, encode_asvs, profile_terms
from aam.network.inference.stored_networks import StoredNetwork
from aam.network.model.attention import Backend, Backends
from aam.network.model.community_profile import log_abundance
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.network import Predictor

MAX_REFERENCE = 512  # largest number of reference sequences that are encoded for their mean
STEPS = 16  # Gauss-Legendre nodes on the line from the baseline to the sample


@dataclass(frozen=True)
class Contributions:
    """Contributions of ASVs to C scores of samples."""

    # C arrays float64 [N, F]; an ASV without reads has no entry
    values: tuple[sparse.csr_array, ...]
    scores_NC: F64  # scores of the samples
    baselines_NC: F64  # scores of their baselines


def integrated_gradients(
    model: LoadedNetwork,
    study: Study,  # the samples; they are rarefied as in a prediction
    batch_size: int,  # samples at a time; the contributions do not depend on it
    steps: int = STEPS,
    covariates: Covariates | None = None,
    reference_FL: npt.NDArray[np.uint8] | None = None,
) -> Contributions:
    """Compute the contribution of every ASV to the scores of every sample by integrated gradients.

    The contributions to a score of a sample sum to the score minus the score of the baseline. In
    the baseline of a sample every ASV is replaced by the mean ASV: the mean of the sequences
    `reference_FL`, or of all ASVs of all samples.
    """
    network, target, device = model.network, model.config.target, model.device
    assert isinstance(network, Predictor) and target is not None
    vectors_FD = encode_asvs(network.encoder, study, device)
    network.to(device).eval()
    terms_FW = profile_terms(network, study.tokens_FL, device)
    if terms_FW is None:
        terms_FW = vectors_FD.new_empty(len(vectors_FD), 0)
    samples, features = len(study.table.sample_ids), len(study.table.feature_ids)
    counts = study.counts(np.arange(samples))
    prevalence = np.bincount(counts.indices, minlength=features) / counts.nnz
    share_F = torch.from_numpy(prevalence).to(vectors_FD)
    mean_D, mean_W = share_F @ vectors_FD, share_F @ terms_FW
    if reference_FL is not None:
        # The mean of hundreds of sequences is close to the mean of thousands, and faster to encode.
        number = min(len(reference_FL), MAX_REFERENCE)
        chosen_FL = reference_FL[np.linspace(0, len(reference_FL) - 1, number).astype(np.int64)]
        reference = replace(study, tokens_FL=chosen_FL)
        mean_D = encode_asvs(network.encoder, reference, device).mean(dim=0)
        if (reference_FW := profile_terms(network, chosen_FL, device)) is not None:
            mean_W = reference_FW.mean(dim=0)
    inputs = vectors_FD, mean_D, terms_FW, mean_W

    covariates_N = model.config.inputs(covariates)
    # Matrix from outputs to scores. The scores of classes are defined by `contrasts`. The score of
    # a number has the units of the target, or of its logarithm with a logarithmic transform.
    if target.classes:
        matrix_OC = contrasts(len(target.classes))
    else:
        assert target.transform is not None
        matrix_OC = np.eye(target.outputs)[:, [target.middle]] * target.transform.scale
    scores_OC = torch.from_numpy(matrix_OC).to(vectors_FD)
    batches = FixedBatches(study, model.config.plan.for_inference, np.arange(samples), batch_size)
    rows, columns, entries, ends = [], [], [], []
    for k in track(range(len(batches)), "Integrated gradients", len(batches), "batches"):
        batch = batches[k].to(device)
        covariates_B = None if covariates_N is None else covariates_N.take(batch.rows_B)
        contributions_CBS, ends_2BC = _integrate(
            network, inputs, batch, scores_OC, steps, covariates_B
        )
        present_BS = batch.counts_BS > 0
        rows.append(batch.rows_B[:, None].expand_as(present_BS)[present_BS].cpu().numpy())
        columns.append(batch.asvs_U[batch.slots_BS][present_BS].cpu().numpy())
        entries.append(contributions_CBS[:, present_BS].cpu().numpy())
        ends.append(ends_2BC.cpu().numpy())
    indices = (np.concatenate(rows), np.concatenate(columns))
    baselines_NC, scores_NC = np.concatenate(ends, axis=1).astype(np.float64)
    values = tuple(
        sparse.csr_array((data.astype(np.float64), indices), shape=(samples, features))
        for data in np.concatenate(entries, axis=1)
    )
    return Contributions(values, scores_NC, baselines_NC)


def _integrate(
    network: Predictor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    batch: Batch,
    scores_OC: Tensor,
    steps: int,
    covariates: CovariateInputs | None,
) -> tuple[Tensor, Tensor]:
    """Return the contributions [C, B, S], and the scores [2, B, C] of baselines and samples."""
    vectors_FD, mean_D, terms_FW, mean_W = inputs
    counts_BS, attend_BS, slots_BS = batch.counts_BS, batch.attend_BS, batch.slots_BS
    # Each ASV of each sample gets a separate vector, because its contribution differs by sample.
    separate_BS = torch.arange(slots_BS.numel(), device=slots_BS.device).view(slots_BS.shape)
    away_BSD = vectors_FD[batch.asvs_U][slots_BS] - mean_D
    away_UW = terms_FW[batch.asvs_U] - mean_W
    weight_BS = log_abundance(counts_BS)
    weight_BU = weight_BS.new_zeros(len(slots_BS), len(away_UW)).scatter_add_(
        1, slots_BS, weight_BS
    )
    start_BW = weight_BS.sum(dim=1, keepdim=True) * mean_W
    if network.profile is not None:
        start_BW = start_BW + network.profile_offset()

    def scores(members_BSD: Tensor, profile_BW: Tensor) -> Tensor:
        embedding_BD, hidden_BSD = network.encoder.samples(
            members_BSD.flatten(0, 1), separate_BS, counts_BS, attend_BS
        )
        profile = None if network.profile is None else profile_BW
        heads_XBO = network.heads(embedding_BD, hidden_BSD, attend_BS, profile, covariates)
        return heads_XBO.mean(dim=0) @ scores_OC

    def point(position: float) -> tuple[Tensor, Tensor]:
        """Return the inputs on the line from the baseline (0) to the sample (1)."""
        members_BSD = mean_D + position * away_BSD
        profile_BW = start_BW + position * (weight_BU @ away_UW)
        return members_BSD.requires_grad_(), profile_BW.requires_grad_()

    outputs = scores_OC.shape[1]
    contributions_CBS = counts_BS.new_zeros(outputs, *counts_BS.shape)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        # The nodes are in [-1, 1] and the line is [0, 1], so each weight is halved below.
        members_BSD, profile_BW = point((node + 1) / 2)
        scores_BC = scores(members_BSD, profile_BW)
        for output in range(outputs):
            to_members_BSD, to_profile_BW = torch.autograd.grad(
                # Samples are independent, so the gradient of the sum has the gradient of each.
                scores_BC[:, output].sum(),
                (members_BSD, profile_BW),
                retain_graph=output + 1 < outputs,
                # Without a profile head the profile has no gradient; use zeros instead.
                materialize_grads=True,
            )
            # For an input without effect PyTorch 2.7 returns zeros that require a gradient.
            to_profile_BW = to_profile_BW.detach()
            by_members_BS = (to_members_BSD * away_BSD).sum(dim=-1)
            by_profile_BS = weight_BS * (to_profile_BW @ away_UW.T).gather(1, slots_BS)
            contributions_CBS[output] += weight / 2 * (by_members_BS + by_profile_BS)
    with torch.no_grad():
        return contributions_CBS, torch.stack([scores(*point(0.0)), scores(*point(1.0))])


class _Recorder:
    """Attention backend that records the weights of its latest call."""

    def __init__(self) -> None:
        self.weights_NHKK = torch.empty(0)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        self.weights_NHKK = scores.softmax(dim=-1)
        return self.weights_NHKK @ v


def sample_attention(
    stored: StoredNetwork, sample: Study, device: torch.device, covariates: Covariates | None = None
) -> SampleAttention:
    """Return the attention of a network to the ASVs of a study's only sample."""
    recorder, pooled = _Recorder(), list[tuple[Tensor, Tensor | None]]()
    # PyTorch's backends return no weights, so a backend in plain operations replaces them.
    backend = Backend("recorded", recorder)
    config, network = stored.config, stored.build(Backends(backend, backend))
    assert isinstance(network, Predictor)
    network.to(device).eval()
    # The weights of the pooling follow from its inputs, which the forward pass of the heads makes.
    network.pooling.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs))
    vectors_FD = encode_asvs(network.encoder, sample, device)
    batch = FixedBatches(sample, config.plan.for_inference, np.arange(1), 1)[0].to(device)
    covariates_N = config.inputs(covariates)
    with torch.no_grad():
        embedding_BD, hidden_BSD = network.encoder.samples(
            vectors_FD[batch.asvs_U], batch.slots_BS, batch.counts_BS, batch.attend_BS
        )
        covariates_B = None if covariates_N is None else covariates_N.take(batch.rows_B)
        network.heads(embedding_BD, hidden_BSD, batch.attend_BS, None, covariates_B)
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
