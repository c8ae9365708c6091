"""The plugin through the `qiime` command: a simulated study, from artifacts to reports.

QIIME 2, q2-types, q2-feature-table and q2-sample-classifier are those of the interpreter that runs
the tests; AAM_EXECUTABLE names the program `aam`.
"""

import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pandas as pd
import pytest
import skbio

SMALL = ["--p-embedding-dim", "8", "--p-attention-heads", "2", "--p-attention-layers", "1"]
SMALL += ["--p-epochs", "2", "--p-device", "cpu"]
REQUIRED = os.environ.get("CI") == "true"


def test_what_the_tests_need_is_installed():
    """In CI nothing is skipped."""
    absent = [name for name in ("qiime", os.environ.get("AAM_EXECUTABLE", "aam"))
              if shutil.which(name) is None]  # fmt: skip
    if absent and not REQUIRED:
        pytest.skip(f"not installed: {absent}")
    assert not absent


@functools.cache
def command_line():
    """Import the `qiime` command with all plugins."""
    from q2cli.__main__ import qiime
    from qiime2.sdk import PluginManager

    PluginManager()
    return qiime


class Study:
    """A folder with a simulated study, its artifacts, and the home folder of QIIME 2."""

    def __init__(self, folder):
        self.folder = folder
        self.metadata = folder / "study" / "metadata.tsv"
        self.environment = {
            **os.environ, "HOME": str(folder), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"
        }  # fmt: skip

    def aam(self, *arguments):
        """Run the program itself."""
        program = os.environ.get("AAM_EXECUTABLE", "aam")
        subprocess.run([program, *map(str, arguments)], check=True, env=self.environment)

    def qiime(self, *arguments, fails=False):
        """Run the `qiime` command in a copy of this process; return its output.

        QIIME 2 and its plugins are imported once instead of for each command: 4 CPU-seconds.
        """
        process = multiprocessing.get_context("fork").Process(
            target=self._command, args=([*map(str, arguments)],)
        )
        process.start()
        process.join()
        output = (self.folder / "output").read_text()
        assert bool(process.exitcode) == fails, output
        return output

    def _command(self, arguments):
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        with open("output", "w") as stream, redirect_stdout(stream), redirect_stderr(stream):
            os.dup2(stream.fileno(), 1)  # of `aam` and what else QIIME 2 starts
            os.dup2(stream.fileno(), 2)
            command_line()(arguments, prog_name="qiime")

    def export(self, artifact):
        """Return the folder with the data of an artifact."""
        target = self.folder / f"{artifact}.exported"
        self.qiime("tools", "export", "--input-path", artifact, "--output-path", target)
        return target

    def column(self, name):
        """Return the two flags of a metadata column."""
        return [f"--m-{name}-file", self.metadata, f"--m-{name}-column"]


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    if shutil.which("qiime") is None:
        pytest.skip("qiime is not installed")
    found = Study(tmp_path_factory.mktemp("qiime2"))
    os.environ["HOME"] = found.environment["HOME"]  # the cache of q2cli
    command_line()
    folder = found.folder / "study"
    found.aam("example", "--output-dir", folder, "--samples", 60, "--asvs", 90, "--length", 60,
              "--richness", 25, "--depth", 900, "--subjects", 20)  # fmt: skip
    # Classes that a reader could take for numbers.
    lines = [line.split("\t") for line in found.metadata.read_text().splitlines()]
    codes = {"site": "code", "categorical": "categorical", "site-1": "01", "site-2": "1",
             "site-3": "1e5"}  # fmt: skip
    place = lines[0].index("site")
    rows = ["\t".join([*line, codes[line[place]]]) + "\n" for line in lines]
    found.metadata.write_text("".join(rows))
    for kind, file, form, name in (
        ("FeatureTable[Frequency]", "table.biom", "BIOMV210Format", "table"),
        ("Phylogeny[Rooted]", "tree.nwk", "NewickFormat", "tree"),
    ):
        found.qiime("tools", "import", "--type", kind, "--input-path", folder / file,
                    "--input-format", form, "--output-path", name)  # fmt: skip
    found.qiime("sample-classifier", "split-table", "--i-table", "table.qza",
                *found.column("metadata"), "ph", "--p-test-size", 0.3, "--p-random-state", 1,
                "--p-no-stratify", "--o-training-table", "train", "--o-test-table", "test",
                "--o-training-targets", "y_train", "--o-test-targets", "y_test")  # fmt: skip
    return found


@pytest.fixture(scope="session")
def encoder(study):
    study.qiime("aam", "pretrain", "--i-table", "table.qza", "--i-tree", "tree.qza", *SMALL,
                "--o-model", "encoder")  # fmt: skip
    return "encoder.qza"


