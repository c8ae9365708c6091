"""Data about the training samples of an ensemble, in its checkpoint, to compare new samples with.

The distance of a sample is that of the kernel estimator, whether or not the kernel is a member: the
Euclidean distance in its feature space. The final members are fitted to all labelled samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aam.contract import schema
from aam.contract.schema import Mismatch
from aam.data.batches import BatchPlan
from aam.data.splits import Split
from aam.data.study import Study
from aam.inference import training_summary
from aam.inference.training_summary import (
    QUANTILE,
    TrainingSummary,
    mean_of_nearest,
    reference_rows,
    summarize,
)
from aam.members.base import F64, Rows, Samples
from aam.members.kernel import Kernel
from aam.members.kernel_inputs import KernelInputs, Landmarks
from aam.members.relations import AsvRelations
from aam.serialization.arrays import to_arrays, to_tensors


@dataclass(frozen=True)
class TrainingData:
    """Summary of the training samples, and some of them with their log abundances.

    Attributes:
        plan: seed and rarefaction depth of the richness; the members read all reads.
        summary: without embeddings.
        landmarks: the reference samples of the summary.
    """

    plan: BatchPlan
    summary: TrainingSummary
    landmarks: Landmarks

    def distances(self, inputs: KernelInputs) -> F64:
        """Return the distance from the nearest landmarks, relative to the limit, float64 [N]."""
        distances_N = _neighbour_distances(self.landmarks, inputs) / max(self.summary.limit, 1e-12)
        return distances_N.numpy()

    def stored(self) -> dict[str, Any]:
        """Return plain values, tensors, and the arrays of the landmarks."""
        return {
            "plan": dataclasses.asdict(self.plan),
            "summary": vars(self.summary),
            "landmarks": to_tensors(self.landmarks.arrays()),
        }


def describe(
    study: Study,
    relations: AsvRelations,
    splits: Sequence[Split],
    groups_N: Rows,
    plan: BatchPlan,
) -> TrainingData:
    """Describe the samples of the splits, to all of which the final members are fitted.

    The limit is that of new groups: a sample is compared with the samples of other groups.

    Args:
        study: contains the samples.
        relations: of the ASVs of the study.
        splits: of the samples.
        groups_N: group of each sample of the study; every sample its own without groups.
        plan: seed and rarefaction depth.
    """
    rows = np.unique(np.concatenate([r for s in splits for r in vars(s).values()]))
    rows_R = reference_rows(rows, plan.seed)
    reference = Samples.of(study.table.take_samples(rows_R), relations.tokens_FL)
    inputs = Kernel(clades=False).read(reference, relations)
    landmarks = Landmarks.of(inputs, np.arange(len(rows_R)))
    same_RR = groups_N[rows_R, None] == groups_N[rows_R]
    limit = float(_neighbour_distances(landmarks, inputs, same_RR).quantile(QUANTILE))
    none = np.empty(0, dtype=np.int64)
    no_embeddings = np.empty((len(rows_R), 0), dtype=np.float32)
    summary = summarize(study, Split(rows, none, none), plan, rows_R, no_embeddings, limit)
    return TrainingData(plan, summary, landmarks)


def parse(stored: Any, asvs: int) -> TrainingData:
    """Validate the data in a checkpoint of a study of `asvs` ASVs.

    Raises:
        Mismatch: an entry is missing, or of another type, shape or number of samples.
    """
    entries: dict[str, Any] = schema.parse(
        {"plan": BatchPlan, "summary": dict[str, Any], "landmarks": Any}, stored, "training"
    )
    summary = training_summary.parse(entries["summary"], 0)
    landmarks = Landmarks.restore(to_arrays(entries["landmarks"], "training.landmarks"), asvs)
    assert summary is not None
    if len(landmarks.norms_M) != len(summary.richness_R):
        raise Mismatch("training.landmarks and training.richness_R differ in their samples")
    return TrainingData(entries["plan"], summary, landmarks)


def _neighbour_distances(
    landmarks: Landmarks, inputs: KernelInputs, without_NM: npt.NDArray[np.bool_] | bool = False
) -> torch.Tensor:
    """Return the mean distance of samples from their nearest landmarks, float64 [N].

    Pairs that are marked in `without_NM` are left out.
    """
    squared_NM = landmarks.squared_distances(inputs, landmarks.kernel(inputs))
    return mean_of_nearest(torch.from_numpy(np.where(without_NM, np.inf, np.sqrt(squared_NM))))
