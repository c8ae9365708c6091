"""New samples: how much the samples of a table resemble the training data of a model.

`docs/new_samples.md` explains the columns and sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.console import info, warn
from aam.contract.errors import UsageError
from aam.data.conditions import rows_where
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.metadata import read_metadata
from aam.data.study import Study
from aam.inference.training_summary import (
    PREFIX,
    QUANTILE,
    TrainingSummary,
    blocks,
    hash_ids,
    hash_sequences,
    median_length,
    nucleotide_frequencies,
    rarefied_richness,
    reference_rows,
)

SAME_REGION = 0.5
"""Correlation of the nucleotide frequencies of one region; of two regions it is about 0."""

Note = tuple[str, bool]
"""Sentence for the user, and whether it is a warning."""

SAME_SAMPLE = 0.5
"""Part of the reads that are known, above which a sample of a known id is that sample."""

MANY_FAR = 0.15
"""Part of the samples beyond the limit, 5 % of which are expected, that deserves a warning."""


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


def compare(
    summary: TrainingSummary, study: Study, distances_N: npt.NDArray[np.float64]
) -> Comparison:
    """Compare the samples of a study with the training data of a model.

    Args:
        summary: summary of the training samples.
        study: the N samples.
        distances_N: float64, distance of each sample from the training samples, relative to the
            limit: above 1 a sample is unlike them.

    Returns:
        Columns for the table of predictions, and sentences for the user.
    """
    reads, prevalence = _known_asvs(summary, study)
    split, seen = _training_samples(summary, study, reads)
    far = distances_N > 1
    columns: dict[str, object] = {
        "split": split,
        "known_reads": reads,
        "distance": distances_N,
        "unlike_training": np.where(far, "yes", "no"),
    }
    notes = [*seen, prevalence, *_region(summary, study), _richness(summary, study), _far(far)]
    return Comparison(columns, tuple(notes))


def _training_samples(
    summary: TrainingSummary, study: Study, reads_N: npt.NDArray[np.float64]
) -> tuple[list[str], list[Note]]:
    """Return the split of each sample (train, validation, new), and a warning about the first.

    A sample of the same id whose reads are unknown is of another study.
    """
    ids_N, same_N = hash_ids(study.table.sample_ids), reads_N > SAME_SAMPLE
    trained_N = np.isin(ids_N, summary.train_N) & same_N
    checked_N = np.isin(ids_N, summary.validation_N) & same_N & ~trained_N
    trained, checked = int(trained_N.sum()), int(checked_N.sum())
    split = np.where(trained_N, "train", np.where(checked_N, "validation", "new")).tolist()
    if not trained + checked:
        return split, []
    parts = []
    if trained:
        parts.append(f"{trained} of {len(ids_N)} samples trained this model")
    if checked:
        parts.append(f"{checked} of {len(ids_N)} samples chose its epoch")
    return split, [
        (
            f"{', '.join(parts)} (by sample id; see column 'split'): their predictions do not "
            "measure it. The run folder has those of held-out samples in predictions.tsv.",
            True,
        )
    ]


def _known_asvs(summary: TrainingSummary, study: Study) -> tuple[npt.NDArray[np.float64], Note]:
    """Return the fraction of known reads of each sample, and a sentence about known ASVs."""
    here, there = median_length(study.tokens_FL), summary.plain.length
    if here == there:
        known_F = np.isin(hash_sequences(study.tokens_FL), summary.asvs_F)
        by = ""
    else:
        known_F = np.isin(hash_sequences(study.tokens_FL[:, :PREFIX]), summary.prefixes_F)
        by = f", compared by {PREFIX} nucleotides: here they have {here}, in training {there}"
    weights_F, rows = known_F.astype(np.float64), np.arange(len(study.table.sample_ids))
    reads_N = study.reads
    known_N = np.concatenate([block @ weights_F for block in blocks(study, rows)])
    share = known_N.sum() / reads_N.sum()
    number = f"{weights_F.mean():.1%} of {len(weights_F)}"
    note = f"Known ASVs: {number}, with {share:.1%} of the reads{by}."
    return known_N / np.maximum(reads_N, 1), (note, bool(share < 0.5))


def _region(summary: TrainingSummary, study: Study) -> list[Note]:
    """Return a warning if the sequences begin elsewhere than those of training."""
    here_L4, there_L4 = nucleotide_frequencies(study.tokens_FL), summary.frequencies_L4
    shared = min(len(here_L4), len(there_L4))
    both = here_L4[:shared].ravel(), there_L4[:shared].ravel()
    with np.errstate(invalid="ignore", divide="ignore"):  # constant frequencies have none
        correlation = float(np.nan_to_num(np.asarray(np.corrcoef(*both))[0, 1]))
    if correlation >= SAME_REGION:
        return []
    return [
        (
            "The sequences are of another region, primer or direction than those of training: the "
            f"nucleotide frequencies at their first {shared} positions correlate {correlation:.2f} "
            "(above 0.9 within a region). The predictions are meaningless.",
            True,
        )
    ]


def _richness(summary: TrainingSummary, study: Study) -> Note:
    seed, depth = summary.plain.seed, summary.plain.rarefy_depth
    rows = reference_rows(np.arange(len(study.table.sample_ids)), seed)
    here = float(np.median(rarefied_richness(study, seed, depth, rows)))
    low, middle, high = np.quantile(summary.richness_R, (0.05, 0.5, 0.95)).tolist()
    at = f" at {depth} reads" if depth else ""
    note = (
        f"Richness{at}: median {here:.0f} ASVs, in training {middle:.0f} "
        f"(90 % from {low:.0f} to {high:.0f})."
    )
    return note, not low <= here <= high


def _far(far: npt.NDArray[np.bool_]) -> Note:
    note = (
        f"{int(far.sum())} of {len(far)} samples are unlike the training samples (column "
        f"'unlike_training'); {1 - QUANTILE:.0%} are expected."
    )
    if far.mean() <= MANY_FAR:
        return note, False
    return f"{note} The model extrapolates: do not trust its predictions for them.", True
