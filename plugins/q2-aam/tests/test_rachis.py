"""The plugin in rachis, the renamed framework: it is found, and its actions run.

q2-types is not on the Python package index. `.ci/qiime2` makes an environment with rachis of the
index and the q2-types of Debian, in which `qiime2` is renamed; elsewhere the tests are skipped.
"""

import os
import subprocess

import pandas as pd
import pytest

rachis = pytest.importorskip("rachis")
from rachis.plugins import aam  # noqa: E402
from rachis.sdk import PluginManager  # noqa: E402


def test_the_entry_point_is_found():
    found = PluginManager().plugins["aam"]
    assert (found.package, found.project_name) == ("q2_aam", "q2-aam")
    assert set(found.methods) == {
        "embed", "importance", "predict", "predict_probabilities", "pretrain", "train", "unifrac"
    }  # fmt: skip
    assert set(found.visualizers) == {"evaluate", "report"}


def test_a_table_is_trained_predicted_and_reported(tmp_path):
    folder = tmp_path / "study"
    program = os.environ.get("AAM_EXECUTABLE", "aam")
    subprocess.run(
        [program, "example", "--output-dir", folder, "--samples", "60", "--asvs", "90",
         "--length", "60", "--richness", "25", "--depth", "900", "--subjects", "20"], check=True,
    )  # fmt: skip
    table = rachis.Artifact.import_data(
        "FeatureTable[Frequency]", str(folder / "table.biom"), "BIOMV210Format"
    )
    metadata = rachis.Metadata.load(str(folder / "metadata.tsv"))
    (model,) = aam.methods.train(
        table=table,
        metadata=metadata.get_column("ph"),
        groups=metadata.get_column("subject"),
    )
    assert str(model.type) == "AAMModel[AAMRegressor]"
    (predictions,) = aam.methods.predict(table=table, model=model)
    assert str(predictions.type) == "SampleData[RegressorPredictions]"
    predictions.export_data(str(tmp_path / "predictions"))
    found = pd.read_csv(tmp_path / "predictions/predictions.tsv", sep="\t", index_col=0)
    assert len(found) == 60
    (importance,) = aam.methods.importance(table=table, model=model)
    assert str(importance.type) == "FeatureData[Importance]"
    importance.export_data(str(tmp_path / "importance"))
    ranks = pd.read_csv(tmp_path / "importance/importance.tsv", sep="\t", index_col=0)
    assert ranks["forest"].sum() == pytest.approx(1)
    (report,) = aam.visualizers.report(model=model, metadata=metadata)
    report.export_data(str(tmp_path / "report"))
    assert "<svg" in (tmp_path / "report/index.html").read_text()