@pytest.fixture(scope="session")
def regressor(study, encoder):
    study.qiime("aam", "train", "--i-table", "train.qza", "--i-encoder", encoder,
                *study.column("metadata"), "ph", *study.column("groups"), "subject",
                "--p-freeze-base", *SMALL, "--o-model", "regressor")  # fmt: skip
    return "regressor.qza"


@pytest.fixture(scope="session")
def classifier(study):
    study.qiime("aam", "train", "--i-table", "train.qza", "--p-classifier", "True",
                "--p-stratify", "--p-members", "transformer", *study.column("metadata"), "code",
                *SMALL,
                "--o-model", "classifier")  # fmt: skip
    return "classifier.qza"


@pytest.fixture(scope="session")
def ensemble(study):
    study.qiime("aam", "train", "--i-table", "train.qza", *study.column("metadata"), "ph",
                *study.column("groups"), "subject", "--o-model", "ensemble")  # fmt: skip
    return "ensemble.qza"


def test_models_have_their_types_and_options(study, regressor, classifier):
    assert "AAMModel[AAMRegressor]" in study.qiime("tools", "peek", regressor)
    assert "AAMModel[AAMClassifier]" in study.qiime("tools", "peek", classifier)
    record = json.loads((study.export(regressor) / "run.json").read_text())
    assert record["options"]["loop"]["epochs"] == 2
    assert record["options"]["freeze_base"] is True
    assert record["options"]["split"]["group_column"] == "aam-groups"
    assert study.qiime("tools", "validate", regressor).strip().endswith("valid at level=max.")


def test_predictions_are_those_of_aam(study, regressor):
    study.qiime("aam", "predict", "--i-table", "test.qza", "--i-model", regressor,
                "--p-device", "cpu", "--o-predictions", "predicted")  # fmt: skip
    assert "SampleData[RegressorPredictions]" in study.qiime("tools", "peek", "predicted.qza")
    found = read(study.export("predicted.qza") / "predictions.tsv")
    run, output = study.export(regressor), study.folder / "direct.tsv"
    study.aam("predict", "--model", run, "--table", study.folder / "test.qza", "--device", "cpu",
              "--output", output)  # fmt: skip
    pd.testing.assert_series_equal(found["predicted"], read(output)["predicted"], rtol=1e-5)


def test_side_by_side_with_q2_sample_classifier(study, regressor):
    """On the same split: the same type of predictions, evaluated by the same action."""
    study.qiime("sample-classifier", "fit-regressor", "--i-table", "train.qza",
                *study.column("metadata"), "ph", "--p-n-estimators", 20, "--p-random-state", 1,
                "--output-dir", "forest")  # fmt: skip
    study.qiime("sample-classifier", "predict-regression", "--i-table", "test.qza",
                "--i-sample-estimator", "forest/sample_estimator.qza",
                "--o-predictions", "by_forest")  # fmt: skip
    study.qiime("aam", "predict", "--i-table", "test.qza", "--i-model", regressor,
                "--p-device", "cpu", "--o-predictions", "by_aam")  # fmt: skip
    scores = {}
    for name in ("by_forest", "by_aam"):
        study.qiime("aam", "evaluate", "--i-predictions", f"{name}.qza",
                    *study.column("metadata"), "ph", "--o-visualization", name)  # fmt: skip
        folder = study.export(f"{name}.qzv")
        assert "<th>mae</th>" in (folder / "index.html").read_text()
        scores[name] = json.loads((folder / "metrics.json").read_text())["overall"]
    print("test samples, forest and aam:", scores)
    assert scores["by_forest"]["samples"] == scores["by_aam"]["samples"] == 18
    # q2-sample-classifier's own visualizer reads the predictions of aam.
    study.qiime("sample-classifier", "scatterplot", "--i-predictions", "by_aam.qza",
                "--m-truth-file", study.metadata, "--m-truth-column", "ph",
                "--o-visualization", "scatterplot")  # fmt: skip


def test_classes_and_their_probabilities(study, classifier):
    arguments = ["--i-table", "test.qza", "--i-model", classifier, "--p-device", "cpu"]
    study.qiime("aam", "predict", *arguments, "--o-predictions", "classes")
    study.qiime("aam", "predict-probabilities", *arguments, "--o-probabilities", "probabilities")
    assert "SampleData[ClassifierPredictions]" in study.qiime("tools", "peek", "classes.qza")
    classes = pd.read_csv(
        study.export("classes.qza") / "predictions.tsv", sep="\t", dtype=str
    ).set_index("sample-id")
    table = read(study.export("probabilities.qza") / "class_probabilities.tsv")
    assert list(table.columns) == ["01", "1", "1e5"]
    assert classes["predicted"].isin(table.columns).all()
    np.testing.assert_allclose(table.sum(axis=1), 1, rtol=1e-6)
    assert (table.idxmax(axis=1) == classes["predicted"]).all()
    study.qiime("aam", "evaluate", "--i-predictions", "classes.qza", *study.column("metadata"),
                "code", "--o-visualization", "classes")  # fmt: skip
    assert "accuracy" in (study.export("classes.qzv") / "index.html").read_text()


