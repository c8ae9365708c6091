"""New samples: how much the samples of a table resemble the training data of a model.

`docs/new_samples.md` explains the columns and sentences. The distance of a sample is that of the
kernel estimator, whether or not the kernel is a member: the Euclidean distance in its feature space
from the nearest of some training samples, the landmarks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import betabinom

from aam.arrays import F32, F64, Arrays, Rows, Tokens
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError
from aam.contract.records import Count, Mismatch, NonNegative, Positive, Seed
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.metadata import read_metadata, rows_where
from aam.data.sequences import hash_of, hash_sequences
from aam.data.study import Study
from aam.data.table import rarefy
from aam.evaluation.splits import Split
from aam.members.kernel import Kernel, KernelInputs, Landmarks
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.nucleotide_codes import PAD

MAX_SAMPLES = 1000
"""Training samples of which the richness and the log abundances are kept."""

NEIGHBOURS = 5
QUANTILE = 0.95
POSITIONS = 64
"""First positions of the sequences whose nucleotide frequencies identify the region."""

SAME_REGION = 0.5
"""Correlation of the nucleotide frequencies of one region; of two regions it is about 0."""

_EQUAL = 0.5
"""Part of the known ASVs that have the length of those in training, below which it is a warning."""

SAME_SAMPLE = 0.5
"""Part of the reads that are known, above which a sample of a known id is that sample."""

MANY_FAR = 0.15
"""Part of the samples beyond the limit, 5 % of which are expected, that deserves a warning."""

CHANCE = 0.01
"""Probability below which so many are beyond it, were they as the training samples."""

_BLOCK = 512

_LANDMARKS = "landmarks/"
_READER = Kernel(clades=False)

Note = tuple[str, bool]
"""Sentence for the user, and whether it is a warning."""


@dataclass(frozen=True)
class SummaryNumbers:
    """Numbers of a training summary."""

    seed: Seed  # seed of the landmarks and of rarefaction
    rarefy_depth: Count  # reads at which the richness is compared; 0 for all
    length: Positive  # median number of nucleotides of an ASV
    limit: NonNegative  # distance that `QUANTILE` of the landmarks have from those of other groups


_ARRAYS = {
    "train_N": np.int64,
    "validation_N": np.int64,
    "asvs_F": np.int64,
    "frequencies_L4": np.float32,
    "richness_R": np.int64,
}


@dataclass(frozen=True, eq=False)
class TrainingSummary:
    """Summary of the training samples of a model, and some of them with their log abundances."""

    plain: SummaryNumbers  # its numbers
    # train_N, validation_N: hashes of the sample ids
    train_N: Rows
    validation_N: Rows
    asvs_F: Rows  # hashes of the sequences of the ASVs in training samples
    frequencies_L4: F32  # frequency of A, C, G and T at each of the first positions
    richness_R: Rows  # ASVs of each landmark at the rarefaction depth
    landmarks: Landmarks  # samples with which new ones are compared

    @classmethod
    def of(
        cls,
        study: Study,
        relations: AsvRelations,
        splits: Sequence[Split],
        groups_N: Rows,
        seed: int,
        rarefy_depth: int,
        refitted: bool,
    ) -> TrainingSummary:
        """Summarize the training samples of the final members.

        `refitted`: a member is fitted to the samples of all splits; otherwise models of the splits
        are averaged, and a sample that trained none of them may have chosen an epoch.
        """
        parts = [split.rows for split in splits]
        train = np.unique(np.concatenate(parts if refitted else [split.train for split in splits]))
        checked = np.unique(np.concatenate([split.validation for split in splits]))
        checked = np.setdiff1d(checked, train)
        rows_R = _draw(train, seed)
        inputs = _READER.read(Samples.of(study.take_samples(rows_R)), relations)
        landmarks = Landmarks.of(inputs, np.arange(len(rows_R)))
        # The limit is that of new groups: samples of the own group are left out.
        same_RR = groups_N[rows_R, None] == groups_N[rows_R]
        distances_R = np.sort(_neighbour_distances(landmarks, inputs, same_RR))
        limit = float(distances_R[_rank(len(distances_R)) - 1])
        present = np.zeros(len(study.tokens_FL), dtype=bool)
        for block in _blocks(study, train):
            present[block.indices] = True
        tokens_FL, ids = study.tokens_FL[present], np.array(study.table.sample_ids, dtype=object)
        return cls(
            SummaryNumbers(seed, rarefy_depth, _median_length(tokens_FL), limit),
            _hash_ids(ids[train]),
            _hash_ids(ids[checked]),
            hash_sequences(tokens_FL),
            _nucleotide_frequencies(tokens_FL),
            _rarefied_richness(study, seed, rarefy_depth, rows_R),
            landmarks,
        )

    def read(self, samples: Samples, relations: AsvRelations) -> KernelInputs:
        """Compute what `distances` reads, which is also what a kernel predicts from."""
        return _READER.read(samples, relations)

    def distances(self, inputs: KernelInputs) -> F64:
        """Return the distance from the nearest landmarks, relative to the limit, float64 [N]."""
        # The limit is 0 where all training samples are equal.
        limit = max(self.plain.limit, 1e-12)
        distances_N: F64 = _neighbour_distances(self.landmarks, inputs) / limit
        return distances_N

    def arrays(self) -> Arrays:
        """Return the arrays, by name."""
        landmarks = {f"{_LANDMARKS}{k}": array for k, array in self.landmarks.arrays().items()}
        return {name: vars(self)[name] for name in _ARRAYS} | landmarks

    @classmethod
    def restore(cls, plain: SummaryNumbers, arrays: Arrays, asvs: int) -> TrainingSummary:
        """Build the summary from its arrays, of which others are ignored; raises Mismatch."""
        ranges = {name: arrays.get(name, np.empty(0)) for name in _ARRAYS}
        for name, array in ranges.items():
            shape = array.shape[:1] + (4,) * name.endswith("4")
            if array.dtype != _ARRAYS[name] or array.shape != shape:
                raise Mismatch(f"training.{name} is {array.dtype} {array.shape}")
            if not (array.size or name == "validation_N") or not np.isfinite(array).all():
                raise Mismatch(f"training.{name} is empty or not finite")
        of_landmarks = {
            name.removeprefix(_LANDMARKS): array
            for name, array in arrays.items()
            if name.startswith(_LANDMARKS)
        }
        landmarks = Landmarks.restore(of_landmarks, asvs)
        if len(ranges["richness_R"]) != len(landmarks.norms_R):
            raise Mismatch("training.richness_R and the landmarks differ")
        return cls(plain, landmarks=landmarks, **ranges)


def _rank(samples: int) -> int:
    """Return the place, from 1, of the limit among the sorted distances of training samples.

    A new sample of the same kind is as likely at each place among them, so it is beyond this one
    with at most 1 - `QUANTILE` (split conformal prediction, Vovk et al. 2005); with fewer than 19
    the largest is taken. A quantile between places leaves more beyond: 10 % of 20.
    """
    return min(math.ceil((samples + 1) * QUANTILE), samples)


def _is_chance(far: int, samples: int, trained: int) -> bool:
    """Return whether so many of the samples are beyond the limit by chance.

    The part beyond a limit at place k of n training samples is Beta(n + 1 - k, k), so their number
    is beta-binomial.
    """
    rank = _rank(trained)
    return float(betabinom.sf(far - 1, samples, trained + 1 - rank, rank)) >= CHANCE


def _neighbour_distances(
    landmarks: Landmarks, inputs: KernelInputs, without_NR: npt.NDArray[np.bool_] | bool = False
) -> F64:
    """Return the mean distance of samples from their `NEIGHBOURS` nearest landmarks, [N].

    Pairs that are marked in `without_NR` are left out.
    """
    squared_NR = landmarks.squared_distances(inputs, landmarks.kernel(inputs))
    distances_NR = np.where(without_NR, np.inf, np.sqrt(squared_NR))
    nearest = min(NEIGHBOURS, distances_NR.shape[1])
    nearest_NK = np.sort(np.partition(distances_NR, nearest - 1, axis=1)[:, :nearest], axis=1)
    finite_NK = np.isfinite(nearest_NK)
    sums_N = np.where(finite_NK, nearest_NK, 0).sum(axis=1)
    means_N: F64 = sums_N / finite_NK.sum(axis=1).clip(min=1)
    return means_N


def select_as_trained(study: Study, options: dict[str, Any], metadata: Path | None) -> Study:
    """Apply the --where of the training `options` if there is metadata; otherwise print it."""
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
    """Read the metadata columns that a model reads, of new samples; None for counts alone."""
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
    """ASVs of a table that occur in training samples."""

    known_F: npt.NDArray[np.bool_]  # whether each ASV does
    compared_by: str  # end of a sentence about ASVs of other lengths; else empty
    # warnings if the sequences begin elsewhere than those of training, or have other lengths
    region: tuple[Note, ...]


def find_known_asvs(
    summary: TrainingSummary, tokens_TL: Tokens, study: Study, required: bool
) -> KnownAsvs:
    """Find the ASVs of a table that occur in training samples.

    `tokens_TL` are the sequences of the training study, not all of which are in these samples.
    """
    here, there = _median_length(study.tokens_FL), summary.plain.length
    notes: list[Note] = []
    if here == there:
        known_F, by = np.isin(hash_sequences(study.tokens_FL), summary.asvs_F), ""
    else:  # Reads that were cut to another length: their common length is compared.
        common = min(here, there)
        trained_TL = tokens_TL[np.isin(hash_sequences(tokens_TL), summary.asvs_F)]
        known = hash_sequences(trained_TL[:, :common])
        known_F = np.isin(hash_sequences(study.tokens_FL[:, :common]), known)
        by = f", compared by {common} nucleotides: here they have {here}, in training {there}"
        equal_F = np.isin(hash_sequences(study.tokens_FL), summary.asvs_F)
        if equal_F.sum() < _EQUAL * known_F.sum():
            lengths = (
                f"Of {known_F.sum()} known ASVs {equal_F.sum()} have the length of those in "
                "training: the forest finds no others, and the kernel none that are equal. Cut "
                "both tables to one length (`aam prepare --trim-length`), and train again."
            )
            notes.append((lengths, True))
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
    elsewhere = correlation < SAME_REGION
    if required and not known_F.any():
        reason = ", of another region, primer or direction" if elsewhere else ""
        raise DataError(
            "No ASV of the table occurs in the training data, so predictions would mean nothing",
            f"{len(known_F)} ASVs in {len(study.table.sample_ids)} samples{reason}",
            "use a table of the same region and primers, or predict all the same with --force",
        )
    if elsewhere:
        notes.append((region, True))
    return KnownAsvs(known_F, by, tuple(notes))


@dataclass(frozen=True)
class Comparison:
    """Comparison of N samples with the training data."""

    # columns of the table of predictions: split (train, validation or new), known_reads (0 to 1),
    # distance and unlike_training (yes or no), each [N]
    columns: dict[str, object]
    notes: tuple[Note, ...]  # sentences for the user

    def show(self) -> None:
        """Print the notes."""
        for note, warning in self.notes:
            (warn if warning else info)(note)


def compare(
    summary: TrainingSummary, study: Study, known: KnownAsvs, distances_N: F64
) -> Comparison:
    """Compare the samples of a study with the training data of a model.

    `distances_N` are those of `TrainingSummary.distances`: above 1 a sample is unlike training.
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
            "measure it. The run has those of held-out samples (predictions.tsv)."
        )
        notes.append((overlap, True))
    share = known_N.sum() / study.reads.sum()
    prevalence = (
        f"Known ASVs: {weights_F.mean():.1%} of {len(weights_F)}, with {share:.1%} of the "
        f"reads{known.compared_by}."
    )
    notes += [(prevalence, bool(share < 0.5)), *known.region]

    seed, depth = summary.plain.seed, summary.plain.rarefy_depth
    rows = _draw(np.arange(samples), seed)
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
    by_chance = _is_chance(int(far_N.sum()), samples, len(summary.richness_R))
    if many := bool(far_N.mean() > MANY_FAR) and not by_chance:
        far += " The model extrapolates: do not trust its predictions for them."
    notes.append((far, many))
    columns: dict[str, object] = {
        "split": split,
        "known_reads": reads_N,
        "distance": distances_N,
        "unlike_training": np.where(far_N, "yes", "no"),
    }
    return Comparison(columns, tuple(notes))


