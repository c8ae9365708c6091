"""Training module: a network with its losses and metrics, in training and in validation.

One module serves pretraining and training: loss terms for which a batch or a network has no data
are omitted. Validation adds sums over the split, never means of means.

With several ranks, each rank computes a `BatchShard`. It encodes some of the ASVs, and the vectors
of all ASVs are gathered; it reads some of the samples, and the embeddings of all samples are
gathered. A loss term is the sum over all ranks divided by the count over all ranks, so the gradient
is the gradient of the whole batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from aam.contract.options.groups import LoopOptions, MaskOptions
from aam.environment import shard_sizes
from aam.evaluation.metrics import ScoredPredictions
from aam.network.batches import Batch, BatchShard
from aam.network.distributed.collectives import DTensor, all_gather_rows, all_reduce_sum, world_size
from aam.network.inference.stored_networks import DiversityScale, Target
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.network import Encoder, Predictor
from aam.network.numerics.device import Precision
from aam.network.training.losses import (
    LossTerm,
    count_loss,
    distance_loss,
    diversity_loss,
    nucleotide_loss,
    target_loss,
)
from aam.nucleotide_codes import PAD

try:
    from torch.nn.utils import clip_grads_with_norm_ as clip_grads_with_norm_
    from torch.nn.utils import get_total_norm as get_total_norm
except ImportError:  # PyTorch 2.4 and 2.5

    def get_total_norm(tensors: list[Tensor]) -> Tensor:  # type: ignore[misc]
        """Return the norm of all tensors together."""
        return torch.stack(torch._foreach_norm(tensors)).norm()

    def clip_grads_with_norm_(  # type: ignore[misc]
        parameters: Sequence[Parameter], max_norm: float, total_norm: Tensor
    ) -> None:
        """Scale gradients with this total norm down to `max_norm`."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, (max_norm / (total_norm + 1e-6)).clamp(max=1))


_DROPOUT = 5  # second element of the seed of dropout; `batches` uses others

