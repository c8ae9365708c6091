"""Encoding of the distinct ASVs of a batch, whole or in chunks that the backward pass recomputes.

In chunks, the hidden states of all ASVs never exist at once: memory depends on the size of a chunk.
Shape suffixes: see `aam.data.batches`; K ASVs of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aam.data.batch_shards import BatchShard
from aam.data.batches import Batch
from aam.distributed.collectives import world_size
from aam.distributed.environment import shard_sizes
from aam.model.nucleotides import NucleotideEncoder
from aam.training.losses import LossTerm, nucleotide_loss

Encoded = tuple[Tensor, dict[str, LossTerm]]
"""Vectors of ASVs, and the sums of the losses of their masked nucleotides."""


def number_of_chunks(batch: Batch, chunk: int) -> int:
    """Return the number of chunks of at most `chunk` ASVs; 1 where `chunk` is 0.

    Args:
        batch: batch, or the shard of one rank, for which the number is the same on every rank.
        chunk: largest number of ASVs of a chunk, at least 0.
    """
    asvs = len(batch.tokens_UL)
    if isinstance(batch, BatchShard):
        # FSDP gathers parameters in each chunk, a collective: every rank needs the same number.
        asvs = max(shard_sizes(len(batch.asvs_U), world_size()))
    return max(1, -(-asvs // chunk)) if chunk else 1


def encode_asvs(
    net: NucleotideEncoder, tokens_UL: Tensor, labels_UL: Tensor | None, ragged: bool, chunks: int
) -> Encoded:
    """Return the vectors [U, D] and the terms of the nucleotide loss, none without labels.

    Args:
        net: nucleotide encoder.
        tokens_UL: sequences, with masks where there are labels.
        labels_UL: tokens that the mask replaced, 0 where nothing is masked; None without the loss.
        ragged: whether a sequence has fewer patches than others.
        chunks: number of chunks of nearly equal size; 1 stores the activations of all ASVs.
    """

    def encode(tokens_KL: Tensor, labels_KL: Tensor | None) -> Encoded:
        # The loss is a part of the chunk, so that the hidden states of its patches are not kept.
        asvs_KD, hidden_KTD = net(tokens_KL, ragged)
        if labels_KL is None:
            return asvs_KD, {}
        entropy, right = nucleotide_loss(net.logits(hidden_KTD, tokens_KL.shape[1]), labels_KL)
        return asvs_KD, {"nucleotide": entropy, "nucleotide_accuracy": right}

    if chunks == 1:
        return encode(tokens_UL, labels_UL)
    tokens = tokens_UL.tensor_split(chunks)
    labels = [None] * chunks if labels_UL is None else labels_UL.tensor_split(chunks)
    encoded: list[Encoded] = [
        checkpoint(encode, tokens_KL, labels_KL, use_reentrant=False)
        for tokens_KL, labels_KL in zip(tokens, labels, strict=True)
    ]
    terms = [terms for _, terms in encoded]
    sums = {
        name: LossTerm(
            torch.stack([term[name].total for term in terms]).sum(),
            torch.stack([term[name].number for term in terms]).sum(),
        )
        for name in terms[0]
    }
    return torch.cat([asvs_KD for asvs_KD, _ in encoded]), sums
