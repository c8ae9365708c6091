"""Training summary: data in a checkpoint about its training samples, to compare new samples with.

It holds no names and no reads: ids and sequences are hashes of 8 bytes, and of at most
`MOST_SAMPLES` training samples there is the embedding. Shapes: N samples, F ASVs, R reference
samples, D width of the embedding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.contract import schema
from aam.contract.options.field import ONE_OR_MORE, ZERO_OR_MORE
from aam.contract.schema import Mismatch
from aam.data.batches import BatchPlan
from aam.data.rarefaction import rarefy
from aam.data.sequences import PAD
from aam.data.splits import Split
from aam.data.study import Study

MOST_SAMPLES = 1000
"""Training samples whose embeddings and richness are kept."""

NEIGHBOURS = 5
QUANTILE = 0.95
PREFIX = 64
"""Nucleotides by which ASVs of different lengths are compared."""

_BLOCK = 512


@dataclass(frozen=True, eq=False)
class TrainingSummary:
    """Data about the training samples of a model.

    Attributes:
        train_N, validation_N: int64, hashes of the sample ids.
        asvs_F: int64, hashes of the sequences of the ASVs in training samples.
        prefixes_F: int64, hashes of the first `PREFIX` nucleotides of the same.
        frequencies_L4: float32, frequency of A, C, G and T at each of the first positions.
        length: median number of nucleotides of an ASV.
        richness_R: int64, ASVs of each reference sample at the rarefaction depth.
        embeddings_RD: float32, of the reference samples; of width 0 for an ensemble, which
            compares by its kernel.
        limit: distance that `QUANTILE` of the reference samples have from the others.
    """

    train_N: Tensor
    validation_N: Tensor
    asvs_F: Tensor
    prefixes_F: Tensor
    frequencies_L4: Tensor
    length: Annotated[int, ONE_OR_MORE]
    richness_R: Tensor
    embeddings_RD: Tensor
    limit: Annotated[float, ZERO_OR_MORE]

    def distances(self, embeddings_ND: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the distance of samples from the training samples, relative to `limit`, [N].

        It is the mean Euclidean distance from the `NEIGHBOURS` nearest reference samples.
        """
        distances_N = _neighbour_distances(torch.from_numpy(embeddings_ND), self.embeddings_RD)
        return (distances_N / max(self.limit, 1e-12)).numpy()