Encoded = tuple[Tensor, dict[str, LossTerm]]
"""Vectors of ASVs, and the loss terms of their masked nucleotides."""


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms; a term with weight 0 is omitted."""

    unifrac: float = 1.0
    nucleotide: float = 1.0
    target: float = 1.0
    count: float = 0.0

    @classmethod
    def of(cls, task: MaskOptions, target: float = 1.0) -> LossWeights:
        """Return the loss weights of the options."""
        return cls(task.penalty, task.nuc_penalty, target, task.count_penalty)


class TrainingModule(nn.Module):
    """Training module: a network and its losses; a call is the forward pass of a training step."""

    encoded_N: Tensor | None
    weights_N: Tensor | None

    def __init__(
        self,
        network: Encoder | Predictor,
        weights: LossWeights,
        loop: LoopOptions,
        steps: int,  # optimizer steps of the whole run
        target: Target | None = None,
        target_values: npt.NDArray[np.float64] | None = None,  # label of each row of the study
        asv_vectors_FD: Tensor | None = None,  # of every ASV of the study, by a frozen encoder
        standard: DiversityScale | None = None,
        asv_chunk: int = 0,  # ASVs to encode at once, and to recompute in the backward pass; 0: all
        covariates: CovariateInputs | None = None,
        sample_weights: npt.NDArray[np.float64]
        | None = None,  # of each row, in the loss of classes
    ) -> None:
        super().__init__()
        self.network = network
        self.weights, self.loop, self.steps = weights, loop, steps
        self.target, self.target_values = target, target_values
        self.standard, self.asv_chunk = standard or DiversityScale(), asv_chunk
        # On the device, so that a step does not wait for the rows of its batch; not in checkpoints.
        encoded_N = None
        if target is not None and target_values is not None:
            encoded_N = target.encode(target_values)
        self.register_buffer("encoded_N", encoded_N, persistent=False)
        weights_N = None if sample_weights is None else torch.tensor(sample_weights).float()
        self.register_buffer("weights_N", weights_N, persistent=False)
        # Not buffers, since checkpoints do not contain them.
        self.asv_vectors_FD, self.covariates = asv_vectors_FD, covariates
        self.train_sums: dict[str, LossTerm] = {}
        """Sums of training metrics over the current epoch; the training loop resets them."""
        self._sums: dict[str, LossTerm] = {}
        self._scored_F = torch.zeros(0, dtype=torch.bool)
        self._predictions: list[npt.NDArray[np.float64]] = []
        self._rows: list[npt.NDArray[np.int64]] = []
        self.train()

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.parameters()).device

    @property
    def encoder(self) -> Encoder:
        """The encoder: the network itself or a part of the predictor."""
        return self.network.encoder

    @property
    def frozen(self) -> bool:
        """Whether the encoder is frozen."""
        return self.asv_vectors_FD is not None

    def train(self, mode: bool = True) -> TrainingModule:
        """Set training mode; a frozen encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients together, sharded or not: the same on all ranks."""
        # `torch.nn.utils.clip_grad_norm_` adds its epsilon to the norm of each rank's shard, before
        # the norms are added: weights would depend on the world size.
        return full_tensor(
            get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        )

    def clip_gradients(self, norm: Tensor) -> None:
        """Scale all gradients, whose norm is `norm`, down to --max-grad-norm, unless it is 0."""
        if self.loop.max_grad_norm:
            clip_grads_with_norm_(list(self.parameters()), self.loop.max_grad_norm, norm)

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch (this rank's share times the ranks); add to `train_sums`."""
        local_terms, _ = self._forward(batch, batch.tokens_UL, masked=True)
        global_terms = over_ranks(local_terms)
        # Multiplied by the number of ranks, because DDP and FSDP divide the sum of gradients by it.
        ranks = world_size()
        means = {
            name: LossTerm(ranks * term.total, global_terms[name].number).mean
            for name, term in local_terms.items()
        }
        loss = self._total(means)
        metrics = means | {"loss": loss}
        if ranks > 1:
            metrics = {name: term.mean for name, term in global_terms.items()}
            metrics["loss"] = self._total(metrics)
        number = batch.samples if isinstance(batch, BatchShard) else len(batch.rows_B)
        samples = torch.full((), number)
        for name, value in metrics.items():
            _add(self.train_sums, name, LossTerm(value.detach() * samples, samples))
        return loss

    @torch.no_grad()
    def validation_step(self, batch: Batch) -> None:
        """Add a validation batch to the sums of the split.

        The target is scored as by `aam predict`, on unmasked sequences and all abundances. Masked
        nucleotides are scored once for each ASV of the split, independently of the batches.
        """
        if self.target is None:
            terms, _ = self._forward(self._unscored(batch), batch.tokens_UL, masked=True)
        else:
            terms, outputs_BC = self._forward(batch, batch.unmasked(), masked=False)
            assert outputs_BC is not None and self.target_values is not None
            # A second pass for the nucleotides, with masked sequences.
            if batch.labels_UL is not None and not self.frozen:
                unscored = self._unscored(batch)
                assert unscored.labels_UL is not None
                # Only ASVs with a masked nucleotide, since the vectors of others are not used.
                rows_U = (unscored.labels_UL != PAD).any(dim=1)
                tokens_KL, labels_KL = unscored.tokens_UL[rows_U], unscored.labels_UL[rows_U]
                terms |= self._encode(unscored, tokens_KL, labels_KL)[1]
            # Stored until the end of the split: R2 and F1 are not means over batches.
            self._predictions.append(self.target.decode(outputs_BC))
            self._rows.append(batch.rows_B.cpu().numpy())
        for name, term in terms.items():
            _add(self._sums, name, term)

    def train_metrics(self) -> dict[str, float]:
        """Return the means of the training metrics over the current epoch."""
        return {f"train_{name}": float(term.mean.float()) for name, term in self.train_sums.items()}

    @torch.no_grad()
    def validation_metrics(self) -> dict[str, float]:
        """Return means over the validation split and metrics of the target; reset the sums."""
        terms = over_ranks(self._sums)
        means = {name: term.mean for name, term in terms.items()}
        metrics = {f"val_{name}": mean.float() for name, mean in means.items()}
        loss = self._total(means).float()
        if self.target is not None and self._predictions:
            assert self.target_values is not None
            rows = np.concatenate(self._rows)
            local_rows = np.column_stack(
                [rows.astype(np.float64), np.concatenate(self._predictions)]
            )
            gathered = all_gather_arrays(local_rows, self.device)
            # In the order of the study, so that sums are the same on any number of ranks.
            gathered = gathered[np.argsort(gathered[:, 0], kind="stable")]
            labels = self.target_values[gathered[:, 0].astype(np.int64)]
            if np.isfinite(gathered).all():
                scores = target_metrics(self.target, gathered[:, 1:], labels)
                metrics |= {f"val_{name}": torch.tensor(value) for name, value in scores.items()}
            else:  # scores are undefined; the training loop ends the run
                loss = torch.full_like(loss, torch.nan)
        self._sums, self._predictions, self._rows = {}, [], []
        self._scored_F = self._scored_F[:0]
        return {name: float(value) for name, value in (metrics | {"val_loss": loss}).items()}

    def _forward(
        self, batch: Batch, tokens_UL: Tensor, masked: bool
    ) -> tuple[dict[str, LossTerm], Tensor | None]:
        """Return the loss terms, and the outputs [B, C] if there is a target."""
        hidden_BS = batch.hidden_BS if masked else None
        terms: dict[str, LossTerm] = {}
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            if self.asv_vectors_FD is not None:
                # A frozen encoder has encoded them once for the whole run.
                asvs_UD = self.asv_vectors_FD[batch.asvs_U]
            else:
                asvs_UD, terms = self._encode(batch, tokens_UL, batch.labels_UL if masked else None)
                if isinstance(batch, BatchShard):
                    asvs_UD = all_gather_rows(asvs_UD, shard_sizes(len(batch.asvs_U), world_size()))
            embedding_BD, members_BSD = self.encoder.samples(
                asvs_UD, batch.slots_BS, batch.counts_BS, batch.attend_BS, hidden_BS
            )
            if batch.diversity_B is not None:
                diversity_B = (batch.diversity_B - self.standard.mean) / self.standard.spread
                predicted_B = self.encoder.diversity(embedding_BD).squeeze(-1)
                terms["unifrac"] = diversity_loss(predicted_B, diversity_B)
            elif batch.distances_BB is not None:
                whole_AD, first = embedding_BD, 0
                if isinstance(batch, BatchShard):
                    sizes = shard_sizes(batch.samples, world_size())
                    whole_AD, first = all_gather_rows(embedding_BD, sizes), batch.first_sample
                terms["unifrac"] = distance_loss(
                    self.encoder.distance, embedding_BD, batch.distances_BB, whole_AD, first
                )
            if hidden_BS is not None:
                head = self.encoder.samples.counts
                assert head is not None
                terms["count"] = count_loss(head(members_BSD), batch.counts_BS, hidden_BS)
        if self.target is None:
            return terms, None
        assert isinstance(self.network, Predictor) and self.encoded_N is not None
        sequences_VL, slots_BS = (
            (batch.sequences_VL, batch.sequence_slots_BS)
            if isinstance(batch, BatchShard)
            else (batch.unmasked(), batch.slots_BS)
        )
        outputs_XBC = self.network.target(
            embedding_BD,
            members_BSD,
            batch.attend_BS,
            sequences_VL,
            slots_BS,
            batch.counts_BS,
            self.covariates.take(batch.rows_B) if self.covariates is not None else None,
        )
        labels_B = self.encoded_N[batch.rows_B]
        weights_B = None if self.weights_N is None else self.weights_N[batch.rows_B]
        losses = [
            target_loss(self.target, outputs_BC, labels_B, weights_B) for outputs_BC in outputs_XBC
        ]
        total = torch.stack([loss.total for loss in losses]).mean()
        return terms | {"target": LossTerm(total, losses[0].number)}, outputs_XBC.mean(dim=0)

    def _encode(self, batch: Batch, tokens_UL: Tensor, labels_UL: Tensor | None) -> Encoded:
        """Encode the ASVs of a batch, in chunks (--asv-chunk); without labels no loss terms."""
        net = self.encoder.nucleotides
        ragged, asvs = batch.ragged(net.patch), len(batch.tokens_UL)

        def encode(tokens_KL: Tensor, labels_KL: Tensor | None) -> Encoded:
            # The loss is computed in the chunk, so that its hidden states need not be stored.
            asvs_KD, hidden_KTD = net(tokens_KL, ragged)
            if labels_KL is None:
                return asvs_KD, {}
            entropy, right = nucleotide_loss(net.logits(hidden_KTD, tokens_KL.shape[1]), labels_KL)
            return asvs_KD, {"nucleotide": entropy, "nucleotide_accuracy": right}

        if isinstance(batch, BatchShard):
            # With FSDP each chunk is a collective, so all ranks need the same number of chunks.
            asvs = max(shard_sizes(len(batch.asvs_U), world_size()))
        chunks = max(1, -(-asvs // self.asv_chunk)) if self.asv_chunk else 1
        if chunks == 1:
            return encode(tokens_UL, labels_UL)
        tokens = tokens_UL.tensor_split(chunks)
        labels = [None] * chunks if labels_UL is None else labels_UL.tensor_split(chunks)
        encoded: list[Encoded] = [
            checkpoint(encode, tokens_KL, labels_KL, use_reentrant=False)
            for tokens_KL, labels_KL in zip(tokens, labels, strict=True)
        ]
        sums = {
            name: LossTerm(
                torch.stack([terms[name].total for _, terms in encoded]).sum(),
                torch.stack([terms[name].number for _, terms in encoded]).sum(),
            )
            for name in encoded[0][1]
        }
        return torch.cat([asvs_KD for asvs_KD, _ in encoded]), sums

    def _unscored(self, batch: Batch) -> Batch:
        """Return the batch without the masked nucleotides of ASVs scored in an earlier batch."""
        if batch.labels_UL is None:
            return batch
        asvs = int(batch.asvs_U.max()) + 1 - len(self._scored_F) if len(batch.asvs_U) else 0
        if asvs > 0:  # the size is doubled, so that the time is linear in the number of batches
            added_F = self._scored_F.new_zeros(asvs + len(self._scored_F))
            self._scored_F = torch.cat([self._scored_F, added_F]).to(batch.asvs_U.device)
        unscored_U = ~self._scored_F[batch.asvs_U]
        self._scored_F[batch.asvs_U] = True
        if isinstance(batch, BatchShard):
            unscored_U = unscored_U[batch.first_asv :][: len(batch.tokens_UL)]
        return dataclasses.replace(batch, labels_UL=batch.labels_UL * unscored_U[:, None])

    def _total(self, means: dict[str, Tensor]) -> Tensor:
        weighted = [
            weight * means[name]
            for name, weight in vars(self.weights).items()
            if weight and name in means
        ]
        return torch.stack(weighted).sum() if weighted else torch.zeros(())


class GradientStep:
    """Gradients of an optimizer step, added batch by batch, with mixed precision."""

    def __init__(
        self,
        task: TrainingModule,
        model: nn.Module,
        precision: Precision = "none",
        scaler: GradScaler | None = None,  # of the loss in fp16 (Micikevicius et al. 2018)
    ) -> None:
        self.task, self.model, self.precision = task, model, precision
        self.scaler = scaler or GradScaler(task.device.type, enabled=precision == "fp16")

    def autocast(self) -> torch.autocast:
        """Return the context of mixed precision."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        enabled, device = self.precision != "none", self.task.device.type
        # A cached weight of half precision would add up its gradients in half precision.
        return torch.autocast(device, dtype, enabled, cache_enabled=False)

    def seed_dropout(self, epoch: int, batch: int, rank: int) -> None:
        """Seed the random generators of PyTorch for dropout in a batch."""
        # The seed follows from the batch, so that a resumed run repeats the same dropout without
        # stored states of generators. Each rank has different samples and a different seed.
        entropy = [self.task.loop.seed, _DROPOUT, epoch, batch, rank]
        seed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed) >> 1)

    def add_gradients(self, batch: Batch, last: bool, batches: int) -> Tensor:
        """Add the scaled gradients of a batch of the step, and return its loss."""
        # DDP reduces gradients over the ranks with the last batch only, FSDP with every batch.
        local = not last and isinstance(self.model, DistributedDataParallel)
        with self.model.no_sync() if local else nullcontext():  # type: ignore[operator]
            with self.autocast():
                loss: Tensor = self.model(batch)
            torch.autograd.backward(self.scaler.scale(loss / batches))
        return loss.detach()


def _add(sums: dict[str, LossTerm], name: str, term: LossTerm) -> None:
    """Add a term to the sum of its name, in double precision."""
    total, number = term.total.detach().double(), term.number.double()
    if (previous := sums.get(name)) is not None:
        total, number = previous.total + total, previous.number + number
    sums[name] = LossTerm(total, number)


def over_ranks(terms: dict[str, LossTerm]) -> dict[str, LossTerm]:
    """All-reduce the loss terms over the ranks; the result has no gradient."""
    if not terms or world_size() == 1:
        return {name: LossTerm(term.total.detach(), term.number) for name, term in terms.items()}
    # One collective for all terms, since each call costs a round trip; float64 keeps counts exact.
    values = [value.double() for term in terms.values() for value in (term.total, term.number)]
    sums = all_reduce_sum(torch.stack([value.detach() for value in values]))
    return {name: LossTerm(sums[2 * i], sums[2 * i + 1]) for i, name in enumerate(terms)}


LOGGED_METRICS = {"r2": "r2", "mae": "mae", "accuracy": "accuracy", "f1": "macro_f1"}
"""Metric of --best-metric, logged in each epoch for validation samples -> name in `METRICS`."""


def target_metrics(
    target: Target, predictions_BC: npt.NDArray[np.float64], labels_B: npt.NDArray[np.float64]
) -> dict[str, float]:
    """Return the metrics of the target that are logged while training, in the target's units."""
    predicted_B = target.point_predictions(predictions_BC)
    scored = ScoredPredictions(labels_B, predicted_B)
    if target.classes:
        codes = labels_B.astype(np.int64), predicted_B.astype(np.int64)
        scored = ScoredPredictions(*codes, (), target.classes, predictions_BC)
    scores = scored.metrics()
    names = {name: key for name, key in LOGGED_METRICS.items() if key in scores}
    return {name: math.nan if (v := scores[key]) is None else v for name, key in names.items()}


def all_gather_arrays(
    local: npt.NDArray[np.float64], device: torch.device
) -> npt.NDArray[np.float64]:
    """All-gather arrays along the first axis; its length may differ between ranks."""
    if world_size() == 1:
        return local
    rows = torch.as_tensor(local, dtype=torch.float64, device=device)
    number = torch.zeros(world_size(), dtype=torch.int64, device=device)
    number[dist.get_rank()] = len(rows)
    sizes = all_reduce_sum(number).tolist()
    joined: npt.NDArray[np.float64] = all_gather_rows(rows, sizes).cpu().numpy()
    return joined


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole tensor; if it is sharded this is a collective that all ranks must call."""
    return value.full_tensor() if isinstance(value, DTensor) else value
