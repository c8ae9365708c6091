"""Training summary: data in a model about its training samples, to compare new samples with.

It holds no names and no reads: ids and sequences are hashes of 8 bytes. Shapes: N samples, F ASVs,
R reference samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from aam.contract.options.field import ONE_OR_MORE, SEEDS, ZERO_OR_MORE
from aam.contract.schema import Mismatch
from aam.data.rarefaction import rarefy
from aam.data.sequences import PAD
from aam.data.splits import Split
from aam.data.study import Study

MOST_SAMPLES = 1000
"""Training samples of which the richness and the log abundances are kept."""

NEIGHBOURS = 5
QUANTILE = 0.95
PREFIX = 64
"""Nucleotides by which ASVs of different lengths are compared."""

_BLOCK = 512

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SummaryNumbers:
    """Numbers of a training summary.

    Attributes:
        seed: seed of the reference samples and of rarefaction.
        rarefy_depth: reads at which the richness is compared; 0 for all.
        length: median number of nucleotides of an ASV.
        limit: distance that `QUANTILE` of the reference samples have from the others.
    """

    seed: Annotated[int, SEEDS]
    rarefy_depth: Annotated[int, ZERO_OR_MORE]
    length: Annotated[int, ONE_OR_MORE]
    limit: Annotated[float, ZERO_OR_MORE]


@dataclass(frozen=True, eq=False)
class TrainingSummary:
    """Data about the training samples of a model.

    Attributes:
        plain: its numbers.
        train_N, validation_N: hashes of the sample ids.
        asvs_F: hashes of the sequences of the ASVs in training samples.
        prefixes_F: hashes of the first `PREFIX` nucleotides of the same.
        frequencies_L4: frequency of A, C, G and T at each of the first positions.
        richness_R: ASVs of each reference sample at the rarefaction depth.
    """

    plain: SummaryNumbers
    train_N: I64
    validation_N: I64
    asvs_F: I64
    prefixes_F: I64
    frequencies_L4: F32
    richness_R: I64

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays, by name."""
        return {name: value for name, value in vars(self).items() if name != "plain"}


def reference_rows(rows: I64, seed: int, most: int = MOST_SAMPLES) -> I64:
    """Draw at most `most` of the rows, in ascending order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def summarize(
    study: Study, split: Split, rows_R: I64, seed: int, rarefy_depth: int, limit: float
) -> TrainingSummary:
    """Summarize the training samples of a split.

    Args:
        study: study that contains the samples.
        split: training and validation rows.
        rows_R: rows of the reference samples, see `reference_rows`.
        seed, rarefy_depth, limit: see `SummaryNumbers`.
    """
    present = np.zeros(len(study.tokens_FL), dtype=bool)
    for block in blocks(study, split.train):
        present[block.indices] = True
    tokens_FL = study.tokens_FL[present]
    return TrainingSummary(
        SummaryNumbers(seed, rarefy_depth, median_length(tokens_FL), limit),
        hash_ids(study.table.sample_ids[row] for row in split.train.tolist()),
        hash_ids(study.table.sample_ids[row] for row in split.validation.tolist()),
        hash_sequences(tokens_FL),
        hash_sequences(tokens_FL[:, :PREFIX]),
        nucleotide_frequencies(tokens_FL),
        rarefied_richness(study, seed, rarefy_depth, rows_R),
    )


def restore(plain: SummaryNumbers, arrays: Mapping[str, npt.NDArray[Any]]) -> TrainingSummary:
    """Validate the summary in a model; further arrays are ignored.

    Raises:
        Mismatch: an array is missing, or of another type or shape.
    """
    names = TrainingSummary.__dataclass_fields__.keys() - {"plain"}
    # A model is untrusted input: shapes and types are checked before anything is computed.
    if missing := sorted(names - arrays.keys()):
        raise Mismatch(f"training.{missing[0]} is missing")
    found = TrainingSummary(plain, **{name: arrays[name] for name in names})
    shapes = {
        "frequencies_L4": (min(found.frequencies_L4.shape[:1], default=0), 4),
        "prefixes_F": found.asvs_F.shape,
    }
    for name, value in found.arrays().items():
        if value.dtype != (np.float32 if name == "frequencies_L4" else np.int64):
            raise Mismatch(f"training.{name} is {value.dtype}")
        if not value.size and name != "validation_N":
            raise Mismatch(f"training.{name} is empty")
        if value.shape != shapes.get(name, (value.size,)):
            raise Mismatch(f"training.{name} is {value.shape}")
        if not np.isfinite(value).all():
            raise Mismatch(f"training.{name} has values that are not finite")
    return found


def blocks(study: Study, rows: npt.NDArray[np.int64]) -> Iterator[Any]:
    """Yield the counts of `rows` as sparse matrices of few samples: counts may be a mapped file."""
    for start in range(0, len(rows), _BLOCK):
        yield study.table.counts[rows[start : start + _BLOCK]]


def hash_ids(ids: Iterable[str]) -> I64:
    """Return the hash of each id, int64 [N]."""
    return np.array([_hash(name.encode()) for name in ids], dtype=np.int64)


def hash_sequences(tokens_FL: npt.NDArray[np.uint8]) -> I64:
    """Return the hash of each sequence without its padding, int64 [F].

    >>> one, padded = hash_sequences(np.array([[1, 2, 0], [1, 2, 3]], dtype=np.uint8))
    >>> bool(one == hash_sequences(np.array([[1, 2]], dtype=np.uint8))[0]), bool(one == padded)
    (True, False)
    """
    codes = (row[row != PAD].tobytes() for row in tokens_FL)
    return np.array([_hash(row) for row in codes], dtype=np.int64)


def nucleotide_frequencies(tokens_FL: npt.NDArray[np.uint8]) -> F32:
    """Return the frequency of A, C, G and T at each of the first `PREFIX` positions, [L, 4]."""
    letters = [(tokens_FL[:, :PREFIX] == code).mean(axis=0) for code in (1, 2, 3, 4)]
    return np.stack(letters, axis=1).astype(np.float32)


def median_length(tokens_FL: npt.NDArray[np.uint8]) -> int:
    """Return the median number of nucleotides of the sequences."""
    return int(np.median((tokens_FL != PAD).sum(axis=1)))


def rarefied_richness(study: Study, seed: int, rarefy_depth: int, rows: I64) -> I64:
    """Return the number of ASVs of each sample at the rarefaction depth, int64 [N]."""
    richness = []
    for row in rows.tolist():
        counts = study.table.counts[np.array([row])].data
        drawn = rarefy(counts, rarefy_depth, study.table.sample_ids[row], seed, 0)
        richness.append(int((drawn > 0).sum()))
    return np.array(richness, dtype=np.int64)


def _hash(content: bytes) -> int:
    # Python's hash() of bytes has another salt in each process.
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def mean_of_nearest(distances_NR: F64) -> F64:
    """Return the mean of the `NEIGHBOURS` smallest distances of each sample, [N].

    Infinite distances are left out.

    Args:
        distances_NR: distances of N samples from R reference samples, at least 0.

    >>> mean_of_nearest(np.array([[1.0, 2.0, np.inf]])).tolist()
    [1.5]
    """
    nearest = min(NEIGHBOURS, distances_NR.shape[1])
    nearest_NK = np.sort(np.partition(distances_NR, nearest - 1, axis=1)[:, :nearest], axis=1)
    finite_NK = np.isfinite(nearest_NK)
    sums_N = np.where(finite_NK, nearest_NK, 0).sum(axis=1)
    means_N: F64 = sums_N / finite_NK.sum(axis=1).clip(min=1)
    return means_N