def reference_rows(
    rows: npt.NDArray[np.int64], seed: int, most: int = MOST_SAMPLES
) -> npt.NDArray[np.int64]:
    """Draw at most `most` of the rows, in ascending order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def summarize(
    study: Study,
    split: Split,
    plan: BatchPlan,
    rows_R: npt.NDArray[np.int64],
    embeddings_RD: npt.NDArray[np.float32],
    limit: float,
) -> TrainingSummary:
    """Summarize the training samples of a split.

    Args:
        study: contains the samples.
        split: training and validation rows.
        plan: seed and rarefaction depth.
        rows_R: reference samples, of `reference_rows`.
        embeddings_RD: their embeddings.
        limit: see `TrainingSummary`.
    """
    present = np.zeros(len(study.tokens_FL), dtype=bool)
    for block in blocks(study, split.train):
        present[block.indices] = True
    tokens_FL = study.tokens_FL[present]
    return TrainingSummary(
        hash_ids(study.table.sample_ids[row] for row in split.train.tolist()),
        hash_ids(study.table.sample_ids[row] for row in split.validation.tolist()),
        hash_sequences(tokens_FL),
        hash_sequences(tokens_FL[:, :PREFIX]),
        nucleotide_frequencies(tokens_FL),
        median_length(tokens_FL),
        rarefied_richness(study, plan, rows_R),
        torch.from_numpy(embeddings_RD),
        limit,
    )


def embedding_limit(embeddings_RD: npt.NDArray[np.float32]) -> float:
    """Return the distance that `QUANTILE` of the reference samples have from the others."""
    embeddings = torch.from_numpy(embeddings_RD)
    return float(_neighbour_distances(embeddings, embeddings, itself=True).quantile(QUANTILE))


def parse(stored: Any, width: int) -> TrainingSummary | None:
    """Validate the summary in a checkpoint, with embeddings of `width`; None where there is none.

    Raises:
        Mismatch: an entry is missing, or of another type or shape.
    """
    if stored is None:
        return None
    found: TrainingSummary = schema.parse(TrainingSummary, stored, "training")
    samples = len(found.embeddings_RD) if found.embeddings_RD.ndim else 0
    shapes = {
        "frequencies_L4": (min(found.frequencies_L4.shape[:1], default=0), 4),
        "prefixes_F": tuple(found.asvs_F.shape),
        "richness_R": (samples,),
        "embeddings_RD": (samples, width),
    }
    optional = ("validation_N",) if width else ("validation_N", "embeddings_RD")
    for name, value in vars(found).items():
        if not isinstance(value, Tensor):
            continue
        numbers = name in ("frequencies_L4", "embeddings_RD")
        if value.dtype != (torch.float32 if numbers else torch.int64):
            raise Mismatch(f"training.{name} is {value.dtype}")
        if not value.numel() and name not in optional:
            raise Mismatch(f"training.{name} is empty")
        if tuple(value.shape) != shapes.get(name, (value.numel(),)):
            raise Mismatch(f"training.{name} is {tuple(value.shape)}")
        if not bool(value.isfinite().all()):
            raise Mismatch(f"training.{name} has values that are not finite")
    return found


def blocks(study: Study, rows: npt.NDArray[np.int64]) -> Iterator[Any]:
    """Yield the counts of `rows` as sparse matrices of few samples: counts may be a mapped file."""
    for start in range(0, len(rows), _BLOCK):
        yield study.table.counts[rows[start : start + _BLOCK]]


def hash_ids(ids: Iterable[str]) -> Tensor:
    """Return the hash of each id, int64 [N]."""
    return torch.tensor([_hash(name.encode()) for name in ids], dtype=torch.int64)


def hash_sequences(tokens_FL: npt.NDArray[np.uint8]) -> Tensor:
    """Return the hash of each sequence without its padding, int64 [F]."""
    codes = (row[row != PAD].tobytes() for row in tokens_FL)
    return torch.tensor([_hash(row) for row in codes], dtype=torch.int64)


def nucleotide_frequencies(tokens_FL: npt.NDArray[np.uint8]) -> Tensor:
    """Return the frequency of A, C, G and T at each of the first `PREFIX` positions, [L, 4]."""
    letters = [(tokens_FL[:, :PREFIX] == code).mean(axis=0) for code in (1, 2, 3, 4)]
    return torch.from_numpy(np.stack(letters, axis=1).astype(np.float32))


def median_length(tokens_FL: npt.NDArray[np.uint8]) -> int:
    """Return the median number of nucleotides of the sequences."""
    return int(np.median((tokens_FL != PAD).sum(axis=1)))


def rarefied_richness(study: Study, plan: BatchPlan, rows: npt.NDArray[np.int64]) -> Tensor:
    """Return the number of ASVs of each sample at the rarefaction depth, int64 [N]."""
    richness = []
    for row in rows.tolist():
        counts = study.table.counts[np.array([row])].data
        drawn = rarefy(counts, plan.rarefy_depth, study.table.sample_ids[row], plan.seed, 0)
        richness.append(int((drawn > 0).sum()))
    return torch.tensor(richness, dtype=torch.int64)


def _hash(content: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _neighbour_distances(samples_ND: Tensor, reference_RD: Tensor, itself: bool = False) -> Tensor:
    """Return the mean distance of samples from their nearest reference samples, float64 [N].

    With `itself` the samples are the reference, and each is compared with the others.
    """
    reference = reference_RD.double()
    # Pair by pair: as a matrix product, the distances of a sample depend on the number of others.
    distances = (
        torch.cdist(chunk.double(), reference, compute_mode="donot_use_mm_for_euclid_dist")
        for chunk in torch.split(samples_ND, _BLOCK)
    )
    return torch.cat([mean_of_nearest(chunk, itself) for chunk in distances])


def mean_of_nearest(distances_NR: Tensor, itself: bool = False) -> Tensor:
    """Return the mean of the `NEIGHBOURS` smallest distances of each sample, [N].

    With `itself` the smallest of all is left out: the distance of a sample from itself. Infinite
    distances are left out too.
    """
    nearest = min(NEIGHBOURS + itself, distances_NR.shape[1])
    nearest_NK = distances_NR.topk(nearest, largest=False).values[:, itself:]
    return nearest_NK.where(nearest_NK.isfinite(), torch.nan).nanmean(dim=1).nan_to_num()
