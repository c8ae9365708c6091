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
from scipy import sparse
from scipy.stats import betabinom

from aam.arrays import F32, F64, Arrays, Rows, Tokens
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.groups import GroupValues
from aam.contract.records import Count, Mismatch, NonNegative, Positive, Seed
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.identity import Abundances
from aam.data.metadata import read_metadata
from aam.data.sequences import hash_of, hash_sequences
from aam.data.study import Study
from aam.data.table import rarefy
from aam.evaluation.splits import Split
from aam.members.kernel import Kernel, KernelInputs, Landmarks
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.nucleotide_codes import FINEST, PAD

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

_LANDMARKS, _OTHERS = "landmarks/", "others/"
_OF_SAMPLES = "subjects_N", "reads_N"
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
    """Summary of the training samples of a model, with their log abundances.

    Samples are in the order of `train_N` and `validation_N`.
    """

    plain: SummaryNumbers  # its numbers
    # train_N, validation_N: hashes of the sample ids
    train_N: Rows
    validation_N: Rows
    asvs_F: Rows  # hashes of the sequences of the ASVs in training samples
    frequencies_L4: F32  # frequency of A, C, G and T at each of the first positions
    richness_R: Rows  # ASVs of each landmark at the rarefaction depth
    landmarks: Landmarks  # samples with which new ones are compared
    # log abundances of the samples that are no landmarks, float32 [N - R, F]; None of a model that
    # was stored without them
    others: sparse.csr_array | None
    # hash of the subject of each sample, int64 [N]; None where not known
    subjects_N: Rows | None
    reads_N: Rows | None  # reads of each sample; None where not stored

    @classmethod
    def of(
        cls,
        study: Study,
        relations: AsvRelations,
        splits: Sequence[Split],
        groups_N: Rows,
        subjects: Sequence[str] | None,
        seed: int,
        rarefy_depth: int,
        refitted: bool,
    ) -> TrainingSummary:
        """Summarize the training samples of the final members.

        Args:
            study, relations, splits, groups_N: samples of the training, their ASVs and groups.
            subjects: subject of each sample; None where not known.
            seed, rarefy_depth: see `SummaryNumbers`.
            refitted: a member is fitted to the samples of all splits; otherwise models of the
                splits are averaged, and a sample that trained none of them may have chosen an
                epoch.
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
        rows = np.concatenate([np.setdiff1d(train, rows_R), checked])
        return cls(
            SummaryNumbers(seed, rarefy_depth, _median_length(tokens_FL), limit),
            hash_ids(ids[train]),
            hash_ids(ids[checked]),
            hash_sequences(tokens_FL),
            _nucleotide_frequencies(tokens_FL),
            _rarefied_richness(study, seed, rarefy_depth, rows_R),
            landmarks,
            Samples.of(study.take_samples(rows)).log_abundances,
            None if subjects is None else hash_ids([subjects[row] for row in [*train, *checked]]),
            study.reads[np.concatenate([train, checked])].astype(np.int64),
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
        arrays = {f"{_LANDMARKS}{k}": array for k, array in self.landmarks.arrays().items()}
        if self.others is not None:
            others = Landmarks(self.others, np.zeros(self.others.shape[0])).arrays()
            arrays |= {f"{_OTHERS}{name}": array for name, array in others.items()}
        for name in _OF_SAMPLES:
            if vars(self)[name] is not None:
                arrays[name] = vars(self)[name]
        return {name: vars(self)[name] for name in _ARRAYS} | arrays

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

        def restored(prefix: str) -> Landmarks:
            named = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
            return Landmarks.restore(named, asvs)

        landmarks = restored(_LANDMARKS)
        if len(ranges["richness_R"]) != len(landmarks.norms_R):
            raise Mismatch("training.richness_R and the landmarks differ")
        samples = len(ranges["train_N"]) + len(ranges["validation_N"])
        others = restored(_OTHERS).weights if f"{_OTHERS}starts" in arrays else None
        if others is not None and len(landmarks.norms_R) + others.shape[0] != samples:
            raise Mismatch("the numbers of training samples differ")
        of_samples: dict[str, Any] = {name: arrays.get(name) for name in _OF_SAMPLES}
        for name, values in of_samples.items():
            if values is not None and (values.dtype != np.int64 or values.size != samples):
                raise Mismatch(f"training.{name} is {values.dtype} {values.shape}")
        return cls(plain, landmarks=landmarks, others=others, **ranges, **of_samples)

    def abundances(self, tokens_TL: Tokens, length: int | None) -> tuple[Abundances, Rows]:
        """Return the abundances of the samples whose reads are stored, and their places.

        `tokens_TL` are the sequences of the training study, which are cut to `length`.
        """
        trained = len(self.train_N)
        drawn = _draw(np.arange(trained), self.plain.seed)
        weights, places = self.landmarks.weights, drawn
        if self.others is not None:
            weights = sparse.vstack([weights, self.others], format="csr")
            places = np.arange(trained + len(self.validation_N))
            places = np.concatenate([drawn, np.delete(places, drawn)])
        shares = (np.power(10, weights.data.astype(np.float64)) - 1) / FINEST
        if self.reads_N is not None:
            shares *= np.repeat(self.reads_N[places], np.diff(weights.indptr))
        counts = sparse.csr_array((shares, weights.indices, weights.indptr), weights.shape)
        return Abundances.from_counts(counts, hash_sequences(tokens_TL[:, :length])), places


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
    rows = read_metadata(metadata).rows_where(condition, study.table.sample_ids)
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
    length: int | None  # nucleotides by which ASVs of other lengths are compared; None for all
    compared_by: str  # end of a sentence about them; else empty
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
    common = None
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
    return KnownAsvs(known_F, common, by, tuple(notes))


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
    summary: TrainingSummary, tokens_TL: Tokens, study: Study, known: KnownAsvs, distances_N: F64
) -> Comparison:
    """Compare the samples of a study with the training data of a model.

    `tokens_TL` are the sequences of the training study, `distances_N` those of
    `TrainingSummary.distances`: above 1 a sample is unlike training.
    """
    samples, notes = len(study.table.sample_ids), list[Note]()
    weights_F = known.known_F.astype(np.float64)
    known_N = np.concatenate([block @ weights_F for block in _blocks(study, np.arange(samples))])
    reads_N = known_N / np.maximum(study.reads, 1)
    # A sample of equal reads is a training sample, whatever its id. Whole sequences are compared
    # too: cut ones may be several ASVs, of which a filter left some out.
    pairs = np.empty((0, 2), dtype=np.int64)
    for length in dict.fromkeys((None, known.length)):
        stored, places = summary.abundances(tokens_TL, length)
        here_N = Abundances.of(study, length)
        pairs = np.concatenate([pairs, stored.equal_pairs(here_N)])
    # Samples of equal ids are one unless their reads say otherwise, as those of S1, S2 in two
    # studies do, or are unknown ASVs.
    ids_N, trained = hash_ids(study.table.sample_ids), [summary.train_N, summary.validation_N]
    of_training_N = np.concatenate(trained)
    both = [hashes.astype(str).tolist() for hashes in (of_training_N[places], ids_N)]
    named_N = np.isin(ids_N, of_training_N) & (reads_N > SAME_SAMPLE)
    if named_N.any() and not stored.same_names(here_N, both):
        text = f"{int(named_N.sum())} samples have ids of training samples, and other reads: new."
        notes.append((text, False))
        named_N[:] = False
    trained_N, checked_N = (np.isin(ids_N, part_N) & named_N for part_N in trained)
    trains = places[pairs[:, 0]] < len(summary.train_N)
    renamed = np.setdiff1d(pairs[:, 1], np.flatnonzero(trained_N | checked_N))
    trained_N[pairs[trains, 1]] = True
    checked_N[pairs[~trains, 1]] = True
    checked_N &= ~trained_N
    split = np.where(trained_N, "train", np.where(checked_N, "validation", "new")).tolist()
    overlaps = [
        f"{int(rows_N.sum())} of {samples} samples {did}"
        for rows_N, did in ((trained_N, "trained this model"), (checked_N, "chose its epoch"))
        if rows_N.any()
    ]
    if overlaps:
        by = f", {len(renamed)} under another id, by their reads" if len(renamed) else ""
        overlap = (
            f"{', '.join(overlaps)}{by} (column 'split'): these predictions say nothing about its "
            "accuracy. The run has predictions of held-out samples (predictions.tsv)."
        )
        notes.append((overlap, True))
    alike = np.setdiff1d(stored.alike_pairs(here_N)[:, 1], np.flatnonzero(trained_N | checked_N))
    if len(alike):
        ids = first_few(study.table.sample_ids[row] for row in alike.tolist())
        text = (
            f"Samples as alike to a training sample as two draws of reads from one sample: {ids}. "
            "If they are, these predictions say nothing about the accuracy of the model."
        )
        notes.append((text, True))
    if (unknown := len(summary.train_N) + len(summary.validation_N) - len(places)) > 0:
        text = (
            f"An earlier version stored this model without the reads of {unknown} of its samples: "
            "whether they are here under other ids is not known."
        )
        notes.append((text, False))
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
    notes.append((far, bool(far_N.mean() > MANY_FAR) and not by_chance))
    columns: dict[str, object] = {
        "split": split,
        "known_reads": reads_N,
        "distance": distances_N,
        "unlike_training": np.where(far_N, "yes", "no"),
    }
    return Comparison(columns, tuple(notes))


def trained_subjects(
    training: TrainingSummary,
    tokens_TL: Tokens,
    study: Study,
    column: str,
    names: Sequence[str],
    values: GroupValues,
) -> npt.NDArray[np.bool_]:
    """Return which samples are of subjects that trained a model, bool [N].

    Args:
        training, tokens_TL: the training samples of the model, and the sequences of their ASVs.
        study: N samples.
        column, names: column of the subjects, and its value of each sample; "" where missing.
        values: whether subjects of equal names are the same.
    """
    hashes_N = hash_ids(names)
    if training.subjects_N is None:
        warn(
            "Whether subjects of these samples trained the model is not known: it was trained "
            "without --group-column, or by an earlier version."
        )
        return np.zeros(len(names), dtype=np.bool_)
    same_N: npt.NDArray[np.bool_] = np.isin(hashes_N, training.subjects_N)
    same_N &= np.array(names, dtype=str) != ""
    if values == "auto" and same_N.any():
        length = min(_median_length(study.tokens_FL), training.plain.length)
        stored, places = training.abundances(tokens_TL, length)
        here = Abundances.of(study, length)
        both = [hashes.astype(str).tolist() for hashes in (training.subjects_N[places], hashes_N)]
        values = "same" if stored.same_names(here, both) else "distinct"
        if values == "distinct":
            info(
                f"Values of '{column}' that training samples have too are different subjects by "
                f"their samples (else add --group-values same): "
                f"{first_few(sorted({names[row] for row in np.flatnonzero(same_N).tolist()}))}."
            )
    return same_N & (values == "same")


def hash_ids(ids: Sequence[str] | npt.NDArray[np.object_]) -> Rows:
    """Return a hash of each name, int64 [N]."""
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
