"""Predictions and embeddings of a model: those of its run, whatever the other samples."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import biom
import numpy as np
import pytest

from aam.contract.errors import DataError
from tests.support.commands import aam, read
from tests.support.runs import predict


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_model_alone_predicts_what_the_run_did(
    request: pytest.FixtureRequest, study_dir: Path, tmp_path: Path, kind: str
) -> None:
    folder: Path = request.getfixturevalue(kind)
    shutil.copytree(folder / "model", tmp_path / "any name")
    shutil.copy(study_dir / "table.biom", tmp_path / "elsewhere.biom")
    found = predict(tmp_path / "elsewhere.biom", tmp_path / "any name", tmp_path / "p.tsv")
    expected = read(folder / "predictions.tsv").set_index("sample-id")
    found = found.set_index("sample-id").loc[expected.index]
    for column in found.columns[: list(found.columns).index("split")]:
        if found[column].dtype.kind == "f":
            # Both files hold six digits.
            np.testing.assert_allclose(found[column], expected[column], rtol=1e-5)
        else:
            assert found[column].tolist() == expected[column].tolist()


def test_a_model_of_another_format_is_refused(
    study_dir: Path, numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(numbers / "model", tmp_path / "model"))
    content = json.loads((model / "model.json").read_text()) | {"format": 99}
    (model / "model.json").write_text(json.dumps(content))
    args = ("--table", study_dir / "table.biom", "--model", model)
    assert aam("predict", *args, "--output", tmp_path / "p.tsv") == DataError.status
    assert "was written by a newer version: " in " ".join(capsys.readouterr().err.split())


def test_predictions_do_not_depend_on_the_other_samples_or_on_any_order(
    study_dir: Path, numbers: Path, tmp_path: Path
) -> None:
    whole = predict(study_dir / "table.biom", numbers, tmp_path / "whole.tsv")
    counts = biom.load_table(str(study_dir / "table.biom")).to_dataframe(dense=True).astype(int)
    rng = np.random.default_rng(1)
    mixed = counts.iloc[rng.permutation(counts.shape[0]), rng.permutation(counts.shape[1])]
    for name, table in (("mixed", mixed), ("subset", counts[counts.columns[[20, 3, 8]]])):
        table.to_csv(tmp_path / f"{name}.tsv", sep="\t", index_label="#OTU ID")
        found = predict(tmp_path / f"{name}.tsv", numbers, tmp_path / f"{name}-out.tsv",
                        "--batch-size", 5)  # fmt: skip
        assert found["sample-id"].tolist() == list(table.columns)
        expected = whole.set_index("sample-id").loc[found["sample-id"], "predicted"]
        np.testing.assert_allclose(found["predicted"], expected, rtol=1e-5)


def test_passes_are_rarefactions_with_a_spread(
    study_dir: Path, numbers: Path, tmp_path: Path
) -> None:
    table = study_dir / "table.biom"
    found = predict(table, numbers, tmp_path / "p.tsv", "--prediction-passes", 3)
    assert (found["spread"] >= 0).all()
    assert (found["spread"] > 0).any()


@pytest.mark.parametrize("kind", ["encoder", "numbers"])
def test_embeddings_are_those_of_the_run(
    request: pytest.FixtureRequest, study_dir: Path, tmp_path: Path, kind: str
) -> None:
    folder: Path = request.getfixturevalue(kind)
    out = tmp_path / "embedded"
    args = ("--metadata", study_dir / "metadata.tsv", "--color-by", "site", "--device", "cpu")
    table = ("--table", study_dir / "table.biom")
    assert aam("embed", *table, "--model", folder, "--output-dir", out, *args) == 0
    written = {"embeddings.tsv", "ordination.txt", "pcoa.png", "embed.run.json"}
    assert {path.name for path in out.iterdir()} == written
    expected = read(folder / "embeddings.tsv").set_index("sample-id")
    found = read(out / "embeddings.tsv").set_index("sample-id").loc[expected.index]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
