"""Prediction and embedding by several processes, whose table is that of one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from aam.contract.errors import UsageError
from aam.serialization import model_folder
from tests.support.commands import aam, read, train


@pytest.fixture(
    scope="module", params=["transformer", pytest.param("kernel forest", marks=pytest.mark.nightly)]
)
def model(
    request: pytest.FixtureRequest, study_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("model") / "run"
    if request.param == "transformer":
        assert train(study_dir, folder) == 0
        return folder
    data = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    args = ("--metadata-column", "ph", "--folds", 3, "--output-dir", folder)
    assert aam("train", *data, *args, "--members", *request.param.split()) == 0
    return folder


def assert_same_table(found: Path, expected: Path, model: Path) -> None:
    """Numbers of a network may differ by rounding, those of other members not."""
    if "transformer" not in model_folder.read(model).members:
        assert found.read_bytes() == expected.read_bytes()
    pd.testing.assert_frame_equal(read(found), read(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_ranks_write_the_tables_of_one_process(
    study_dir: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("--model", model, "--table", study_dir / "table.biom", "--device", "cpu")
    given += ("--batch-size", 5)
    one, several = tmp_path / "one.tsv", tmp_path / "several.tsv"
    assert aam("predict", *given, "--output", one) == 0
    capfd.readouterr()
    assert aam("predict", *given, "--output", several, "--processes", 2) == 0
    shown = capfd.readouterr().err
    assert shown.count("for 36 samples") == 1
    assert "2 processes, cpu." in shown
    assert_same_table(several, one, model)
    assert (tmp_path / "several.tsv.run.json").is_file()
    if "transformer" in model_folder.read(model).members:
        for name, ranks in (("a", 0), ("b", 2)):
            more = ("--output-dir", tmp_path / name, "--processes", ranks)
            assert aam("embed", *given, *more) == 0
        one, several = (tmp_path / name / "embeddings.tsv" for name in "ab")
        assert_same_table(several, one, model)
        assert (tmp_path / "b" / "pcoa.png").is_file()
    else:
        few = ("--batch-size", 36, "--processes", 2, "--output", tmp_path / "few.tsv")
        assert aam("predict", *given[:-2], *few) == UsageError.status
        assert "2 processes, 36 samples, --batch-size 36" in capfd.readouterr().err
        assert not (tmp_path / "few.tsv").exists()
