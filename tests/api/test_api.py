"""Python interface: results for tables in memory equal those of the commands."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import biom
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import sparse
from skbio import DistanceMatrix, TreeNode

import aam
from aam.cli import main
from aam.console import as_library, console
from aam.contract.errors import CannotCreate, DataError, MissingInput, Unavailable, UsageError
from aam.report.run import read_run

NETWORK = {
    "epochs": 1,
    "embedding_dim": 8,
    "attention_heads": 2,
    "attention_layers": 1,
    "profile_features": 8,
    "rarefy_depth": 0,  # draws depend on the order of the feature ids
    "device": "cpu",
}
FLAGS = [part for k, v in NETWORK.items() for part in (f"--{k.replace('_', '-')}", str(v))]
FLAGS += ["--members", "transformer"]
SMALL: dict[str, Any] = {"members": ("transformer",), "evaluate": False, "network": NETWORK}


@pytest.fixture(scope="module")
def table(study_dir: Path) -> biom.Table:
    return biom.load_table(str(study_dir / "table.biom"))


@pytest.fixture(scope="module")
def metadata(study_dir: Path, table: biom.Table) -> pd.DataFrame:
    whole = pd.read_csv(study_dir / "metadata.tsv", sep="\t", index_col=0, skiprows=[1])
    return whole.loc[list(table.ids())]


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `aam train` on the column ph."""
    folder = tmp_path_factory.mktemp("api") / "run"
    data = ["--table", str(study_dir / "table.biom"), "--metadata", str(study_dir / "metadata.tsv")]
    column = ["--metadata-column", "ph", "--group-column", "subject"]
    assert main(["train", *data, *column, *FLAGS, "--output-dir", str(folder)]) == 0
    return folder


