"""Real studies, read from the folder AAM_SHARED_DATA if it is set."""

from __future__ import annotations

import os
from pathlib import Path

import biom
import numpy as np
import pytest

from aam.data.metadata import read_metadata
from aam.data.sequences import decode, encode, sequences_of
from aam.data.table import read_table
from aam.data.targets import label_samples

STUDIES = [
    ("ecam", "month_of_life", 741, 150),
    ("udca", "OTU100-observed_otus-PC1", 802, 150),
    ("oral", "qiita_host_age", 2537, 100),
]


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("AAM_SHARED_DATA")
    if not folder:
        pytest.skip("AAM_SHARED_DATA does not name a folder of real studies")
    return Path(folder)


@pytest.mark.parametrize(("study", "column", "known", "length"), STUDIES)
def test_a_complete_study_is_read(
    data: Path, study: str, column: str, known: int, length: int
) -> None:
    table = read_table(data / study / "table.biom")
    expected = biom.load_table(str(data / study / "table.biom")).remove_empty(axis="observation")
    assert table.sample_ids == tuple(expected.ids())
    assert table.feature_ids == tuple(expected.ids(axis="observation"))
    assert (table.counts != expected.matrix_data.T).nnz == 0

    sequences = sequences_of(table.feature_ids, None)
    codes = encode(sequences, None)
    assert codes.shape == (len(table.feature_ids), length)
    assert decode(codes) == sequences

    metadata = read_metadata(data / study / "metadata.tsv")
    found = label_samples(metadata, column, table.sample_ids)
    assert found.rows.size == known
    assert np.isfinite(found.values).all()
    if study == "ecam":
        infants = metadata.groups("host_subject_id", table.sample_ids)
        assert not any(name.endswith(".0") for name in infants)
