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
import torch

from aam.console import info, warn
from aam.contract.errors import UsageError
from aam.data.batches import BatchPlan
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
        columns: of the predictions table: split, known_reads, distance, unlike_training.
        notes: sentences for the user.
    """

    columns: dict[str, object]
    notes: tuple[Note, ...]

    def show(self) -> None:
        """Print the notes."""
        for note, warning in self.notes:
            (warn if warning else info)(note)


NO_COMPARISON = Comparison(
    {},
    (
        (
            "The checkpoint is of a run that has not ended and has no data about its training "
            "samples: these samples cannot be compared with them.",
            False,
        ),
    ),
)


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
    training: Sequence[TrainingSummary | None],
    plan: BatchPlan,
    study: Study,
    distances_N: npt.NDArray[np.float64] | None,
) -> Comparison:
    """Compare the samples of a study with the training data of one model or of several folds.

    Args:
        training: summary of each model.
        plan: seed and rarefaction depth of the first model.
        study: the samples.
        distances_N: distance of each sample from the training samples, relative to the limit.
    """
    known = [summary for summary in training if summary is not None]
    if len(known) < len(training) or distances_N is None:
        return NO_COMPARISON
    reads, prevalence = _known_asvs(known, study)
    split, seen = _training_samples(known, study, reads)
    far = distances_N > 1
    columns: dict[str, object] = {
        "split": split,
        "known_reads": reads,
        "distance": distances_N,
        "unlike_training": np.where(far, "yes", "no"),
    }
    region = _region(known[0], study)
    notes = [*seen, prevalence, *region, _richness(known[0], plan, study), _far(far)]
    return Comparison(columns, tuple(notes))


def _training_samples(
    known: Sequence[TrainingSummary], study: Study, reads_N: npt.NDArray[np.float64]
) -> tuple[list[str], list[Note]]:
    """Return the split of each sample (train, validation, new), and a warning about the first.

    A sample of the same id whose reads are unknown is of another study.
    """
    ids_N, models = hash_ids(study.table.sample_ids), len(known)
    same_N = torch.from_numpy(reads_N > SAME_SAMPLE)
    times_N = torch.stack([torch.isin(ids_N, one.train_N) for one in known]).sum(dim=0) * same_N
    checked_N = torch.stack([torch.isin(ids_N, one.validation_N) for one in known]).any(dim=0)
    checked_N &= same_N
    trained, checked = int((times_N > 0).sum()), int((checked_N & (times_N == 0)).sum())
    split = np.where(times_N > 0, "train", np.where(checked_N, "validation", "new")).tolist()
    if not trained + checked:
        return split, []
    parts = []
    if trained:
        each = sorted(set(times_N[times_N > 0].tolist()))
        often = f" ({' or '.join(map(str, each))} of its {models} models each)" * (models > 1)
        parts.append(f"{trained} of {len(ids_N)} samples trained this model{often}")
    if checked:
        parts.append(f"{checked} of {len(ids_N)} samples chose its epoch")
    return split, [
        (
            f"{', '.join(parts)} (by sample id; see column 'split'): their predictions do not "
            "measure it. The run folder has those of held-out samples in predictions.tsv.",
            True,
        )
    ]


def _known_asvs(
    known: Sequence[TrainingSummary], study: Study
) -> tuple[npt.NDArray[np.float64], Note]:
    """Return the fraction of known reads of each sample, and a sentence about known ASVs."""
    here, there = median_length(study.tokens_FL), known[0].length
    if here == there:
        known_F = torch.isin(hash_sequences(study.tokens_FL), torch.cat([k.asvs_F for k in known]))
        by = ""
    else:
        prefixes_F = hash_sequences(study.tokens_FL[:, :PREFIX])
        known_F = torch.isin(prefixes_F, torch.cat([k.prefixes_F for k in known]))
        by = f", compared by {PREFIX} nucleotides: here they have {here}, in training {there}"
    weights_F, rows = known_F.numpy().astype(np.float64), np.arange(len(study.table.sample_ids))
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
    both = torch.stack([here_L4[:shared].flatten(), there_L4[:shared].flatten()])
    correlation = float(torch.corrcoef(both)[0, 1].nan_to_num())
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


def _richness(summary: TrainingSummary, plan: BatchPlan, study: Study) -> Note:
    rows = reference_rows(np.arange(len(study.table.sample_ids)), plan.seed)
    here = float(rarefied_richness(study, plan, rows).double().median())
    there = summary.richness_R.double()
    low, middle, high = there.quantile(
        torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    ).tolist()
    depth = plan.rarefy_depth
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