def test_importance_is_that_of_aam(study, ensemble):
    study.qiime("aam", "importance", "--i-table", "train.qza", "--i-model", ensemble,
                "--o-importance", "importance")  # fmt: skip
    assert "FeatureData[Importance]" in study.qiime("tools", "peek", "importance.qza")
    found = read(study.export("importance.qza") / "importance.tsv")
    output = study.folder / "direct-importance.tsv"
    study.aam("importance", "--table", study.folder / "train.qza", "--model",
              study.export(ensemble), "--output", output)  # fmt: skip
    pd.testing.assert_frame_equal(found, read(output))
    assert found["forest"].sum() == pytest.approx(1)
    # QIIME 2 reads it as metadata of features.
    study.qiime("metadata", "tabulate", "--m-input-file", "importance.qza",
                "--o-visualization", "importance")  # fmt: skip


def test_embedding_and_unifrac(study, encoder):
    study.qiime("aam", "embed", "--i-table", "table.qza", "--i-model", encoder,
                "--p-device", "cpu", "--o-distance-matrix", "distances",
                "--o-pcoa", "pcoa")  # fmt: skip
    study.qiime("aam", "unifrac", "--i-table", "table.qza", "--i-tree", "tree.qza",
                "--p-unifrac-metric", "weighted", "--o-distance-matrix", "unifrac")  # fmt: skip
    embedding = matrix(study.export("distances.qza") / "distance-matrix.tsv")
    pcoa = skbio.OrdinationResults.read(str(study.export("pcoa.qza") / "ordination.txt"))
    assert sorted(pcoa.samples.index) == sorted(embedding.ids)
    found = matrix(study.export("unifrac.qza") / "distance-matrix.tsv")
    output = study.folder / "weighted.tsv"
    folder = study.folder / "study"
    study.aam("unifrac", "--table", folder / "table.biom", "--tree", folder / "tree.nwk",
              "--unifrac-metric", "weighted", "--output", output)  # fmt: skip
    np.testing.assert_allclose(found.data, matrix(output).data, atol=1e-6)


def test_report_is_a_visualization_with_provenance(study, regressor):
    study.qiime("aam", "report", "--i-model", regressor, "--m-metadata-file", study.metadata,
                "--o-visualization", "report")  # fmt: skip
    assert "<svg" in (study.export("report.qzv") / "index.html").read_text()
    with zipfile.ZipFile(study.folder / "report.qzv") as archive:
        actions = [
            archive.read(name).decode()
            for name in archive.namelist()
            if "/provenance/" in name and name.endswith("action.yaml")
        ]
    history = "\n".join(actions)
    for action in ("pretrain", "train", "report", "split_table"):
        assert f"action: {action}\n" in history
    assert "epochs: 2" in history


def test_errors_are_the_sentences_of_aam(study, encoder):
    output = study.qiime(
        "aam", "train", "--i-table", "train.qza", *study.column("metadata"), "site", *SMALL,
        "--o-model", "none", fails=True,
    )  # fmt: skip
    assert "The column 'site' is not numeric" in output
    study.environment["AAM_EXECUTABLE"], kept = (
        "/nowhere/aam",
        study.environment.get("AAM_EXECUTABLE"),
    )
    output = study.qiime("aam", "unifrac", "--i-table", "table.qza", "--i-tree", "tree.qza",
                         "--o-distance-matrix", "none", fails=True)  # fmt: skip
    study.environment["AAM_EXECUTABLE"] = kept
    assert "AAM_EXECUTABLE is '/nowhere/aam', which is no program" in output


def test_types_without_q2_sample_classifier():
    code = (
        "import sys; sys.modules['q2_sample_classifier'] = None\n"
        "from q2_aam.plugin_setup import plugin\n"
        "print(sorted(plugin.type_fragments))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("AAMModel", "ClassifierPredictions", "Importance", "Probabilities"):
        assert f"'{name}'" in done.stdout


def read(path):
    return pd.read_csv(path, sep="\t", index_col=0)


def matrix(path):
    return skbio.DistanceMatrix.read(str(path))  # scikit-bio 0.5 takes no Path
