"""Transformer: the network as a member of the ensemble.

All ranks of a run train one network for each fold, and a stopped run resumes each of them.
Predictions of new samples are the mean of the networks of all folds. U ASVs of samples; for other
shape suffixes see `samples` and `aam.network.batches`.

Attributions are integrated gradients, and the attention to the ASVs of a sample. The target is
predicted from a weighted mean of the ASVs of a sample, after a layer in which each ASV attends to
all ASVs. The weights of the mean and of the attention are computed explicitly, since attention
backends return no weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from aam.arrays import F64, Tokens
from aam.console import info, track
from aam.contract.options.groups import DeviceOptions
from aam.contract.records import Mismatch
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.study import Study
from aam.data.table import FeatureTable
from aam.data.targets import TargetScale, contrasts
from aam.members.member import (
    ExplainedSamples,
    FittedModel,
    Importance,
    MemberPrediction,
    Outputs,
    Reader,
    SampleAttention,
    SampleEffects,
    moments,
    of_effects,
)
from aam.members.output_tables import InferenceSettings
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.network.batches import Batch, FixedBatches, draw_asvs
from aam.network.inference.outputs import (
    LoadedNetwork,
    apply_network,
    build_networks,
    encode_asvs,
    profile_terms,
)
from aam.network.inference.stored_networks import StoredNetwork, network_state, restore_networks
from aam.network.model.attention import Backend, Backends
from aam.network.model.community_profile import log_abundance
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.encoders import NucleotideEncoder
from aam.network.model.network import Predictor
from aam.network.numerics.device import print_device
from aam.serialization.model_folder import State

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
    network, target, device = model.network, model.target, model.device
    assert isinstance(network, Predictor)
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


_BATCH_SIZE = 16  # samples of a batch of integrated gradients


def _study(samples: Samples) -> Study:
    """Return the counts and sequences of samples; ASVs are named by their number."""
    asvs = tuple(map(str, range(len(samples.tokens_FL))))
    table = FeatureTable(tuple(samples.sample_ids), asvs, samples.counts)
    return Study(table, samples.tokens_FL)


@dataclass(frozen=True)
class _Encoded:
    """ASVs that are already encoded: for each network, vectors [F, D] and profile terms [F, H]."""

    relations: AsvRelations
    by_network: tuple[tuple[Tensor, Tensor | None], ...]


@dataclass(frozen=True)
class TransformerModel(FittedModel[Samples]):
    """Fitted transformer: the networks of the folds, or a pretrained encoder."""

    networks: tuple[LoadedNetwork, ...]  # one for each fold
    # encoded ASVs of samples whose reads have been drawn; else None
    encoded: _Encoded | None = None

    @property
    def encoder(self) -> CovariateEncoder | None:
        return self.networks[0].config.covariates

    @property
    def max_bp(self) -> int:
        """Longest sequence that the networks can read, in nucleotides."""
        return self.networks[0].config.shape.max_bp

    @property
    def facts(self) -> Mapping[str, Any]:
        """Attention backends, for the run record."""
        return {"attention": self.networks[0].attention}

    def state(self) -> State:
        return network_state([network.stored for network in self.networks])

    def predict(self, inputs: Samples) -> F64:
        return self.apply(inputs, TargetScale(), InferenceSettings()).values_NC

    def apply(
        self, inputs: Samples, scale: TargetScale, settings: InferenceSettings
    ) -> MemberPrediction:
        """Return the mean prediction of networks and rarefactions; of a number also its spread."""
        study, covariates = _study(inputs), inputs.covariates
        rows, values = np.arange(len(study.reads)), []
        encoded: Iterable[tuple[Tensor, Tensor | None]]
        if self.encoded is None:
            print_device(self.networks[0].device)
            self.networks[0].warn_of_shallow(study)
            vectors = self._encode(study, settings)
            encoded, title = ((vectors_FD, None) for vectors_FD in vectors), "Reading samples"
        else:
            asvs = torch.from_numpy(self.encoded.relations.known(study.tokens_FL)[1])
            encoded = (
                (vectors_FD[asvs], None if terms_FW is None else terms_FW[asvs])
                for vectors_FD, terms_FW in self.encoded.by_network
            )
            title = ""  # the permutation test shows its own progress
        for network, (vectors_FD, terms_FW) in zip(self.networks, encoded, strict=True):
            plan = network.config.plan.for_inference
            if self.encoded is not None:
                # `prepared` has drawn the reads. A permutation may give a sample more reads than
                # the depth; they must not be drawn again.
                plan = dataclasses.replace(plan, rarefy_depth=0)
            for k in range(settings.passes):
                _, outputs_NC = apply_network(
                    network.network,
                    study,
                    plan,
                    rows,
                    settings.batch_size,
                    network.device,
                    vectors_FD,
                    reads_pass=k,
                    covariates=network.config.inputs(covariates),
                    terms_FW=terms_FW,
                    title=title,
                )
                assert outputs_NC is not None
                values.append(network.target.decode(outputs_NC))
        if self.encoded is None and len(self.networks) > 1:
            info(f"Predictions are the mean of {len(self.networks)} networks, one for each fold.")
        target, mean_NC = self.networks[0].target, np.mean(values, axis=0)
        if target.classes:
            return MemberPrediction(mean_NC)
        columns = target.quantile_columns(mean_NC)
        if len(values) > 1:
            columns["spread"] = np.stack(values)[:, :, target.middle].std(axis=0)
        return MemberPrediction(target.point_predictions(mean_NC)[:, None], columns)

    def importance(
        self,
        inputs: Samples,
        tokens_UL: Tokens,
        relations: AsvRelations,
        outputs: Outputs,
    ) -> Importance:
        # Integrated gradients, averaged over the networks.
        networks = []
        for network in self.networks:
            contributions = integrated_gradients(
                network, _study(inputs), _BATCH_SIZE, covariates=inputs.covariates
            )
            # Regression of an ASV's contributions on its feature: the slope times the standard
            # deviation of the feature. This is exact for a linear model of the features.
            features = inputs.log_abundances
            mean_U, spread_U = moments(features)
            effects = []
            for values_NU in contributions.values:
                product_U = values_NU.multiply(features).mean(axis=0)
                covariance_U = product_U - values_NU.mean(axis=0) * mean_U
                zero_U = np.zeros_like(mean_U)
                effects.append(np.divide(covariance_U, spread_U, where=spread_U > 0, out=zero_U))
            effects_UC = np.stack(effects, axis=1)
            networks.append(of_effects("transformer_effect", effects_UC, outputs.classes))
        columns = {
            name: np.mean([effects.columns[name] for effects in networks], axis=0)
            for name in networks[0].columns
        }
        size_U = np.abs(list(columns.values())).max(axis=0)
        return Importance(columns, size_U, tuple(effects.size_U for effects in networks))

    def explain(
        self,
        inputs: Samples,
        explained: ExplainedSamples,
        relations: AsvRelations,
        outputs: Outputs,
    ) -> SampleEffects:
        """Divide predictions among ASVs by integrated gradients from the mean training ASV."""
        # ASVs have the same order as in the prediction: it decides which reads a rarefaction draws.
        samples, number = explained.samples, len(explained.columns_U)
        study = _study(samples)
        entries = np.ones(number), (np.arange(number), explained.columns_U)
        column_UV = sparse.csr_array(entries, shape=(number, len(explained.joint.tokens_FL)))
        effects_NV = np.zeros((len(explained.class_N), column_UV.shape[1]))
        for network in self.networks:
            gradients = integrated_gradients(
                network, study, _BATCH_SIZE, covariates=samples.covariates,
                reference_FL=relations.tokens_FL,
            )  # fmt: skip
            target, scores_NC = network.target, gradients.scores_NC
            if (transform := target.transform) is not None:
                slopes_NC = explained.slopes(outputs, scores_NC + transform.shift)
            elif len(target.classes) == 2:  # one score, the log odds of the second class
                logits_NC = np.hstack([0 * scores_NC, scores_NC])
                slopes_NC = explained.slopes(outputs, logits_NC)[:, 1:]
            else:
                slopes_NC = explained.slopes(outputs, scores_NC)
            for values_NU, slope_N in zip(gradients.values, slopes_NC.T, strict=True):
                effects_NV += slope_N[:, None] * (values_NU @ column_UV).toarray()
        return SampleEffects(effects_NV / len(self.networks), {})

    def of_fold(self, fold: int) -> TransformerModel:
        return TransformerModel((self.networks[fold],))

    def prepared(self, samples: Samples) -> tuple[TransformerModel, Samples]:
        # Reads are drawn before a permutation moves some of them: if they were drawn afterwards,
        # the reads of all other ASVs would change too.
        study, plan = _study(samples), self.networks[0].config.plan
        rarefied, _ = draw_asvs(study, plan, np.arange(len(samples.sample_ids)))
        encoded = zip(self.networks, self._encode(study, InferenceSettings()), strict=True)
        by_network = tuple(
            (vectors_FD, profile_terms(loaded.network, study.tokens_FL, loaded.device))
            for loaded, vectors_FD in encoded
        )
        model = TransformerModel(self.networks, _Encoded(AsvRelations(study.tokens_FL), by_network))
        return model, dataclasses.replace(samples, counts=rarefied.astype(np.int32))

    def _encode(self, study: Study, settings: InferenceSettings) -> Iterator[Tensor]:
        """Yield the vectors [F, D] of all ASVs by each network; equal encoders encode them once."""
        last, vectors_FD, vectors = None, torch.empty(0), settings.vectors
        for loaded in self.networks:
            encoder = loaded.network.encoder
            if (digest := encoder.nucleotides.digest) != last:
                last, vectors_FD = digest, encode_asvs(encoder, study, loaded.device, vectors)
            yield vectors_FD

    def attention(self, sample: Samples) -> Sequence[SampleAttention]:
        study = _study(sample)
        return [
            sample_attention(network.stored, study, network.device, sample.covariates)
            for network in self.networks
        ]

    def embed(self, study: Study, settings: InferenceSettings) -> npt.NDArray[np.float32]:
        """Return the embedding by the first network: embeddings of networks share no axes."""
        self.networks[0].warn_of_shallow(study)
        return self.networks[0].embed(study, settings)

    def asv_encoders(self) -> Sequence[NucleotideEncoder]:
        return [network.stored.build().eval().encoder.nucleotides for network in self.networks]


class TransformerReader(Reader[Samples]):
    """Reader of the transformer: reads samples for fitted networks, and restores networks."""

    def read(self, samples: Samples, relations: AsvRelations) -> Samples:
        return samples

    def restore(
        self, state: State, asvs: int, outputs: int, device: DeviceOptions
    ) -> TransformerModel:
        networks = restore_networks(state)
        for network in networks:
            target = network.config.target
            if (len(target.classes) or 1 if target else 0) != outputs:
                raise Mismatch("the transformer predicts other classes")
        return TransformerModel(tuple(build_networks(networks, device)))


MEMBER = TransformerReader()
