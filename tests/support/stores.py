"""Stores for tests: how one is made, compared and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.data.study import Study
from tests.support.commands import aam

USAGE, DATA, NO_INPUT, CANNOT_CREATE = 64, 65, 66, 73


def make(study_dir: Path, folder: Path, *args: object) -> int:
    return aam("prepare", "--table", study_dir / "table.biom", "--output", folder, *args)


def same_study(found: Study, expected: Study) -> None:
    assert tuple(found.table.sample_ids) == tuple(expected.table.sample_ids)
    assert tuple(found.table.feature_ids) == tuple(expected.table.feature_ids)
    rows = np.arange(len(expected.reads))
    one, two = found.table.counts[rows], expected.table.counts[rows]
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(one, part), getattr(two, part))
    assert one.dtype == two.dtype
    assert np.array_equal(found.reads, expected.reads)
    assert np.array_equal(found.table.richness, expected.table.richness)
    assert np.array_equal(found.tokens_FL, expected.tokens_FL)


def refused(capsys: pytest.CaptureFixture[str], status: int, expected: int, *phrases: str) -> None:
    shown = capsys.readouterr().err
    assert status == expected, shown
    sentence = shown.splitlines()[-1]
    assert sentence.startswith("aam: ")
    for word in phrases:
        assert word in sentence


def unifrac(table: Path, folder: Path) -> int:
    return aam("unifrac", "--table", table, "--output", folder / "m.tsv", "--overwrite")
