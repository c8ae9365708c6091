"""Transformer: the network as a member of the ensemble.

All ranks of a run train one network for each fold, and a stopped run resumes each of them.
Predictions of new samples are the mean of the networks of all folds. U ASVs of samples; for other
shape suffixes see `samples`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from aam.arrays import F64, Tokens
from aam.console import info
from aam.contract.errors import Interrupted
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import AsvVectorOptions, DeviceOptions
from aam.contract.records import Mismatch
from aam.data.covariates import CovariateEncoder
from aam.data.study import Study
from aam.data.table import FeatureTable, rarefy
from aam.data.targets import TargetScale
from aam.evaluation.folds import Folds
from aam.members.member import (
    CrossValidated,
    ExplainedSamples,
    FittedModel,
    Importance,
    MemberPrediction,
    Outputs,
    Reader,
    SampleAttention,
    SampleEffects,
    TrainingSamples,
    moments,
    of_effects,
)
from aam.members.output_tables import NO_VECTORS, InferenceSettings
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.network.batches import FIXED_DRAW
from aam.network.inference.attributions import integrated_gradients, sample_attention
from aam.network.inference.outputs import (
    LoadedNetwork,
    apply_network,
    build_networks,
    encode_asvs,
    profile_terms,
)
from aam.network.inference.stored_networks import (
    StoredNetwork,
    Target,
    network_state,
    restore_networks,
)
from aam.network.model.encoders import NucleotideEncoder
from aam.network.numerics.device import print_device
from aam.network.training.runs import encode_frozen, train_fold
from aam.network.training.runtime import Runtime
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.run_folder import RecordFact
from aam.serialization.model_folder import State

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
            vectors = encode_for_networks(self.networks, study, settings.vectors)
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
                values.append(_target(network).decode(outputs_NC))
        if self.encoded is None and len(self.networks) > 1:
            info(f"Predictions are the mean of {len(self.networks)} networks, one for each fold.")
        target, mean_NC = _target(self.networks[0]), np.mean(values, axis=0)
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
            target, scores_NC = _target(network), gradients.scores_NC
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
        plan, counts = self.networks[0].config.plan, samples.counts.copy()
        ends = zip(counts.indptr[:-1], counts.indptr[1:], samples.sample_ids, strict=True)
        rarefied = [
            rarefy(counts.data[lo:hi], plan.rarefy_depth, name, plan.seed, FIXED_DRAW)
            for lo, hi, name in ends
        ]
        counts.data = np.concatenate(rarefied).astype(np.int32)
        counts.eliminate_zeros()
        study = _study(samples)
        encoded = zip(self.networks, encode_for_networks(self.networks, study), strict=True)
        by_network = tuple(
            (vectors_FD, profile_terms(loaded.network, study.tokens_FL, loaded.device))
            for loaded, vectors_FD in encoded
        )
        model = TransformerModel(self.networks, _Encoded(AsvRelations(study.tokens_FL), by_network))
        return model, dataclasses.replace(samples, counts=counts)

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


def _target(network: LoadedNetwork) -> Target:
    """Return the target of a network, with the transform of its fold."""
    assert network.config.target is not None  # a pretrained encoder is not applied
    return network.config.target


def _points(target: Target, decoded_NC: F64) -> F64:
    """Return class probabilities, or numbers and ranks as one column."""
    points_NC = decoded_NC if target.classes else target.point_predictions(decoded_NC)[:, None]
    return np.asarray(points_NC, dtype=np.float64)


@dataclass(frozen=True)
class Transformer:
    """Network of a study, see `member.Member`."""

    options: Train  # options of the run; the checkpoints are in its folder
    study: LabelledStudy  # the samples with their phylogeny and metadata
    base: StoredNetwork | None  # pretrained encoder; None without one
    runtime: Runtime  # device, precision and ranks
    record_fact: RecordFact  # adds facts to the run record

    def cross_validate(
        self, samples: TrainingSamples, folds: Folds, final: bool = True
    ) -> CrossValidated | None:
        """Train the network of each split and predict its held-out samples, see `member.Member`."""
        began = time.process_time()
        base, splits, runtime = self.base, self.study.splits, self.runtime
        vectors_FD = None
        if base is not None and self.options.freeze_base:
            vectors_FD = encode_frozen(self.options, base, self.study, runtime)
        results = []
        with runtime.stop.handled():
            for fold, split in enumerate(splits, start=1):
                trained = train_fold(
                    self.options, self.study, base, split, fold, self.record_fact, runtime,
                    vectors_FD,
                )  # fmt: skip
                if trained is not None:
                    results.append(trained)
                # All ranks leave together: a rank that went on would wait in a collective for the
                # others.
                if runtime.communicator.any_rank(runtime.stop.pending):
                    raise Interrupted(
                        f"Stopped after fold {fold} of {len(splits)}{runtime.stop.by_signal}",
                        f"the checkpoints in '{self.options.run.output_dir}' are complete",
                        "continue with --resume-from auto",
                    )
        if not results:  # on ranks other than the first
            return None
        target = _target(results[0].network)
        predictions_NC = np.concatenate(
            [
                result.predictions[split.held_out[0]]
                for result, split in zip(results, splits, strict=True)
            ]
        )
        points_NC = _points(target, predictions_NC)
        # No second network is trained to leave samples out: those of a fold are its validation
        # samples, and those of the model for new samples the held-out ones.
        left_out: list[F64 | None] = []
        for rows, result, split in zip(folds.fitted_rows, results, folds.splits, strict=False):
            left_out_NC = np.full_like(folds.labels.outputs_NC, np.nan, dtype=np.float64)
            if (validation_NC := result.predictions.get("validation")) is not None:
                left_out_NC[split.validation] = _points(target, validation_NC)
            left_out.append(left_out_NC[rows])
        # Networks of different folds: moved to the mean label of all, see `Estimator.left_out`.
        columns = points_NC.shape[1]
        move_MC = folds.held_out.outputs_NC.mean(axis=0) - folds.baseline_MC[:, :columns]
        left_out_NC = np.full_like(folds.labels.outputs_NC, np.nan, dtype=np.float64)
        left_out_NC[folds.rows_M] = points_NC + move_MC
        left_out.append(left_out_NC[folds.fitted_rows[-1]])
        facts = {"folds": [result.facts for result in results], **results[0].facts}
        return CrossValidated(
            folds.with_levels(points_NC, left_out),
            time.process_time() - began,
            model=TransformerModel(tuple(result.network for result in results)),
            columns=target.quantile_columns(predictions_NC),
            facts=facts,
            left_out=tuple(left_out),
        )


def encode_for_networks(
    networks: Sequence[LoadedNetwork], study: Study, vectors: AsvVectorOptions = NO_VECTORS
) -> Iterator[Tensor]:
    """Yield the vectors [F, D] of all ASVs by each network; equal encoders encode them once."""
    last, vectors_FD = None, torch.empty(0)
    for loaded in networks:
        encoder = loaded.network.encoder
        if (digest := encoder.nucleotides.digest) != last:
            last, vectors_FD = digest, encode_asvs(encoder, study, loaded.device, vectors)
        yield vectors_FD
