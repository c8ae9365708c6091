"""Cost of a training: CPU time and peak memory of the members that are fitted in memory.

Each dominating step has the order of its arithmetic and a constant:

    kernel    an eigendecomposition for each sum of kernels, and leaving out groups one by one: n^3
              and n^2 times the samples of a group; the relations of all pairs of ASVs: F^2
    forest    trees split on counts above 0 alone, deeper with more samples: entries times sqrt(n)
    others    imports and pictures; learning curve, importance and scores are 0.3 of the members

The constants were fitted to nine runs of `aam train` on parts of three public studies of 16S, on
two busy cores of an AMD EPYC: Ravel 2011 (394 samples, 525 ASVs), ECAM (Qiita 10249; 300 and 741
samples, 500 to 2,002 ASVs) and an oral study of Qiita (600 to 2,532 samples, 1,000 to 2,500 ASVs).
The time was 0.8 to 1.25 times the estimate, the peak of the memory 0.9 to 1.15 times. On all 2,537
samples and 5,574 ASVs of the last one each member took 1.4 times as long as estimated
(docs/experiments/ensemble.md).

N samples, F ASVs, n samples in training.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from aam.members.folds import Folds, training_rows
from aam.members.kernel import CLADE_SHARES, SPREADS
from aam.members.kernel import MEMBER as KERNEL
from aam.members.relations import MOST_LINKED

_START_SECONDS = 5.0
_OTHERS = 1.3
_EIGEN_SECONDS = 3e-10
_GROUP_SECONDS = 3e-9
_CLASS_SECONDS = 2e-9
_PAIR_SECONDS = 2e-7
_ENTRY_SECONDS = 4.2e-6

_START_BYTES = 190e6
_SAMPLE_PAIR_BYTES = 80
_PAIR_BYTES = 12
_BRANCH_BYTES = 146
_BLOCK_BYTES = 12
_BLOCK = 1024


@dataclass(frozen=True)
class TrainingCost:
    """Estimated cost of a training.

    Attributes:
        cpu_seconds: CPU time of all threads together.
        peak_bytes: largest resident memory of the process.
    """

    cpu_seconds: float
    peak_bytes: float


def estimate(members: Collection[str], folds: Folds, asvs: int, entries: int) -> TrainingCost:
    """Estimate the cost of training members that are fitted in memory.

    Args:
        members: names; others than the kernel and the forest cost nothing here.
        folds: labels and splits.
        asvs: number of ASVs F.
        entries: counts above 0 of all samples.

    Returns:
        CPU-seconds and bytes, including those of the report.
    """
    samples = len(folds.labels.values)
    sizes = [len(training_rows(split)) for split in folds.splits] + [samples]
    classes = max(1, len(folds.labels.classes))
    seconds, peak = 0.0, _START_BYTES
    if "kernel" in members:
        group = samples / len(set(folds.labels.groups.tolist()))
        linked = asvs <= MOST_LINKED and KERNEL.clades
        fits = (len(CLADE_SHARES) if linked else 1) + len(SPREADS) + (classes == 1)
        # The last size is the fit to all samples, for new ones.
        for size in sizes:
            landmarks = min(size, KERNEL.largest)
            by_group = _GROUP_SECONDS * group * (group > 1) + _CLASS_SECONDS * (classes - 1)
            seconds += fits * size * landmarks * (_EIGEN_SECONDS * landmarks + by_group)
        seconds += _PAIR_SECONDS * asvs**2
        peak += _SAMPLE_PAIR_BYTES * samples * min(samples, KERNEL.largest)
        if linked:
            peak += _BRANCH_BYTES * min(samples, _BLOCK) * asvs + _PAIR_BYTES * asvs**2
        else:
            peak += _BLOCK_BYTES * (samples + _BLOCK) * asvs
    if "forest" in members:
        share = entries / samples
        seconds += sum(_ENTRY_SECONDS * size * share * math.sqrt(size) for size in sizes)
    return TrainingCost(_START_SECONDS + _OTHERS * seconds, peak)