def written(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", index_col=0)


def test_predictions_and_embeddings_are_those_of_the_command(
    run: Path, study_dir: Path, table: biom.Table, tmp_path: Path
) -> None:
    """For tables of every type."""
    data = ["--table", str(study_dir / "table.biom"), "--output", str(tmp_path / "p.tsv")]
    assert main(["predict", "--model", str(run), *data, "--device", "cpu"]) == 0
    model, expected = aam.load(run), written(tmp_path / "p.tsv")
    found = model.predict(table)
    assert list(found.index) == list(table.ids())
    assert list(found.columns) == list(expected.columns)
    assert_allclose(found["predicted"], expected["predicted"], rtol=1e-6)
    embeddings = written(run / "embeddings.tsv")
    found = model.embed(study_dir / "table.biom")
    assert_allclose(found.loc[embeddings.index], embeddings, rtol=1e-4, atol=1e-5)
    frame = table.to_dataframe(dense=True).T
    names = [f"asv{column}" for column in range(frame.shape[1])]
    dna = dict(zip(names, frame.columns, strict=True))
    arrays = {f"x{column}": sequence for column, sequence in enumerate(frame.columns)}
    for other, sequences in (
        (frame, None),
        (frame.set_axis(names, axis=1), dna),
        (anndata(table, names), None),
        (frame.to_numpy(), arrays),
    ):
        found = model.predict(other, sequences)
        assert_allclose(found["predicted"], expected["predicted"], rtol=1e-5)


def anndata(table: biom.Table, names: list[str]) -> Any:
    """Return the table as AnnData, or as what that is to this interface where it is missing."""
    var = pd.DataFrame({"sequence": list(table.ids("observation"))}, index=names)
    X, obs = sparse.csr_matrix(table.matrix_data.T), pd.DataFrame(index=list(table.ids()))
    if find_spec("anndata"):
        return import_module("anndata").AnnData(X, obs, var)
    return SimpleNamespace(X=X, obs_names=obs.index, var_names=var.index, var=var)


def test_a_regressor_is_the_command_in_memory(
    run: Path, table: biom.Table, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    regressor = aam.AAMRegressor(**SMALL, output_dir=tmp_path / "fit")
    regressor.fit(table, metadata.ph, groups=metadata.subject)
    # The splits are equal, and so are the networks.
    assert_allclose(regressor.predict(table), aam.load(run).predict(table)["predicted"], rtol=1e-5)
    assert aam.load(tmp_path / "fit").column == "ph"
    again = pickle.loads(pickle.dumps(regressor))
    assert_allclose(again.predict(table), regressor.predict(table))


def test_a_classifier_returns_the_labels_it_was_given(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    labels = metadata.site.str.removeprefix("site-").astype(int).to_numpy()
    classifier = aam.AAMClassifier(**SMALL).fit(table, labels)
    probabilities_NC = classifier.predict_proba(table)
    assert classifier.classes_.tolist() == [1, 2, 3]
    assert_allclose(probabilities_NC.sum(axis=1), 1, rtol=1e-6)
    assert (classifier.predict(table) == 1 + probabilities_NC.argmax(axis=1)).all()
    for label in ("none", "site "):  # means a missing value, or is not read back
        with pytest.raises(DataError, match=f"that metadata cannot hold: 1 \\({label}\\)"):
            classifier.fit(table, metadata.site.replace("site-1", label))


@pytest.mark.medium
def test_a_fit_keeps_the_results_of_its_run(
    study_dir: Path, table: biom.Table, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    """In memory as in a run folder: scores, tables, plots, page and comparison."""
    stored = aam.AAMRegressor(repeats=2, output_dir=tmp_path / "run").fit(table, metadata.ph)
    held = pickle.loads(pickle.dumps(aam.AAMRegressor(repeats=2).fit(table, metadata.ph)))
    assert "Most important ASVs" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    data = ["--table", str(study_dir / "table.biom"), "--output", str(tmp_path / "p.tsv")]
    assert main(["predict", "--model", str(tmp_path / "run"), *data]) == 0
    assert_allclose(held.predict(table), written(tmp_path / "p.tsv")["predicted"], rtol=1e-6)
    assert "\n  predicts 'ph', members kernel, forest\n" in repr(held.model_)
    with pytest.raises(DataError, match="The model has no embedding"):
        held.model_.embed(table)
    expected = json.loads((tmp_path / "run" / "scores.json").read_text())
    for model in (stored, held):
        for name in ("kernel", "forest"):
            del model.scores_["models"][name]["cpu_seconds"]
    assert held.scores_ == stored.scores_
    assert held.scores_["verdict"] == expected["verdict"]
    assert 0 < held.scores_["verdict"]["p"] <= 1
    for name in ("oof_predictions", "splits", "importance"):
        pd.testing.assert_frame_equal(getattr(held, f"{name}_"), getattr(stored, f"{name}_"))
    oof = held.oof_predictions_
    assert_allclose(oof["actual"], metadata.ph.loc[oof.index])
    assert (oof.groupby("repeat").size() == len(table.ids())).all()
    assert sorted(set(oof.index)) == sorted(table.ids())
    oof = oof[oof["repeat"] == 1]  # which pictures show
    model = held.model_
    points = np.asarray(model.plot_predictions().collections[-1].get_offsets())
    assert_allclose(points, oof[["actual", "predicted"]])
    assert model.plot("abundance").get_title("left") == "Abundance"
    assert model.plot_importance().patches and model.plot_learning_curve().lines
    plt.close("all")
    page = model.report(tmp_path / "memory.html", metadata=metadata, color_by="site")
    text = page.read_text()
    assert "aam train on a table in memory" in text and "Heat map of" in text
    compared = aam.compare(stored, memory=held, output=tmp_path / "compared.html")
    (difference,) = (frame for title, frame in compared.items() if title.startswith("Difference"))
    assert difference.loc["memory"].iloc[0].split()[0] == "0"
    assert (tmp_path / "compared.html").is_file()
    model.save(tmp_path / "saved")
    loaded = aam.load(tmp_path / "saved")
    assert loaded.results().scores["verdict"] == expected["verdict"]
    assert_allclose(loaded.predict(table)["predicted"], held.predict(table))
    with pytest.raises(CannotCreate, match="already holds a run"):
        model.save(tmp_path / "saved")
    with pytest.raises(CannotCreate, match="; replace it with overwrite=True, or choose another"):
        stored.fit(table, metadata.ph)  # a cell that is run again
    stored.set_params(overwrite=True).fit(table, metadata.ph.rename("acidity"))
    assert aam.load(tmp_path / "run").column == "acidity"


@pytest.mark.medium
def test_results_and_plots_of_a_run_in_memory_need_no_folder(
    table: biom.Table, metadata: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = aam.AAMRegressor(members="kernel", repeats=1).fit(table, metadata.ph)
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    model = pickle.loads(pickle.dumps(fitted)).model_
    points = np.asarray(model.plot_predictions().collections[-1].get_offsets())
    assert_allclose(points, fitted.oof_predictions_[["actual", "predicted"]])
    assert model.results().scores == fitted.scores_
    assert "/no/such" not in repr(aam.compare(model, memory=fitted))
    plt.close("all")


def test_a_fit_without_evaluation_has_no_results(table: biom.Table, metadata: pd.DataFrame) -> None:
    regressor = aam.AAMRegressor(members="kernel").fit(table, metadata.ph)
    expected = regressor.predict(table)
    regressor.set_params(evaluate=False).fit(table, metadata.ph)
    assert_allclose(regressor.predict(table), expected)
    assert not hasattr(regressor, "scores_")
    with pytest.raises(MissingInput, match="not evaluated: .* fit with evaluate=True"):
        regressor.model_.plot_predictions()
    with pytest.raises(UsageError, match="One model cannot be compared"):
        aam.compare(regressor)


def test_the_model_reads_metadata_of_the_estimator(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    frame = table.to_dataframe(dense=True).T
    given = {"members": "kernel", "categorical_columns": "site", "evaluate": False}
    regressor = aam.AAMRegressor(**given, metadata=metadata.sample(frac=1, random_state=1))
    found = regressor.fit(frame, metadata.ph).predict(frame.iloc[:5])
    other = regressor.model_.predict(frame.iloc[:5], metadata=metadata)["predicted"]
    assert_allclose(found, other)
    of_array = aam.AAMRegressor(**given, metadata=metadata, sequences=list(frame.columns))
    with pytest.raises(UsageError, match="Metadata of an array"):
        of_array.fit(frame.to_numpy(), metadata.ph)
    with pytest.raises(DataError, match="lacks columns that the model reads: site"):
        regressor.set_params(metadata=metadata.drop(columns="site")).fit(frame, metadata.ph)
    with pytest.raises(UsageError, match="reads metadata .*; add metadata with these columns"):
        regressor.model_.predict(frame)


def test_messages_are_printed_again_after_calls_of_several_threads() -> None:
    """Though the first call ends while the second one runs."""
    began, ended = threading.Event(), threading.Event()

    def second() -> None:
        with as_library():
            began.set()
            ended.wait(10)

    thread = threading.Thread(target=second)
    with as_library():
        thread.start()
        began.wait(10)
    assert console.quiet
    ended.set()
    thread.join()
    assert not console.quiet


def test_ordered_classes_are_predicted_by_their_rank(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    labels = metadata.site.str.removeprefix("site-").astype(int)
    given = {"members": "kernel", "evaluate": False}
    classifier = aam.AAMClassifier(**given, ordinal=(3, 1, 2)).fit(table, labels)
    probabilities_NC = classifier.predict_proba(table)
    assert_allclose(probabilities_NC.sum(axis=1), 1)
    # The median of the order 3, 1, 2.
    below_N = probabilities_NC[:, 2]
    median = np.where(below_N >= 0.5, 3, np.where(below_N + probabilities_NC[:, 0] >= 0.5, 1, 2))
    assert (classifier.predict(table) == median).all()
    assert classifier.predict(table).dtype == labels.dtype
    # A level that no training sample has, and labels of text, of which few are predicted.
    with_more = aam.AAMClassifier(**given, ordinal=(0, 3, 1, 2)).fit(table, labels)
    assert with_more.predict(table).dtype == labels.dtype
    texts = labels.map({1: "a", 2: "b", 3: "intermediate"})
    named = aam.AAMClassifier(**given, ordinal=("a", "b", "intermediate")).fit(table, texts)
    frame = table.to_dataframe(dense=True).T
    types = {named.predict(frame.iloc[[row]]).dtype for row in range(6)}
    assert types == {named.predict(table).dtype}
    with pytest.raises(DataError, match="the order does not have: .*, ordinal 1,2"):
        classifier.set_params(ordinal=(1, 2)).fit(table, labels)
    with pytest.raises(UsageError, match="No order of two or more categories: ordinal True"):
        classifier.set_params(ordinal=True).fit(table, labels)


def test_a_taxonomy_in_memory_names_the_asvs(table: biom.Table, metadata: pd.DataFrame) -> None:
    taxa = {name: f"g__Genus-{k % 3}" for k, name in enumerate(table.ids("observation"))}
    frame = pd.DataFrame({"Feature ID": list(taxa), "Taxon": list(taxa.values())})
    fitted = aam.AAMRegressor(members="kernel", taxonomy=frame).fit(table, metadata.ph)
    assert fitted.importance_["taxon"].to_dict() == taxa
    for given in (taxa, frame, frame.set_index("Feature ID")):
        found = fitted.model_.importance(table, taxonomy=given)["taxon"]
        assert found.to_dict() == taxa
    with pytest.raises(DataError, match="no column 'Taxon'"):
        fitted.model_.importance(table, taxonomy=frame[["Feature ID"]])


def test_errors_and_warnings_name_parameters(table: biom.Table, metadata: pd.DataFrame) -> None:
    given = {"network": {"freeze_base": True}, "members": "kernel"}
    with pytest.raises(UsageError, match="freeze_base=True without pretrained_encoder") as caught:
        aam.AAMRegressor(**given).fit(table, metadata.ph)
    assert "--" not in str(caught.value)
    with pytest.warns(aam.AamWarning) as warned:
        aam.AAMRegressor(members="kernel", network={"device": "cuda"}, folds=2).fit(
            table, metadata.ph
        )
    messages = [str(one.message) for one in warned]
    assert any(one.startswith("device cuda has no effect") for one in messages)
    assert not any("--" in one for one in messages)


def _fit(**change: Any) -> Callable[[aam.Model, biom.Table], Any]:
    return lambda model, table: aam.AAMRegressor(**SMALL | change).fit(table, range(36))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_fit(network={"loss_type": "hubr"}), "Invalid loss_type: 'hubr'; did you mean 'huber'?"),
        (_fit(evaluate="no"), "Invalid evaluate: 'no'"),
        (_fit(network={"epochs": 0}), "Invalid epochs: 0; give 1 or more"),
        (
            _fit(network={"epoch": 1}),
            "No such option of the network: 'epoch'; did you mean 'epochs'",
        ),
        (_fit(network=3), "Invalid network: 3; give TransformerOptions, a dictionary or None"),
        (_fit(random_state=-1), "Invalid random_state: -1; give 0 to 4294967295"),
        (_fit(folds="five"), "Invalid folds: 'five'; give a whole number or 'auto'"),
        (lambda m, t: aam.compare(m, 1), "Not a model: 1; give fitted estimators"),
        (lambda m, t: aam.join_studies([t, t]), "Invalid tables: .*; give a dictionary"),
        (_fit(members="kernal"), r"Invalid members: \('kernal',\); did you mean 'kernel'?"),
        (_fit(output_dir=3), "Invalid output_dir: 3; give a path"),
        (lambda m, t: m.predict(t, batch_size=0), "Invalid batch_size: 0; give 1 or more"),
        (lambda m, t: m.predict(t, drop_empty_samples="no"), "Invalid drop_empty_samples: 'no'"),
        (lambda m, t: m.predict(t, 3), "Invalid sequences: 3; give a path"),
        (lambda m, t: aam.load(m.path, device="tpu"), "Invalid device: 'tpu'"),
        (lambda m, t: aam.load(3), "Invalid run: 3"),
        (lambda m, t: aam.unifrac(t, "t.nwk", alpha=2), "Invalid alpha: 2; give 0 to 1"),
        (lambda m, t: aam.unifrac(t, 3), "Invalid tree: 3; give a path or a skbio.TreeNode"),
    ],
)
def test_an_argument_of_another_type_or_range_is_refused(
    run: Path, table: biom.Table, call: Callable[[aam.Model, biom.Table], Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        call(aam.load(run), table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.rename(index={"S01": float("nan")}), r"neither text nor numbers: 1 \(nan\)"),
        (lambda f: f.rename(index={"S01": "S01 "}), r"begin or end with a blank: 1 \('S01 '\)"),
        (lambda f: f.rename(index={"S01": "S02"}), r"Duplicated sample ids: 1 \(S02\)"),
        (lambda f: f.rename(columns={f.columns[0]: None}), "Feature ids that are neither"),
        (lambda f: f.astype(complex), "Counts that are not numbers: values of type complex128"),
        (lambda f: f.replace(0, float("nan")), "Counts that are NaN or infinite"),
        (lambda f: f.astype("Int64").replace(0, pd.NA), r"Missing counts: in samples 36 \(S01, "),
        (lambda f: f.iloc[:0], "An empty table: 0 samples x 90 features"),
        (lambda f: f / 2, "Fractional counts in the table: "),
        (lambda f: f.to_numpy(), "give their representative sequences"),
        (lambda f: 3, "Not a table: int of 0 dimensions"),
    ],
)
def test_a_table_that_files_cannot_hold_is_refused(
    run: Path, table: biom.Table, change: Callable[[pd.DataFrame], Any], message: str
) -> None:
    frame = table.to_dataframe(dense=True).T
    assert "S01" in frame.index
    with pytest.raises(DataError, match=message):
        aam.load(run).predict(change(frame))


def test_a_sample_that_would_be_a_comment_in_metadata_is_refused(
    run: Path, table: biom.Table, metadata: pd.DataFrame
) -> None:
    frame = table.to_dataframe(dense=True).T.rename(index={"S01": "#S01"})
    refused = pytest.raises(DataError, match=r"ids that begin with '#', .* 1 \(#S01\)")
    with refused:
        aam.AAMRegressor(**SMALL).fit(frame, metadata.ph.to_numpy())
    with refused:
        aam.load(run).predict(frame, metadata=metadata.rename(index={"S01": "#S01"}))
    assert aam.load(run).predict(frame).index.tolist() == frame.index.tolist()


def test_targets_and_groups_are_those_of_their_sample_ids(
    study_dir: Path, table: biom.Table, metadata: pd.DataFrame
) -> None:
    """Their order does not change the predictions, nor does a path; other ids are refused."""
    labels = {"y": metadata.ph, "groups": metadata.subject}
    expected = aam.AAMRegressor(**SMALL).fit(table, metadata.ph, metadata.subject).predict(table)
    shuffled = {name: values.sample(frac=1, random_state=1) for name, values in labels.items()}
    found = aam.AAMRegressor(**SMALL).fit(study_dir / "table.biom", **shuffled)
    assert_allclose(found.predict(table), expected, rtol=1e-6)
    for name, values in labels.items():
        others = [
            (values.rename({"S01": "T01"}), rf"only the table has 1 \(S01\), only {name} has 1"),
            (values.rename({"S01": "S02"}), "Duplicated sample ids"),
            (values.reset_index(drop=True), "have different sample ids"),
        ]
        for other, message in others:
            with pytest.raises(DataError, match=message):
                aam.AAMRegressor(**SMALL).fit(table, **labels | {name: other})
    for groups, message in (
        ("subject", "No such column for the groups: 'subject', .* give metadata"),
        (metadata.subject.to_numpy()[:5], "Invalid groups: .* give 36 labels"),
    ):
        with pytest.raises(UsageError, match=message):
            aam.AAMRegressor(**SMALL).fit(table, metadata.ph, groups)


def test_samples_of_an_array_are_not_those_of_the_training(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    """If their reads differ; nor is a target called group replaced by the groups."""
    array = table.to_dataframe(dense=True).T.to_numpy()
    new = array[:, ::-1]
    dna = {f"x{column}": name for column, name in enumerate(table.ids("observation"))}
    with warnings.catch_warnings():
        warnings.simplefilter("error", aam.AamWarning)
        target = metadata.ph.rename("group")
        regressor = aam.AAMRegressor(**SMALL, sequences=dna)
        fitted = regressor.fit(array, target, metadata.subject)
    found = fitted.model_.predict(new, dna)
    assert fitted.model_.column == "group"
    assert found["predicted"].mean() == pytest.approx(metadata.ph.mean(), abs=1)
    assert set(found["split"]) == {"new"}
    assert found.index.tolist() == [str(row) for row in range(len(array))]
    with pytest.raises(DataError, match=r"Fractional counts in the table: .* 2 \(0, 1\)"):
        fitted.predict(np.vstack([array[:2] / 2, array[2:]]))


def test_a_study_in_memory_is_inspected(
    table: biom.Table, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    found = aam.inspect(table, metadata, "ph", report=tmp_path / "study.html")
    samples, asvs = len(table.ids()), len(table.ids("observation"))
    text = found.set_index("subject")["text"]
    assert text["table"].startswith(f"{samples} samples x {asvs} ASVs")
    of_target = found[found.subject == "target"]["text"]
    assert of_target.str.contains(f"{samples} samples with 'ph'").any()
    page = (tmp_path / "study.html").read_text()
    assert "Table in memory" in page and "have several similar samples each" in page
    wrong = aam.inspect(table, metadata, "pH")
    assert "error" in set(wrong.severity)
    with pytest.raises(UsageError, match="without metadata"):
        aam.inspect(table, column="ph")


def test_effects_are_drawn_as_a_waterfall_and_a_beeswarm(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    model = aam.AAMRegressor(members="kernel", evaluate=False).fit(table, metadata.ph).model_
    effects = model.explain(table)
    name = effects["sample"].unique()[3]
    _, (left, right) = plt.subplots(1, 2)
    assert model.plot_waterfall(effects, name, ax=left) is left
    # From the mean of the training labels, by steps that join, to the prediction.
    bars: Any = left.patches
    steps = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    own = effects[effects["sample"] == name].set_index("kind")["effect"]
    assert_allclose(steps[0][0], own["mean"])
    assert_allclose([end for _, end in steps[:-1]], [start for start, _ in steps[1:]])
    assert_allclose(steps[-1][1], model.predict(table)["predicted"][name], rtol=1e-5)
    assert model.plot_beeswarm(effects, table, ax=right) is right
    # A point for each sample with the feature, at its effect.
    shown = effects[effects["kind"] == "ASV"]
    sizes = shown.groupby("feature")["effect"].agg(lambda values: values.abs().sum())
    first = shown[shown["feature"] == sizes.idxmax()]
    points = np.asarray(right.collections[0].get_offsets())
    assert_allclose(points[:, 0], first["effect"])
    assert np.ptp(points[:, 1]) < 0.8  # within its row
    ranks = table.norm(inplace=False).to_dataframe(dense=True).T[sizes.idxmax()].rank(pct=True)
    assert_allclose(np.asarray(right.collections[0].get_array()), ranks[first["sample"]])
    with pytest.raises(DataError, match="No effects of this sample"):
        model.plot_waterfall(effects, "nobody")
    with pytest.raises(DataError, match="give what `explain` returns"):
        model.plot_beeswarm(metadata)
    plt.close("all")


def test_plots_are_those_of_the_report(run: Path, table: biom.Table) -> None:
    model = aam.load(run / "model", device="cpu")  # beside the files of its run
    shown = replace(model, path=Path("<b>&"))._repr_html_()
    cells = dict(re.findall("<tr><th>(.*?)</th><td>(.*?)</td></tr>", shown))
    assert cells["path"] == "&lt;b&gt;&amp;" and cells["members"] == "transformer"
    scored = read_run(run).scored
    assert scored is not None
    axes = model.plot_predictions(unit="pH")
    assert plt.gca() is axes
    assert axes.get_xlabel() == "true ph (pH)"
    points = np.asarray(axes.collections[-1].get_offsets())
    assert_allclose(points, np.column_stack([scored.actual, scored.predicted]))
    assert model.plot_learning_curve().get_title("left") == "Loss"
    assert model.plot("errors").get_title("left") == "Errors"
    # On axes of the user, whose figure keeps its others.
    figure, (left, right) = plt.subplots(1, 2)
    assert model.plot("errors", ax=right) is right and model.plot_importance(ax=left) is left
    assert model.plot_learning_curve(ax=right) is right
    assert figure.axes == [left, right] and not figure.legends and right.get_legend()
    with pytest.raises(DataError, match="Nothing to draw for 'unifrac': .* lacks the data"):
        model.plot("unifrac")
    assert model.plot_importance().patches
    importance = pd.DataFrame(
        {"prevalence": [1.0, 0.5], "effect": [-2.0, 1.0]},
        index=pd.Index(["a", "b"], name="feature-id"),
    )
    axes = model.plot_importance(importance, unit="pH")
    bars: Any = axes.patches
    assert [bar.get_width() for bar in bars] == [-2, 1]
    assert axes.get_xlabel() == "effect (pH)"
    with pytest.raises(DataError, match="No importance of ASVs: columns prevalence;"):
        model.plot_importance(importance[["prevalence"]])
    with pytest.raises(UsageError, match="Invalid picture: 'eror'; did you mean 'errors'?"):
        model.plot("eror")
    with pytest.raises(UsageError, match="Invalid picture: ''; give one of studies, "):
        model.plot("")
    plt.close("all")


def test_the_report_and_the_plots_need_the_run_folder(
    run: Path, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    page, model = tmp_path / "page.html", aam.load(run)
    assert model.report(page, metadata=metadata, color_by="site", unit="pH") == page
    assert "ph (pH)" in page.read_text()
    with pytest.raises(DataError, match="sitee"):
        model.report(page, metadata=metadata, color_by="sitee")
    copy = aam.load(shutil.copytree(run / "model", tmp_path / "copied" / "model"))
    for call in (copy.report, copy.plot_predictions, copy.plot_importance):
        with pytest.raises(MissingInput, match="No run folder of the model: .*copied.* load the"):
            call()
    with pytest.raises(MissingInput, match="No model"):
        aam.load(run / "no-such-folder")


def test_saving_replaces_a_run_and_nothing_else(run: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    files = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    with pytest.raises(CannotCreate, match="already holds a run"):
        aam.load(own).save(own)
    aam.load(own / "model").save(own, overwrite=True)
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == files

    other = Path(shutil.copytree(run, tmp_path / "other"))
    (other / "fold-changes.tsv").write_text("mine")
    model = aam.load(own)
    model.save(other, overwrite=True)
    assert (other / "fold-changes.tsv").read_text() == "mine"
    assert not (other / "checkpoints").exists()
    assert not (other / "report.html").exists()
    assert aam.load(other).results().scores == model.results().scores
    aam.load(other).report()
    aam.load(own).save(other, overwrite=True)
    assert not (other / "report.html").exists()


@pytest.mark.medium
def test_an_output_replaces_no_model_and_no_file_of_a_run(
    study_dir: Path, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    """As of the command line, which has the same check."""
    files = study_dir / "table.biom", study_dir / "metadata.tsv"
    own, other = tmp_path / "own", tmp_path / "other"
    regressor = aam.AAMRegressor(members="kernel", repeats=1, output_dir=own)
    regressor.fit(files[0], metadata.ph)
    shutil.copytree(own, other)
    reads = pd.DataFrame(biom.load_table(str(files[0])).to_dataframe(dense=True).T)
    rng = np.random.default_rng(0)
    new = reads.apply(lambda row: rng.multinomial(900, row / row.sum()), axis=1, raw=True)
    new.index = described = [f"new-{name}" for name in new.index]
    labels = metadata.set_axis(described)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    models = aam.load(own), aam.load(own / "model")
    part = "The output would replace a file of a run, a model or a study"
    calls: list[tuple[Callable[[aam.Model], Any], str]] = [
        (lambda m: m.evaluate(new, labels, "ph", output=own, overwrite=True),
         "(would replace|folder holds) an input: .*model"),
        (lambda m: m.evaluate(new, labels, "ph", output=own / "model", overwrite=True), part),
        (lambda m: m.evaluate(new, labels, "ph", output=other / "model/x"), part),
        (lambda m: m.save(own / "model", overwrite=True), part),
        (lambda m: m.save(other / "model", overwrite=True), part),
        (lambda m: m.report(own / "splits.tsv"), part),
        (lambda m: aam.compare(m, other, output=own / "report.html"), part),
        (lambda m: aam.inspect(new, report=own / "report.html"), part),
        (lambda m: aam.AAMRegressor(members="kernel", output_dir=own / "model", overwrite=True)
         .fit(reads, metadata.ph), part),
        (lambda m: m.report(tmp_path / "half\udcff.html"), "A path that is not UTF-8: output"),
    ]  # fmt: skip
    for call, message in calls:
        for model in models:
            with pytest.raises(UsageError, match=message):
                call(model)
    given = ("--table", study_dir / "table.biom", "--metadata", files[1], "--metadata-column", "ph")
    evaluate = ("evaluate", "--model", own / "model", *given, "--output", own, "--overwrite")
    assert main([str(word) for word in evaluate]) == UsageError.status
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    models[0].evaluate(new, labels, "ph", output=own / "elsewhere")
    assert (own / "elsewhere" / "scores.json").is_file()


@pytest.mark.parametrize("value", [3, "x", [1], np.zeros(3), {"a": 1}, pd.DataFrame({"a": [1]})])
def test_a_plot_refuses_other_types(run: Path, table: biom.Table, value: Any) -> None:
    model, refused = aam.load(run), (UsageError, DataError)
    effects = pd.DataFrame(
        [["s", "f", "mean", 1.0, "u"]], columns=["sample", "feature", "kind", "effect", "unit"]
    )
    calls: list[Callable[[], Any]] = [
        lambda: model.plot_predictions(ax=value),
        lambda: model.plot(value),
        lambda: model.plot("errors", value),
        lambda: model.plot_importance(value),
        lambda: model.plot_waterfall(value),
        lambda: model.plot_waterfall(effects, value),
        lambda: model.plot_waterfall(effects.assign(effect="x")),
        lambda: model.plot_waterfall(effects.assign(kind="ASV")),
        lambda: model.plot_beeswarm(value),
    ]
    for call in calls:
        with pytest.raises(refused):
            call()
    assert model.plot_waterfall(effects.assign(sample=7)).get_title("left") == "7: 1"
    plt.close("all")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_is_called_gpu_or_cuda(
    run: Path, table: biom.Table, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    place = tmp_path / "kernel"  # whose model computes on the CPU
    aam.AAMRegressor(members="kernel", repeats=1, output_dir=place).fit(table, metadata.ph)
    with pytest.raises(Unavailable, match="No GPU: device cuda"):
        aam.load(place, device="cuda")
    with pytest.raises(Unavailable, match="No GPU: device cuda"):
        aam.load(run, device="gpu")
    with pytest.raises(Unavailable, match="No GPU: device cuda"):
        aam.AAMRegressor(**SMALL | {"network": {"device": "cuda"}}).fit(table, range(36))


def test_unifrac_is_that_of_the_command(study_dir: Path, table: biom.Table, tmp_path: Path) -> None:
    output, tree = tmp_path / "d.tsv", study_dir / "tree.nwk"
    data = ["--table", str(study_dir / "table.biom"), "--tree", str(tree), "--output", str(output)]
    assert main(["unifrac", *data, "--unifrac-metric", "weighted", "--device", "cpu"]) == 0
    expected = DistanceMatrix.read(output)
    for given in (tree, TreeNode.read(str(tree), convert_underscores=False)):
        found = aam.unifrac(table, given, metric="weighted")
        assert isinstance(found, DistanceMatrix)
        assert found.ids == expected.ids
        assert_allclose(found.data, expected.data, atol=1e-6)
    with pytest.raises(UsageError, match="Faith PD is no distance"):
        aam.unifrac(table, tree, metric="faith_pd")


CODE = """
import sys, threading, warnings, aam, biom, numpy
warnings.simplefilter("ignore", aam.AamWarning)
table = biom.load_table(sys.argv[1])
network = aam.TransformerOptions(epochs=1, batch_size=8, embedding_dim=8, attention_heads=2,
                                 attention_layers=1, device="cpu", profile_features=8,
                                 rarefy_depth=0)
model = aam.AAMRegressor(folds=2, repeats=1, members="transformer", network=network,
                         verbose=False)
fit = threading.Thread(target=model.fit, args=(table, numpy.arange(table.shape[1])))
fit.start(); fit.join()
assert model.predict(table).shape == (table.shape[1],)
"""


@pytest.mark.slow
def test_nothing_is_printed_without_verbose_not_even_on_a_terminal(study_dir: Path) -> None:
    """In a thread, where Python cannot handle signals."""
    code = [sys.executable, "-c", CODE, str(study_dir / "table.biom")]
    plain = subprocess.run(code, capture_output=True, text=True, check=True)
    assert plain.stdout + plain.stderr == ""
    shell = " ".join(f"'{part}'" for part in code).replace("'" + CODE + "'", '"$CODE"')
    terminal = subprocess.run(
        ["script", "-qec", shell, "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        env={"CODE": CODE, "PATH": "/usr/bin:/bin", "TERM": "xterm", "HOME": str(study_dir)},
    )
    assert terminal.stdout.strip() == ""


def test_importing_the_package_imports_no_library() -> None:
    code = "import aam, sys; dir(aam); print({'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    # What a user may use, each with a first line, and no module.
    listed = {name: getattr(aam, name) for name in dir(aam) if not name.startswith("_")}
    assert {"AAMClassifier", "AAMRegressor", "Model", "inspect", "load"} < {*listed}
    assert all(inspect.getdoc(value) and not inspect.ismodule(value) for value in listed.values())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        aam.nothing  # noqa: B018
