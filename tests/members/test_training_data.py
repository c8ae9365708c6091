"""Distances of samples from the training samples of an ensemble."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.contract.options.groups import TableOptions
from aam.data.study import load_study
from aam.evaluation.splits import Split
from aam.members.new_samples import TrainingSummary
from aam.members.relations import AsvRelations, mismatches, similarity
from aam.members.samples import Samples
from aam.nucleotide_codes import FINEST


def test_distances_are_those_of_the_kernel_and_the_limit_leaves_groups_out(
    study_dir: Path,
) -> None:
    """The definition in a few lines: 24 samples in groups of 4 trained, 12 are new."""
    study = load_study(TableOptions(table=study_dir / "table.biom"))
    rows, new, none = np.arange(24), np.arange(24, 36), np.empty(0, dtype=np.int64)
    relations = AsvRelations(study.tokens_FL)
    data = TrainingSummary.of(
        study, relations, [Split(rows, none, none)], np.arange(36) // 4, None, 1, 400, refitted=True
    )
    samples = Samples.of(study)
    weights = np.log10(1 + FINEST * samples.relative.toarray())
    kernel = weights @ similarity(mismatches(study.tokens_FL, study.tokens_FL)) @ weights.T
    own = np.diag(kernel)
    distances = np.sqrt((own[:, None] - 2 * kernel + own).clip(min=0))
    others = distances[:24, :24].copy()
    others[rows[:, None] // 4 == rows // 4] = np.inf
    # The distance at place 24 of 24: a new sample is beyond it with at most 5 % (conformal).
    limit = np.sort(others)[:, :5].mean(axis=1).max()
    assert data.plain.limit == pytest.approx(limit, rel=1e-4)
    expected = np.sort(distances[24:, :24])[:, :5].mean(axis=1) / limit
    found = data.distances(data.read(samples.take(new), relations))
    assert found == pytest.approx(expected, rel=1e-4)
