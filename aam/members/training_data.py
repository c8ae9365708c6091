"""Data about the training samples in a model, to compare new samples with.

The distance of a sample is that of the kernel estimator, whether or not the kernel is a member: the
Euclidean distance in its feature space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.contract.records import Mismatch
from aam.data.splits import Split
from aam.data.study import Study
from aam.inference import new_samples
from aam.inference.new_samples import (
    QUANTILE,
    SummaryNumbers,
    TrainingSummary,
    mean_of_nearest,
    reference_rows,
    summarize,
)
from aam.members.base import F64, Arrays, Rows, Samples
from aam.members.kernel import Kernel
from aam.members.kernel_features import KernelInputs, Landmarks
from aam.members.relations import AsvRelations

_LANDMARKS = "landmarks/"

_AT_ONCE = 4096
"""Samples whose similarities to all ASVs of the training study are in memory."""

_READER = Kernel(clades=False)


@dataclass(frozen=True)
class TrainingData:
    """Summary of the training samples, and some of them with their log abundances.

    Attributes:
        summary: without names and reads.
        landmarks: the reference samples of the summary.
    """

    summary: TrainingSummary
    landmarks: Landmarks

    def distances(self, samples: Samples, relations: AsvRelations) -> F64:
        """Return the distance from the nearest landmarks, relative to the limit, float64 [N]."""
        distances = []
        for start in range(0, samples.counts.shape[0], _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, samples.counts.shape[0]))
            inputs = _READER.read(samples.take(rows), relations)
            distances.append(_neighbour_distances(self.landmarks, inputs))
        # The limit is 0 where all training samples are equal.
        distances_N: F64 = np.concatenate(distances) / max(self.summary.plain.limit, 1e-12)
        return distances_N

    def arrays(self) -> Arrays:
        """Return the arrays of the summary and of the landmarks."""
        landmarks = {f"{_LANDMARKS}{k}": array for k, array in self.landmarks.arrays().items()}
        return self.summary.arrays() | landmarks


def describe(
    study: Study,
    relations: AsvRelations,
    splits: Sequence[Split],
    groups_N: Rows,
    seed: int,
    rarefy_depth: int,
    refitted: bool,
) -> TrainingData:
    """Describe the training samples of the final members.

    The limit is that of new groups: a sample is compared with the samples of other groups.

    Args:
        study: contains the samples.
        relations: relations of the ASVs of the study.
        splits: splits of the samples.
        groups_N: group of each sample of the study; every sample its own without groups.
        seed, rarefy_depth: see `SummaryNumbers`.
        refitted: whether a member is fitted to the samples of all splits; otherwise models of the
            splits are averaged, and a sample that trained none of them may have chosen an epoch.
    """
    parts = [rows for split in splits for rows in vars(split).values()]
    train = np.unique(np.concatenate(parts if refitted else [split.train for split in splits]))
    none = np.empty(0, dtype=np.int64)
    checked = np.setdiff1d(np.concatenate([none, *(split.validation for split in splits)]), train)
    rows_R = reference_rows(train, seed)
    reference = Samples.of(study.take_samples(rows_R))
    inputs = _READER.read(reference, relations)
    landmarks = Landmarks.of(inputs, np.arange(len(rows_R)))
    same_RR = groups_N[rows_R, None] == groups_N[rows_R]
    limit = float(np.quantile(_neighbour_distances(landmarks, inputs, same_RR), QUANTILE))
    split = Split(train, checked, none)
    return TrainingData(summarize(study, split, rows_R, seed, rarefy_depth, limit), landmarks)


def restore(
    plain: SummaryNumbers, arrays: Mapping[str, npt.NDArray[Any]], asvs: int
) -> TrainingData:
    """Validate the data in a model of a study of `asvs` ASVs."""
    summary = new_samples.restore(plain, arrays)
    of_landmarks = {
        name.removeprefix(_LANDMARKS): array
        for name, array in arrays.items()
        if name.startswith(_LANDMARKS)
    }
    landmarks = Landmarks.restore(of_landmarks, asvs)
    if len(landmarks.norms_R) != len(summary.richness_R):
        raise Mismatch("training.landmarks and training.richness_R differ in their samples")
    return TrainingData(summary, landmarks)


def _neighbour_distances(
    landmarks: Landmarks, inputs: KernelInputs, without_NR: npt.NDArray[np.bool_] | bool = False
) -> F64:
    """Return the mean distance of samples from their nearest landmarks, float64 [N].

    Pairs that are marked in `without_NR` are left out.
    """
    squared_NR = landmarks.squared_distances(inputs, landmarks.kernel(inputs))
    return mean_of_nearest(np.where(without_NR, np.inf, np.sqrt(squared_NR)))
