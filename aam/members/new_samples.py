"""New samples: how much the samples of a table resemble the training data of a model.

`docs/new_samples.md` explains the columns and sentences. The distance of a sample is its Euclidean
distance, in the feature space of the kernel estimator, from the nearest of some training samples,
the landmarks, whether or not the kernel is a member.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.stats import betabinom

from aam.arrays import F32, F64, Arrays, Rows, Tokens
from aam.console import info, warn
from aam.contract.errors import DataError, first_few
from aam.contract.options.groups import GroupValues
from aam.contract.records import Count, Mismatch, NonNegative, Positive, Seed
from aam.data.identity import Abundances
from aam.data.sequences import hash_of, hash_sequences
from aam.data.study import Study
from aam.data.table import rarefy
from aam.evaluation.splits import Split
from aam.members.kernel import Kernel, KernelInputs, Landmarks
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.nucleotide_codes import FINEST, PAD

MAX_SAMPLES = 1000
"""Training samples whose richness and log abundances are stored as landmarks."""

NEIGHBOURS = 5
QUANTILE = 0.95
POSITIONS = 64
"""First positions of the sequences whose nucleotide frequencies identify the region."""

SAME_REGION = 0.5
"""Lowest correlation of nucleotide frequencies within a region; between regions it is about 0."""

_EQUAL = 0.5
"""Fraction of the known ASVs with the same length as in training, below which a warning is due."""

SAME_SAMPLE = 0.5
"""Fraction of known reads above which a sample with a known id is the training sample."""

MANY_FAR = 0.15
"""Fraction of the samples beyond the limit that deserves a warning; 5 % are expected."""

CHANCE = 0.01
"""Probability of so many samples beyond the limit, below which they are no chance finding."""

_BLOCK = 512

_LANDMARKS, _OTHERS = "landmarks/", "others/"
_OF_SAMPLES = "subjects_N", "reads_N"
_READER = Kernel(clades=False)


@dataclass(frozen=True)
class SummaryNumbers:
    """Numbers of a training summary."""

    seed: Seed  # seed of the landmarks and of rarefaction
    rarefy_depth: Count  # reads at which the richness is compared; 0 for all
    length: Positive  # median number of nucleotides of an ASV
    limit: NonNegative  # `QUANTILE` of the distances of landmarks from landmarks of other groups


@dataclass(frozen=True)
class KnownAsvs:
    """ASVs of a table that occur in training samples."""

    known_F: npt.NDArray[np.bool_]  # whether each ASV occurs there
    length: int | None  # nucleotides that are compared if lengths differ; None for all
    compared_by: str  # end of the sentence about them, if lengths differ
    # warnings if the sequences begin elsewhere than in training, or have other lengths
    region: tuple[str, ...]


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
    tokens_TL: Tokens  # sequences of the training study, not all of which are in training samples
    # train_N, validation_N: hashes of the sample ids
    train_N: Rows
    validation_N: Rows
    asvs_F: Rows  # hashes of the sequences of the ASVs in training samples
    frequencies_L4: F32  # frequency of A, C, G and T at each of the first positions
    richness_R: Rows  # ASVs of each landmark at the rarefaction depth
    landmarks: Landmarks  # samples with which new ones are compared
    # log abundances of the samples that are no landmarks, float32 [N - R, F]; None if an earlier
    # version stored the model
    rest_NF: sparse.csr_array | None
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

        `refitted`: a member is fitted to the samples of all splits; otherwise models of the splits
        are averaged, and validation samples only chose an epoch.
        """
        fitted = [split.rows if refitted else split.train for split in splits]
        train = np.unique(np.concatenate(fitted))
        checked = np.unique(np.concatenate([split.validation for split in splits]))
        checked = np.setdiff1d(checked, train)
        rows_R = _draw(train, seed)
        inputs = _READER.read(Samples.of(study.take_samples(rows_R)), relations)
        landmarks = Landmarks.of(inputs, np.arange(len(rows_R)))
        # The limit is for new groups: distances within a group are left out.
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
            study.tokens_FL,
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
        """Compute the inputs of `distances`, and of a kernel model."""
        return _READER.read(samples, relations)

    def distances(self, inputs: KernelInputs) -> F64:
        """Return the distance from the nearest landmarks, relative to the limit, float64 [N]."""
        # The limit is 0 where all training samples are equal.
        limit = max(self.plain.limit, 1e-12)
        return _neighbour_distances(self.landmarks, inputs) / limit

    def arrays(self) -> Arrays:
        """Return the arrays, by name."""
        arrays = {f"{_LANDMARKS}{k}": array for k, array in self.landmarks.arrays().items()}
        if self.rest_NF is not None:
            stored = Landmarks(self.rest_NF, np.zeros(self.rest_NF.shape[0])).arrays()
            arrays |= {f"{_OTHERS}{name}": array for name, array in stored.items()}
        for name in _OF_SAMPLES:
            if vars(self)[name] is not None:
                arrays[name] = vars(self)[name]
        return {name: vars(self)[name] for name in _ARRAYS} | arrays

    @classmethod
    def restore(cls, plain: SummaryNumbers, arrays: Arrays, tokens_TL: Tokens) -> TrainingSummary:
        """Build the summary from its arrays, and ignore other arrays; raises Mismatch."""
        ranges = {name: arrays.get(name, np.empty(0)) for name in _ARRAYS}
        for name, array in ranges.items():
            shape = array.shape[:1] + (4,) * name.endswith("4")
            if array.dtype != _ARRAYS[name] or array.shape != shape:
                raise Mismatch(f"training.{name} is {array.dtype} {array.shape}")
            if not (array.size or name == "validation_N") or not np.isfinite(array).all():
                raise Mismatch(f"training.{name} is empty or not finite")

        def restored(prefix: str) -> Landmarks:
            state = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
            return Landmarks.restore(state, len(tokens_TL))

        landmarks = restored(_LANDMARKS)
        if len(ranges["richness_R"]) != len(landmarks.norms_R):
            raise Mismatch("training.richness_R and the landmarks differ")
        samples = len(ranges["train_N"]) + len(ranges["validation_N"])
        other_samples = restored(_OTHERS).weights if f"{_OTHERS}starts" in arrays else None
        if other_samples is not None and len(landmarks.norms_R) + other_samples.shape[0] != samples:
            raise Mismatch("the numbers of training samples differ")
        of_samples: dict[str, Any] = {name: arrays.get(name) for name in _OF_SAMPLES}
        for name, values in of_samples.items():
            if values is not None and (values.dtype != np.int64 or values.size != samples):
                raise Mismatch(f"training.{name} is {values.dtype} {values.shape}")
        return cls(
            plain, tokens_TL, landmarks=landmarks, rest_NF=other_samples, **ranges, **of_samples
        )

    def abundances(self, length: int | None) -> tuple[Abundances, Rows]:
        """Return the abundances of the samples whose reads are stored, and their rows.

        Sequences are cut to `length`.
        """
        trained = len(self.train_N)
        landmark_rows = _draw(np.arange(trained), self.plain.seed)
        weights, places = self.landmarks.weights, landmark_rows
        if self.rest_NF is not None:
            weights = sparse.vstack([weights, self.rest_NF], format="csr")
            places = np.arange(trained + len(self.validation_N))
            places = np.concatenate([landmark_rows, np.delete(places, landmark_rows)])
        shares = (np.power(10, weights.data.astype(np.float64)) - 1) / FINEST
        if self.reads_N is not None:
            shares *= np.repeat(self.reads_N[places], np.diff(weights.indptr))
        counts = sparse.csr_array((shares, weights.indices, weights.indptr), weights.shape)
        return Abundances.from_counts(counts, hash_sequences(self.tokens_TL[:, :length])), places

    def known_asvs(self, study: Study, required: bool) -> KnownAsvs:
        """Find the ASVs of a table that occur in training samples; refuse none if `required`."""
        table_length, training_length = _median_length(study.tokens_FL), self.plain.length
        region, common = list[str](), None
        if table_length == training_length:
            known_F, by = np.isin(hash_sequences(study.tokens_FL), self.asvs_F), ""
        else:  # Reads that were cut to another length: their common length is compared.
            common = min(table_length, training_length)
            trained_TL = self.tokens_TL[np.isin(hash_sequences(self.tokens_TL), self.asvs_F)]
            known_hashes = hash_sequences(trained_TL[:, :common])
            known_F = np.isin(hash_sequences(study.tokens_FL[:, :common]), known_hashes)
            by = (
                f"; ASVs are compared over {common} nucleotides (here they have {table_length}, "
                f"in training {training_length})"
            )
            equal_F = np.isin(hash_sequences(study.tokens_FL), self.asvs_F)
            if equal_F.sum() < _EQUAL * known_F.sum():
                region.append(
                    f"Only {equal_F.sum()} of {known_F.sum()} known ASVs have the same length as "
                    "in training: the forest does not recognize the others, and the kernel takes "
                    "them for similar ASVs. Cut both tables to one length (`aam prepare "
                    "--trim-length`) and train again."
                )
        # Nucleotide frequencies at each position identify the region, even without a common ASV.
        here_L4, there_L4 = _nucleotide_frequencies(study.tokens_FL), self.frequencies_L4
        shared = min(len(here_L4), len(there_L4))
        frequencies = here_L4[:shared].ravel(), there_L4[:shared].ravel()
        with np.errstate(invalid="ignore", divide="ignore"):  # constant frequencies have none
            correlation = float(np.nan_to_num(np.asarray(np.corrcoef(*frequencies))[0, 1]))
        elsewhere = correlation < SAME_REGION
        if required and not known_F.any():
            reason = ", of another region, primer or direction" if elsewhere else ""
            raise DataError(
                "No ASV of the table occurs in the training data: predictions would mean nothing",
                f"{len(known_F)} ASVs in {len(study.table.sample_ids)} samples{reason}",
                "use a table of the same region and primers, or predict all the same with --force",
            )
        if elsewhere:
            region.append(
                "The sequences are of another region, primer or direction than in training: the "
                f"nucleotide frequencies of the first {shared} positions have a correlation of "
                f"{correlation:.2f} (above 0.9 within a region). The predictions are meaningless."
            )
        return KnownAsvs(known_F, common, by, tuple(region))

    def compare(self, study: Study, asvs: KnownAsvs, distances_N: F64) -> dict[str, object]:
        """Compare the samples of a study with the training samples, and print the result.

        Return columns of the table of predictions, each [N]: split (train, validation or new),
        known_reads (0 to 1), distance, and unlike_training (yes or no). `distances_N` come from
        `distances`: a sample above 1 is unlike the training samples.
        """
        samples = len(study.table.sample_ids)
        weights_F, blocks = asvs.known_F.astype(np.float64), _blocks(study, np.arange(samples))
        known_N = np.concatenate([block @ weights_F for block in blocks])
        reads_N = known_N / np.maximum(study.reads, 1)
        split = self._sets(study, asvs.length, reads_N)
        share = known_N.sum() / study.reads.sum()
        info(
            f"Known ASVs: {weights_F.mean():.1%} of {len(weights_F)}, with {share:.1%} of the "
            f"reads{asvs.compared_by}.",
            is_warning=bool(share < 0.5),
        )
        for text in asvs.region:
            warn(text)
        seed, depth = self.plain.seed, self.plain.rarefy_depth
        rows = _draw(np.arange(samples), seed)
        richness_here = float(np.median(_rarefied_richness(study, seed, depth, rows)))
        low, middle, high = np.quantile(self.richness_R, (0.05, 0.5, 0.95)).tolist()
        at = f" at {depth} reads" if depth else ""
        info(
            f"Richness{at}: median {richness_here:.0f} ASVs, in training {middle:.0f} "
            f"(90 % from {low:.0f} to {high:.0f}).",
            is_warning=not low <= richness_here <= high,
        )
        # The distance compares sequences, and in any two regions some resemble each other.
        far_N = (distances_N > 1) | (known_N == 0)
        by_chance = _is_chance(int(far_N.sum()), samples, len(self.richness_R))
        info(
            f"{int(far_N.sum())} of {samples} samples are unlike the training samples (column "
            f"'unlike_training'); {1 - QUANTILE:.0%} are expected.",
            is_warning=bool(far_N.mean() > MANY_FAR) and not by_chance,
        )
        return {
            "split": split,
            "known_reads": reads_N,
            "distance": distances_N,
            "unlike_training": np.where(far_N, "yes", "no"),
        }

    def _sets(self, study: Study, length: int | None, reads_N: F64) -> list[str]:
        """Return the set of each sample (train, validation or new); print what they overlap.

        `length` nucleotides of each ASV are compared; `reads_N` are the shares of known reads.
        """
        # A sample with equal reads is a training sample, whatever its id. Whole sequences are
        # compared too: a cut sequence may stand for several ASVs, some of which a filter removed.
        pairs = np.empty((0, 2), dtype=np.int64)
        for compared in dict.fromkeys((None, length)):
            stored, places = self.abundances(compared)
            here_N = Abundances.of(study, compared)
            pairs = np.concatenate([pairs, stored.equal_pairs(here_N)])
        # Samples with equal ids are one sample, unless their reads differ (two studies may both
        # have an S1) or most of their reads are unknown ASVs.
        ids_N, trained = hash_ids(study.table.sample_ids), [self.train_N, self.validation_N]
        of_training_N = np.concatenate(trained)
        names = [hashes.astype(str).tolist() for hashes in (of_training_N[places], ids_N)]
        named_N = np.isin(ids_N, of_training_N) & (reads_N > SAME_SAMPLE)
        if named_N.any() and not stored.same_names(here_N, names):
            info(
                f"{int(named_N.sum())} samples have the id of a training sample and other reads: "
                "they count as new."
            )
            named_N[:] = False
        trained_N, checked_N = (np.isin(ids_N, part_N) & named_N for part_N in trained)
        trains = places[pairs[:, 0]] < len(self.train_N)
        renamed = np.setdiff1d(pairs[:, 1], np.flatnonzero(trained_N | checked_N))
        trained_N[pairs[trains, 1]] = True
        checked_N[pairs[~trains, 1]] = True
        checked_N &= ~trained_N
        overlaps = [
            f"{int(rows_N.sum())} of {len(ids_N)} samples {did}"
            for rows_N, did in ((trained_N, "trained this model"), (checked_N, "chose its epoch"))
            if rows_N.any()
        ]
        if overlaps:
            by = f", {len(renamed)} with another id but equal reads" if len(renamed) else ""
            warn(
                f"{', '.join(overlaps)}{by} (column 'split'): these predictions say nothing about "
                "its accuracy. Predictions of held-out samples are in predictions.tsv of the run."
            )
        in_training = np.flatnonzero(trained_N | checked_N)
        alike = np.setdiff1d(stored.alike_pairs(here_N)[:, 1], in_training)
        if len(alike):
            ids = first_few(study.table.sample_ids[row] for row in alike.tolist())
            warn(
                f"Samples that may be sequenced again from a training sample: {ids}. They resemble "
                "it as much as two draws of reads from one sample do. If they are the same sample, "
                "these predictions say nothing about the accuracy of the model."
            )
        if (unknown := len(self.train_N) + len(self.validation_N) - len(places)) > 0:
            info(
                f"This model was stored without the reads of {unknown} of its samples, by an "
                "earlier version: they are recognized by their ids only."
            )
        return np.where(trained_N, "train", np.where(checked_N, "validation", "new")).tolist()

    def has_subjects(
        self, study: Study, column: str, names: Sequence[str], values: GroupValues
    ) -> npt.NDArray[np.bool_]:
        """Return whether the subject of each of N samples is a subject of the training, bool [N].

        `names` has the subject of each sample, its value of `column`, or "" where it is missing;
        `values` decides whether subjects of equal names are the same.
        """
        hashes_N = hash_ids(names)
        if self.subjects_N is None:
            warn(
                "The model was trained without --group-column, or by an earlier version: samples "
                "whose subjects trained it cannot be left out."
            )
            return np.zeros(len(names), dtype=np.bool_)
        same_N: npt.NDArray[np.bool_] = np.isin(hashes_N, self.subjects_N)
        same_N &= np.array(names, dtype=str) != ""
        if values == "auto" and same_N.any():
            length = min(_median_length(study.tokens_FL), self.plain.length)
            stored, places = self.abundances(length)
            abundances = Abundances.of(study, length)
            subjects = self.subjects_N[places], hashes_N
            names_of = [hashes_n.astype(str).tolist() for hashes_n in subjects]
            values = "same" if stored.same_names(abundances, names_of) else "distinct"
            if values == "distinct":
                info(
                    f"Values of '{column}' that also occur in training count as other subjects, "
                    f"since their samples differ (--group-values same if they are the same): "
                    f"{first_few(sorted({names[row] for row in np.flatnonzero(same_N).tolist()}))}."
                )
        return same_N & (values == "same")


def _rank(samples: int) -> int:
    """Return the rank, from 1, of the limit among the sorted distances of training samples.

    A new sample of the same kind has each rank with the same probability, so it exceeds the limit
    with a probability of at most 1 - `QUANTILE` (split conformal prediction, Vovk et al. 2005).
    With fewer than 19 samples the limit is the largest distance. A quantile that interpolates
    between ranks is exceeded more often: by 10 % with 20 samples.
    """
    return min(math.ceil((samples + 1) * QUANTILE), samples)


def _is_chance(far: int, samples: int, trained: int) -> bool:
    """Return whether the number of samples beyond the limit is compatible with chance.

    The fraction beyond a limit of rank k among n training samples follows Beta(n + 1 - k, k), so
    the number is beta-binomial.
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
    return sums_N / finite_NK.sum(axis=1).clip(min=1)


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
        rarefied = rarefy(counts, rarefy_depth, study.table.sample_ids[row], seed, 0)
        richness.append(int((rarefied > 0).sum()))
    return np.array(richness, dtype=np.int64)
