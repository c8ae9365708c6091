"""New samples: how much the samples of a table resemble the training data of a model.

`docs/new_samples.md` explains the columns and sentences. The distance of a sample is computed by
`aam.members.model_file`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError
from aam.contract.records import Count, Mismatch, NonNegative, Positive, Seed
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.metadata import read_metadata, rows_where
from aam.data.sequences import PAD
from aam.data.splits import Split
from aam.data.study import Study
from aam.data.table import rarefy

MAX_SAMPLES = 1000
"""Training samples of which the richness and the log abundances are kept."""

NEIGHBOURS = 5
QUANTILE = 0.95
PREFIX = 64
"""Nucleotides by which ASVs of different lengths are compared."""

SAME_REGION = 0.5
"""Correlation of the nucleotide frequencies of one region; of two regions it is about 0."""

SAME_SAMPLE = 0.5
"""Part of the reads that are known, above which a sample of a known id is that sample."""

MANY_FAR = 0.15
"""Part of the samples beyond the limit, 5 % of which are expected, that deserves a warning."""

_BLOCK = 512

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

Note = tuple[str, bool]
"""Sentence for the user, and whether it is a warning."""


@dataclass(frozen=True)
class SummaryNumbers:
    """Numbers of a training summary.

    Attributes:
        seed: seed of the reference samples and of rarefaction.
        rarefy_depth: reads at which the richness is compared; 0 for all.
        length: median number of nucleotides of an ASV.
        limit: distance that `QUANTILE` of the reference samples have from the others.
    """

    seed: Seed
    rarefy_depth: Count
    length: Positive
    limit: NonNegative


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


def reference_rows(rows: I64, seed: int) -> I64:
    """Draw at most `MAX_SAMPLES` of the rows, in ascending order."""
    if len(rows) <= MAX_SAMPLES:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, MAX_SAMPLES, replace=False))


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
    for block in _blocks(study, split.train):
        present[block.indices] = True
    tokens_FL = study.tokens_FL[present]
    return TrainingSummary(
        SummaryNumbers(seed, rarefy_depth, _median_length(tokens_FL), limit),
        _hash_ids(study.table.sample_ids[row] for row in split.train.tolist()),
        _hash_ids(study.table.sample_ids[row] for row in split.validation.tolist()),
        hash_sequences(tokens_FL),
        hash_sequences(tokens_FL[:, :PREFIX]),
        _nucleotide_frequencies(tokens_FL),
        _rarefied_richness(study, seed, rarefy_depth, rows_R),
    )


def restore(plain: SummaryNumbers, arrays: Mapping[str, npt.NDArray[Any]]) -> TrainingSummary:
    """Validate the summary in a model, which is untrusted input; further arrays are ignored.

    Raises:
        Mismatch: an array is missing, or of another type or shape.
    """
    names = TrainingSummary.__dataclass_fields__.keys() - {"plain"}
    if missing := sorted(names - arrays.keys()):
        raise Mismatch(f"training.{missing[0]} is missing")
    summary = TrainingSummary(plain, **{name: arrays[name] for name in names})
    shapes = {
        "frequencies_L4": (min(summary.frequencies_L4.shape[:1], default=0), 4),
        "prefixes_F": summary.asvs_F.shape,
    }
    for name, value in summary.arrays().items():
        if value.dtype != (np.float32 if name == "frequencies_L4" else np.int64):
            raise Mismatch(f"training.{name} is {value.dtype}")
        if not value.size and name != "validation_N":
            raise Mismatch(f"training.{name} is empty")
        if value.shape != shapes.get(name, (value.size,)):
            raise Mismatch(f"training.{name} is {value.shape}")
        if not np.isfinite(value).all():
            raise Mismatch(f"training.{name} has values that are not finite")
    return summary


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


def select_as_trained(study: Study, options: dict[str, Any], metadata: Path | None) -> Study:
    """Apply the --where of the training `options` if there is metadata; otherwise print it.

    Raises:
        MissingInput, DataError: see `read_metadata`; the condition leaves no sample.
    """
    if options.get("phylogeny", {}).get("drop_missing_asvs"):
        info("In training, ASVs that are not in the tree were left out; here all ASVs are read.")
    condition = options.get("target", {}).get("where")
    if condition is None:
        return study
    if metadata is None:
        warn(
            f"The model was trained on samples with {condition} (--where) and predicts all samples "
            "of this table; --metadata restricts it to such samples."
        )
        return study
    rows = rows_where(condition, read_metadata(metadata), study.table.sample_ids)
    return study.take_samples(rows)


def read_covariates(
    encoder: CovariateEncoder | None, path: Path | None, sample_ids: Sequence[str]
) -> Covariates | None:
    """Read the metadata columns that a model reads, of new samples; None for counts alone.

    Raises:
        UsageError: there is no metadata file.
        MissingInput, DataError: see `read_metadata` and `CovariateEncoder.read`.
    """
    if encoder is None:
        return None
    if path is None:
        raise UsageError(
            "The model reads metadata besides the table",
            f"the columns {', '.join(encoder.columns)}",
            "add --metadata with these columns",
        )
    return encoder.read(read_metadata(path), sample_ids)


@dataclass(frozen=True)
class KnownAsvs:
    """ASVs of a table that occur in training samples.

    Attributes:
        known_F: whether each ASV does.
        compared_by: end of a sentence about ASVs of other lengths; else empty.
        region: a warning if the sequences begin elsewhere than those of training; else empty.
    """

    known_F: npt.NDArray[np.bool_]
    compared_by: str
    region: tuple[Note, ...]


def find_known_asvs(summary: TrainingSummary, study: Study, required: bool) -> KnownAsvs:
    """Find the ASVs of a table that occur in the training data.

    Raises:
        DataError: one is `required` and there is none, as in a table of another region.
    """
    here, there = _median_length(study.tokens_FL), summary.plain.length
    if here == there:
        known_F, by = np.isin(hash_sequences(study.tokens_FL), summary.asvs_F), ""
    else:  # Reads that were cut to another length: their common beginning is compared.
        known_F = np.isin(hash_sequences(study.tokens_FL[:, :PREFIX]), summary.prefixes_F)
        by = f", compared by {PREFIX} nucleotides: here they have {here}, in training {there}"
    # Nucleotide frequencies at each position identify the region, even without a common ASV.
    here_L4, there_L4 = _nucleotide_frequencies(study.tokens_FL), summary.frequencies_L4
    shared = min(len(here_L4), len(there_L4))
    both = here_L4[:shared].ravel(), there_L4[:shared].ravel()
    with np.errstate(invalid="ignore", divide="ignore"):  # constant frequencies have none
        correlation = float(np.nan_to_num(np.asarray(np.corrcoef(*both))[0, 1]))
    region = (
        "The sequences are of another region, primer or direction than those of training: the "
        f"nucleotide frequencies at their first {shared} positions correlate {correlation:.2f} "
        "(above 0.9 within a region). The predictions are meaningless."
    )
    other = correlation < SAME_REGION
    if required and not known_F.any():
        reason = ", of another region, primer or direction" if other else ""
        raise DataError(
            "No ASV of the table occurs in the training data, so predictions would mean nothing",
            f"{len(known_F)} ASVs in {len(study.table.sample_ids)} samples{reason}",
            "use a table of the same region and primers, or predict all the same with --force",
        )
    return KnownAsvs(known_F, by, ((region, True),) if other else ())


@dataclass(frozen=True)
class Comparison:
    """Comparison of N samples with the training data.

    Attributes:
        columns: columns of the table of predictions: split (train, validation or new), known_reads
            (0 to 1), distance and unlike_training (yes or no), each [N].
        notes: sentences for the user.
    """

    columns: dict[str, object]
    notes: tuple[Note, ...]

    def show(self) -> None:
        """Print the notes."""
        for note, warning in self.notes:
            (warn if warning else info)(note)


def compare(
    summary: TrainingSummary, study: Study, known: KnownAsvs, distances_N: F64
) -> Comparison:
    """Compare the samples of a study with the training data of a model.

    Args:
        summary: summary of the training samples.
        study: the N samples.
        known: its ASVs that occur in training samples.
        distances_N: float64, distance of each sample from the training samples, relative to the
            limit: above 1 a sample is unlike them.

    Returns:
        Columns for the table of predictions, and sentences for the user.
    """
    samples, notes = len(study.table.sample_ids), list[Note]()
    weights_F = known.known_F.astype(np.float64)
    known_N = np.concatenate([block @ weights_F for block in _blocks(study, np.arange(samples))])
    reads_N = known_N / np.maximum(study.reads, 1)
    # A sample of the same id whose reads are unknown is of another study.
    ids_N, same_N = _hash_ids(study.table.sample_ids), reads_N > SAME_SAMPLE
    trained_N = np.isin(ids_N, summary.train_N) & same_N
    checked_N = np.isin(ids_N, summary.validation_N) & same_N & ~trained_N
    split = np.where(trained_N, "train", np.where(checked_N, "validation", "new")).tolist()
    overlaps = [
        f"{int(rows_N.sum())} of {samples} samples {did}"
        for rows_N, did in ((trained_N, "trained this model"), (checked_N, "chose its epoch"))
        if rows_N.any()
    ]
    if overlaps:
        overlap = (
            f"{', '.join(overlaps)} (by sample id; see column 'split'): their predictions do not "
            "measure it. The run folder has those of held-out samples in predictions.tsv."
        )
        notes.append((overlap, True))
    share = known_N.sum() / study.reads.sum()
    prevalence = (
        f"Known ASVs: {weights_F.mean():.1%} of {len(weights_F)}, with {share:.1%} of the "
        f"reads{known.compared_by}."
    )
    notes += [(prevalence, bool(share < 0.5)), *known.region]

    seed, depth = summary.plain.seed, summary.plain.rarefy_depth
    rows = reference_rows(np.arange(samples), seed)
    here = float(np.median(_rarefied_richness(study, seed, depth, rows)))
    low, middle, high = np.quantile(summary.richness_R, (0.05, 0.5, 0.95)).tolist()
    at = f" at {depth} reads" if depth else ""
    richness = (
        f"Richness{at}: median {here:.0f} ASVs, in training {middle:.0f} "
        f"(90 % from {low:.0f} to {high:.0f})."
    )
    notes.append((richness, not low <= here <= high))

    # The distance compares sequences, some of which resemble each other in any two regions.
    far_N = (distances_N > 1) | (known_N == 0)
    far = (
        f"{int(far_N.sum())} of {samples} samples are unlike the training samples (column "
        f"'unlike_training'); {1 - QUANTILE:.0%} are expected."
    )
    if many := bool(far_N.mean() > MANY_FAR):
        far += " The model extrapolates: do not trust its predictions for them."
    notes.append((far, many))
    columns: dict[str, object] = {
        "split": split,
        "known_reads": reads_N,
        "distance": distances_N,
        "unlike_training": np.where(far_N, "yes", "no"),
    }
    return Comparison(columns, tuple(notes))


def hash_sequences(tokens_FL: npt.NDArray[np.uint8]) -> I64:
    """Return the hash of each sequence without its padding, int64 [F].

    >>> short, long = hash_sequences(np.array([[1, 2, 0], [1, 2, 3]], dtype=np.uint8))
    >>> bool(short == hash_sequences(np.array([[1, 2]], dtype=np.uint8))[0]), bool(short == long)
    (True, False)
    """
    codes = (row[row != PAD].tobytes() for row in tokens_FL)
    return np.array([_hash(row) for row in codes], dtype=np.int64)


def _hash_ids(ids: Iterable[str]) -> I64:
    return np.array([_hash(name.encode()) for name in ids], dtype=np.int64)


def _hash(content: bytes) -> int:
    # Python's hash() of bytes has another salt in each process.
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _blocks(study: Study, rows: I64) -> Iterator[Any]:
    """Yield the counts of `rows` as sparse matrices of few samples: counts may be a mapped file."""
    for start in range(0, len(rows), _BLOCK):
        yield study.counts(rows[start : start + _BLOCK])


def _nucleotide_frequencies(tokens_FL: npt.NDArray[np.uint8]) -> F32:
    """Return the frequency of A, C, G and T at each of the first `PREFIX` positions, [L, 4]."""
    letters = [(tokens_FL[:, :PREFIX] == code).mean(axis=0) for code in (1, 2, 3, 4)]
    return np.stack(letters, axis=1).astype(np.float32)


def _median_length(tokens_FL: npt.NDArray[np.uint8]) -> int:
    return int(np.median((tokens_FL != PAD).sum(axis=1)))


def _rarefied_richness(study: Study, seed: int, rarefy_depth: int, rows: I64) -> I64:
    """Return the number of ASVs of each sample at the rarefaction depth, int64 [N]."""
    richness = []
    for row in rows.tolist():
        counts = study.counts(np.array([row])).data
        drawn = rarefy(counts, rarefy_depth, study.table.sample_ids[row], seed, 0)
        richness.append(int((drawn > 0).sum()))
    return np.array(richness, dtype=np.int64)