def _hash_ids(ids: Sequence[str] | npt.NDArray[np.object_]) -> Rows:
    return np.array([hash_of(name.encode()) for name in ids], dtype=np.int64)


def _draw(rows: Rows, seed: int) -> Rows:
    """Draw at most `MAX_SAMPLES` of the rows, in ascending order."""
    if len(rows) <= MAX_SAMPLES:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, MAX_SAMPLES, replace=False))


def _blocks(study: Study, rows: Rows) -> Iterator[Any]:
    """Yield the counts of `rows` as sparse matrices of few samples: counts may be a mapped file."""
    for start in range(0, len(rows), _BLOCK):
        yield study.counts(rows[start : start + _BLOCK])


def _nucleotide_frequencies(tokens_FL: Tokens) -> F32:
    """Return the frequency of A, C, G and T at each of the first `POSITIONS`, [L, 4]."""
    letters = [(tokens_FL[:, :POSITIONS] == code).mean(axis=0) for code in (1, 2, 3, 4)]
    return np.stack(letters, axis=1).astype(np.float32)


def _median_length(tokens_FL: Tokens) -> int:
    return int(np.median((tokens_FL != PAD).sum(axis=1)))


def _rarefied_richness(study: Study, seed: int, rarefy_depth: int, rows: Rows) -> Rows:
    """Return the number of ASVs of each sample at the rarefaction depth, int64 [N]."""
    richness = []
    for row in rows.tolist():
        counts = study.counts(np.array([row])).data
        drawn = rarefy(counts, rarefy_depth, study.table.sample_ids[row], seed, 0)
        richness.append(int((drawn > 0).sum()))
    return np.array(richness, dtype=np.int64)
