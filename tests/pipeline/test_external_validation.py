"""`aam evaluate --model`: a model on the samples of another study."""

from __future__ import annotations

import html
import json
import shlex
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import biom
import h5py
import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

import aam as library
from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import DeviceOptions, TableOptions
from aam.data.metadata import read_metadata
from aam.data.simulation import simulate, write_study
from aam.data.study import load_study
from aam.evaluation.external_validation import (
    UNLIKE_TRAINING,
    ExternalValidation,
    PartScores,
    calibration_lines,
    exact_proportion,
)
from aam.evaluation.intervals import Score, Units
from aam.evaluation.labels import Labels
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.scores import Scores
from aam.members.model_file import read_trained
from aam.members.prediction_tables import predict_study, unwritten
from tests.support.commands import aam, read

Capture = pytest.CaptureFixture[str]

TRAINED = 80


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two halves of one simulated population, as studies of their own: train and other."""
    folder = tmp_path_factory.mktemp("studies")
    options = Example(
        output_dir=folder, samples=140, asvs=90, length=60, richness=25, depth=900, sites=3,
        subjects=70, seed=5,
    )  # fmt: skip
    write_study(simulate(options), options)
    table = biom.load_table(str(folder / "table.biom"))
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", index_col=0, skiprows=[1])
    metadata["acid"] = np.where(metadata["ph"] < 6.5, "yes", "no")
    metadata["level"] = pd.cut(metadata["ph"], 3, labels=["low", "middle", "high"])
    for name, ids in (("train", metadata.index[:TRAINED]), ("other", metadata.index[TRAINED:])):
        with h5py.File(folder / f"{name}.biom", "w") as file:
            table.filter(list(ids), inplace=False).to_hdf5(file, "test")
        metadata.loc[ids].to_csv(folder / f"{name}.tsv", sep="\t")
    return folder


def trained(studies: Path, column: str, *more: object) -> Path:
    folder = studies / f"run-{column}"
    if not folder.exists():
        args = ("--table", studies / "train.biom", "--metadata", studies / "train.tsv")
        args = (*args, "--metadata-column", column, "--output-dir", folder, *more)
        assert aam("train", *args, "--folds", 3) == 0
    return folder


def evaluate(model: Path, studies: Path, output: Path, *more: object, **changed: Any) -> int:
    column = changed.get("column", model.name.removeprefix("run-"))
    metadata = changed.get("metadata", studies / "other.tsv")
    args = ("--table", changed.get("table", studies / "other.biom"), "--metadata", metadata)
    args = (*args, "--metadata-column", column, "--output", output)
    return aam("evaluate", "--model", model, *args, *more)


def edited(studies: Path, place: Path, **columns: Any) -> Path:
    """Write the metadata of the other study with changed columns."""
    frame = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0, dtype=str)
    for name, change in columns.items():
        frame[name] = change(frame[name])
    frame.to_csv(place, sep="\t")
    return place


@pytest.mark.medium
def test_classes_are_scored_against_the_frequencies_of_the_training(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model, output = trained(studies, "acid", "--classifier"), tmp_path / "elsewhere"
    capsys.readouterr()
    assert evaluate(model, studies, output, "--by", "site", "--group-column", "subject") == 0
    scores = Scores.read(output / "scores.json")
    truth = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0)
    assert scores.verdict.outcome == "better"
    assert scores.verdict.p is not None
    assert scores.verdict.p < 0.01
    assert scores.verdict.units == f"{truth['subject'].nunique()} groups of subject"
    # The guess is the more frequent class of the training, in every sample.
    before = pd.read_csv(studies / "train.tsv", sep="\t")["acid"]
    guess = before.mode()[0]
    assert scores.models["guess"].metrics["accuracy"].value == (truth["acid"] == guess).mean()
    # The predictions are those of `aam predict`.
    args = ("--table", studies / "other.biom", "--model", model, "--output", tmp_path / "p.tsv")
    assert aam("predict", *args) == 0
    predicted = read(tmp_path / "p.tsv").set_index("sample-id")
    scored = read(output / "predictions.tsv").set_index("sample-id")
    assert len(scored) == len(truth)
    assert np.allclose(predicted.loc[scored.index, "p_yes"], scored["p_yes"], atol=1e-9)
    assert (truth.loc[scored.index, "acid"] == scored["actual"]).all()
    external = scores.external
    assert external is not None
    for column in ("unlike_training", "site"):
        parts = [part for part in external.parts if part.column == column]
        assert sum(part.samples for part in parts) == len(truth)
    assert external.calibration[0].name == "yes"
    page = (output / "report.html").read_text()
    assert "in another study" in page
    assert 'id="calibration-line-' in page
    assert evaluate(model, studies, output) == CannotCreate.status
    assert evaluate(model, studies, output, "--overwrite") == 0
    assert aam("report", output) == 0


@pytest.mark.medium
def test_the_positive_class_reaches_scores_report_and_other_studies(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    args = [studies / "train.biom", studies / "train.tsv", "acid", "--classifier", "--members"]
    args += ["kernel", "--folds", 3, "--output-dir", tmp_path / "run", "--positive-class"]
    assert aam("train", *args, "maybe") == UsageError.status
    assert "the column has no, yes" in capsys.readouterr().err
    assert aam("train", *args[:-1]) == 0
    # `no` is the reference, whichever is the first by its name.
    assert Scores.read(tmp_path / "run" / "scores.json").classes == ["no", "yes"]
    assert "positive class yes" in capsys.readouterr().err
    args.insert(0, "--overwrite")
    assert aam("train", *args, "no") == 0
    assert evaluate(tmp_path / "run", studies, tmp_path / "out", column="acid") == 0
    for folder in (tmp_path / "run", tmp_path / "out"):
        scores = Scores.read(folder / "scores.json")
        assert scores.classes == ["yes", "no"]
        assert "no, AUC 0." in (folder / "report.html").read_text()  # its ROC curve
    assert scores.external is not None
    assert scores.external.calibration[0].name == "no"
    # What follows from the verdict is printed, as after a training.
    assert "Next, new samples: aam predict --model" in capsys.readouterr().out


@pytest.mark.medium
def test_the_command_after_a_model_that_does_not_hold_runs(
    studies: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(studies, "acid", "--classifier")
    wrong = edited(studies, tmp_path / "wrong.tsv", acid=lambda v: np.resize(["yes", "no"], len(v)))
    assert evaluate(model, studies, tmp_path / "out", metadata=wrong) == 0
    shown = capsys.readouterr().out
    assert "the interval of the difference includes 0" in shown
    monkeypatch.chdir(tmp_path)
    assert aam(*shlex.split(shown.splitlines()[-1].partition(": aam ")[2])) == 0
    labels = read_metadata(tmp_path / "both.aam").columns
    assert set(labels["study"]) == {"training", "other"} and set(labels["acid"]) == {"yes", "no"}
    # A store is joined with nothing.
    store = tmp_path / "wrong.aam"
    table = studies / "other.biom"
    assert aam("prepare", "--table", table, "--metadata", wrong, "--output", store) == 0
    output = tmp_path / "from-store"
    assert evaluate(model, studies, output, metadata=store, table=store) == 0
    shown = capsys.readouterr().out
    command = shown.splitlines()[-1].partition(": aam ")[2]
    assert aam(*shlex.split(command)) == 0
    assert html.escape(command) in (output / "report.html").read_text()


@pytest.mark.parametrize(
    ("noise", "expected"), [((0.5, 5.0), "the former better"), ((1.0, 1.0), "not significant")]
)
def test_likeness_says_what_it_predicts(noise: tuple[float, float], expected: str) -> None:
    """Samples that are unlike the training count as less accurate if their score is lower."""
    rng, values_N = np.random.default_rng(0), np.arange(120) / 20
    rows_of = {"no": np.arange(0, 120, 2), "yes": np.arange(1, 120, 2)}
    predicted_N = values_N + np.resize(noise, 120) * rng.normal(size=120)
    scored = ScoredPredictions(values_N, predicted_N)
    parts = [
        PartScores.of(UNLIKE_TRAINING, value, scored, np.arange(120), rows)
        for value, rows in rows_of.items()
    ]
    (sentence,) = ExternalValidation([], parts, []).sentences()
    assert expected in sentence


@pytest.mark.medium
def test_numbers_in_other_units_and_missing_labels_are_stated(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = trained(studies, "ph")
    assert evaluate(model, studies, tmp_path / "same") == 0
    same = Scores.read(tmp_path / "same/scores.json")
    assert same.verdict.outcome == "better"
    assert same.external is not None
    assert not same.external.notes
    line = same.external.calibration[0]
    scored = read(tmp_path / "same/predictions.tsv")
    slope, intercept = np.polyfit(scored["predicted"], scored["actual"], 1)
    assert line.slope.value == pytest.approx(slope)
    assert line.intercept.value == pytest.approx(intercept)
    assert line.shift.value == pytest.approx((scored["actual"] - scored["predicted"]).mean())
    train = pd.read_csv(studies / "train.tsv", sep="\t")["ph"]
    mae = (scored["actual"] - train.mean()).abs().mean()
    assert same.models["guess"].metrics["mae"].value == pytest.approx(mae)
    assert 'id="calibration-line-' in (tmp_path / "same/report.html").read_text()

    def tenfold(values: pd.Series) -> pd.Series:
        changed = (10 * values.astype(float)).astype(str)
        changed.iloc[:5] = ""
        return changed

    metadata = edited(studies, tmp_path / "units.tsv", ph=tenfold)
    capsys.readouterr()
    assert evaluate(model, studies, tmp_path / "units", metadata=metadata) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "5 with 'ph' ''" in printed
    assert "same units" in printed
    found = Scores.read(tmp_path / "units/scores.json")
    assert found.samples == same.samples - 5
    assert found.verdict.outcome == "not better"
    assert found.external is not None
    assert found.external.calibration[0].slope.value == pytest.approx(10 * slope, rel=0.2)


@pytest.mark.medium
def test_names_of_classes_that_the_model_does_not_have(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = trained(studies, "acid", "--classifier")
    whole = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0)["acid"]

    def renamed(values: pd.Series) -> pd.Series:
        changed = values.str.upper()  # YES and NO are yes and no
        changed.iloc[:4] = "perhaps"
        return changed

    capsys.readouterr()
    metadata = edited(studies, tmp_path / "names.tsv", acid=renamed)
    assert evaluate(model, studies, tmp_path / "names", metadata=metadata) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "'YES' of 'acid' counts as the class 'yes'" in printed
    assert "'perhaps' in 4 of 60" in printed
    scored = read(tmp_path / "names/predictions.tsv").set_index("sample-id")
    assert len(scored) == len(whole) - 4
    assert (whole.loc[scored.index] == scored["actual"]).all()
    metadata = edited(
        studies, tmp_path / "others.tsv", acid=lambda v: v.map({"yes": "a", "no": "b"})
    )
    assert evaluate(model, studies, tmp_path / "others", metadata=metadata) == DataError.status
    assert "--relabel acid:" in capsys.readouterr().err
    assert not (tmp_path / "others").exists()


@pytest.mark.medium
def test_a_class_under_another_name_is_refused_with_the_pair(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model, right = trained(studies, "acid", "--classifier"), tmp_path / "right"
    assert evaluate(model, studies, right) == 0
    metadata = edited(studies, tmp_path / "m.tsv", acid=lambda v: v.replace("no", "healthy"))
    capsys.readouterr()
    assert evaluate(model, studies, tmp_path / "o", metadata=metadata) == DataError.status
    printed = " ".join(capsys.readouterr().err.split())
    assert "'healthy' in" in printed and "--relabel acid:healthy=no if they are the same" in printed
    assert not (tmp_path / "o").exists()
    # The remedy gives the scores of the right names; also for a column of another name.
    frame = pd.read_csv(metadata, sep="\t", dtype=str).rename(columns={"acid": "status"})
    frame.to_csv(metadata, sep="\t", index=False)
    pairs = ("--relabel", "status=acid,acid:healthy=no")
    assert evaluate(model, studies, tmp_path / "o", *pairs, metadata=metadata) == 0
    scores = [(folder / "scores.json").read_bytes() for folder in (right, tmp_path / "o")]
    assert scores[0] == scores[1]
    file = tmp_path / "pairs.tsv"
    file.write_text("column\tvalue\tnew\nstatus\t\tacid\nacid\thealthy\tno\n")
    args = ("--predictions", right / "predictions.tsv", "--metadata", metadata)
    json_file = ("--metadata-column", "acid", "--output", tmp_path / "m.json")
    assert aam("evaluate", *args, *json_file, "--relabel-file", file) == 0
    accuracy = Scores.read(right / "scores.json").models["ensemble"].metrics["accuracy"].value
    assert json.loads((tmp_path / "m.json").read_text())["overall"]["accuracy"] == accuracy
    assert (tmp_path / "o/report.html").exists()


@pytest.mark.medium
def test_columns_that_the_model_reads_are_not_relabelled(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    args = ("--table", studies / "train.biom", "--metadata", studies / "train.tsv", "--members")
    more = ("kernel", "--metadata-column", "ph", "--categorical-columns", "site", "--folds", 2)
    assert aam("train", *args, *more, "--output-dir", tmp_path / "run") == 0
    for pair, status in (("site:site-1=site-2", UsageError.status), ("subject=person", 0)):
        output = tmp_path / f"o{status}"
        given = ("--relabel", pair)
        assert evaluate(tmp_path / "run", studies, output, *given, column="ph") == status
        assert output.exists() == (status == 0)


@pytest.mark.medium
def test_a_cohort_of_one_class_has_a_sensitivity_or_specificity(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = trained(studies, "acid", "--classifier")
    for name, title in (("yes", "Sensitivity"), ("no", "Specificity")):
        output = tmp_path / name
        assert evaluate(model, studies, output, "--where", f"acid={name}") == 0
        scored = read(output / "predictions.tsv")
        right = int((scored["predicted"] == name).sum())
        exact = binomtest(right, len(scored)).proportion_ci(0.95, "exact")
        verdict = Scores.read(output / "scores.json").verdict
        limits = Score(right / len(scored), exact.low, exact.high).text()
        assert verdict.sentence.startswith(f"{title} {limits}: {right} of {len(scored)} samples")
        assert (output / "report.html").exists()
        # The command that follows is one that these data allow.
        capsys.readouterr()
        assert evaluate(model, studies, output, "--where", f"acid={name}", "--overwrite") == 0
        [command] = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("Next")
        ]
        words = shlex.split(command.partition(": ")[2])
        words[words.index("TABLE")] = str(studies / "other.biom")
        words[words.index("predictions.tsv")] = str(tmp_path / f"{name}.tsv")
        assert aam(*words[1:]) == 0
    # Of repeated subjects the interval has as many observations as there are subjects.
    grouped = ("--group-column", "subject", "--where", "acid=yes", "--overwrite")
    before = Scores.read(tmp_path / "yes/scores.json").verdict
    assert evaluate(model, studies, tmp_path / "yes", *grouped) == 0
    after = Scores.read(tmp_path / "yes/scores.json").verdict
    assert "groups of subject" in after.sentence and after.sentence != before.sentence
    # Predictions alone.
    args = ("--predictions", tmp_path / "no.tsv", "--metadata", studies / "other.tsv")
    capsys.readouterr()
    assert aam("evaluate", *args, "--metadata-column", "acid", "--where", "acid=no") == 0
    assert "Specificity" in capsys.readouterr().err


@pytest.mark.medium
def test_a_column_of_another_kind_has_a_remedy_that_evaluate_takes(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    for model, column in (("acid", "ph"), ("ph", "acid")):
        run = trained(studies, model)
        capsys.readouterr()
        assert evaluate(run, studies, tmp_path / "o", column=column) == DataError.status
        shown = capsys.readouterr().err
        assert "--classifier" not in shown and "--metadata-column" in shown


def test_few_groups_are_counted_in_each_class(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    frame = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0).iloc[:24]
    frame["subject"] = [f"s{row % 6}" for row in range(24)]
    frame["dx"] = ["case" if row % 6 < 3 else "control" for row in range(24)]
    frame.to_csv(tmp_path / "m.tsv", sep="\t")
    args = ("--table", studies / "other.biom", "--metadata", tmp_path / "m.tsv", "--members")
    more = ("kernel", "--metadata-column", "dx", "--group-column", "subject", "--folds", 3)
    assert aam("train", *args, *more, "--output-dir", tmp_path / "run") == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "3 of 6 groups of subject have the rarer class, at least 6" in printed


@pytest.mark.medium
def test_samples_that_trained_the_model_are_not_scored(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = trained(studies, "ph")
    both, metadata = tmp_path / "both.biom", tmp_path / "both.tsv"
    tables = [biom.load_table(str(studies / f"{name}.biom")) for name in ("train", "other")]
    with h5py.File(both, "w") as file:
        tables[0].merge(tables[1]).to_hdf5(file, "test")
    frames = [pd.read_csv(studies / f"{n}.tsv", sep="\t", dtype=str) for n in ("train", "other")]
    pd.concat(frames).to_csv(metadata, sep="\t", index=False)
    assert evaluate(model, studies, tmp_path / "both", table=both, metadata=metadata) == 0
    assert f"trained this model: {TRAINED}" in " ".join(capsys.readouterr().err.split())
    assert evaluate(model, studies, tmp_path / "other") == 0
    found = [json.loads((tmp_path / n / "scores.json").read_text()) for n in ("both", "other")]
    assert found[0]["verdict"] == found[1]["verdict"]
    args: dict[str, Any] = {"table": studies / "train.biom", "metadata": studies / "train.tsv"}
    assert evaluate(model, studies, tmp_path / "known", **args) == DataError.status


@pytest.mark.medium
def test_ordered_categories_and_columns_of_another_name(studies: Path, tmp_path: Path) -> None:
    model = trained(studies, "level", "--ordinal", "low,middle,high")
    metadata = pd.read_csv(studies / "other.tsv", sep="\t").rename(columns={"level": "grade"})
    metadata.to_csv(tmp_path / "grade.tsv", sep="\t", index=False)
    where = ("--where", "site!=site-1")
    args: dict[str, Any] = {"metadata": tmp_path / "grade.tsv", "column": "grade"}
    assert evaluate(model, studies, tmp_path / "grade", *where, **args) == 0
    scores = Scores.read(tmp_path / "grade/scores.json")
    assert scores.kind == "ordinal"
    assert scores.column == "grade"
    assert scores.samples == (metadata["site"] != "site-1").sum()
    assert {"kernel", "forest", "ensemble", "guess"} == set(scores.models)
    assert (tmp_path / "grade/report.html").is_file()


@pytest.mark.medium
def test_each_of_several_studies_is_scored_alone(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = trained(studies, "ph")
    together = tmp_path / "together"
    assert evaluate(model, studies, together, "--study-column", "site", "--by", "site") == 0
    scores = Scores.read(together / "scores.json")
    assert scores.studies is not None
    assert scores.external is not None
    assert len(scores.studies.studies) == 3
    for study, line in zip(scores.studies.studies, scores.external.calibration, strict=True):
        assert line.study == study.study
        where = ("--where", f"site={study.study}")
        assert evaluate(model, studies, tmp_path / study.study, *where) == 0
        alone = Scores.read(tmp_path / study.study / "scores.json")
        assert alone.external is not None
        assert study.samples == alone.samples
        assert study.metrics["r2"] == alone.models["ensemble"].metrics["r2"]
        assert line.slope.value == pytest.approx(alone.external.calibration[0].slope.value)
    # The verdict and every score of a model are those of the summary over the studies.
    summary = scores.studies.summaries["r2"]
    assert scores.verdict.model == summary.value
    assert scores.models["ensemble"].metrics["r2"].value == summary.value
    assert scores.verdict.units == "3 studies"
    predicted = read(together / "predictions.tsv").set_index("sample-id")
    truth = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0)["site"]
    assert (predicted["study"] == truth.loc[predicted.index]).all()
    page = (together / "report.html").read_text()
    assert 'id="studies-' in page
    assert 'id="calibration-' not in page  # no picture pools the studies
    metadata = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0)
    found = library.load(model).evaluate(
        biom.load_table(str(studies / "other.biom")), metadata, study_column="site", by="site"
    )
    assert found.scores == json.loads((together / "scores.json").read_text())
    # Studies that `aam prepare` joined are named without the option.
    metadata = metadata.rename(columns={"site": "study"})
    metadata.to_csv(tmp_path / "study.tsv", sep="\t")
    capsys.readouterr()
    joined: dict[str, Any] = {"metadata": tmp_path / "study.tsv"}
    assert evaluate(model, studies, tmp_path / "pooled", **joined) == 0
    assert "--study-column study" in capsys.readouterr().err
    assert Scores.read(tmp_path / "pooled/scores.json").studies is None
    options = ("--study-column", "study")
    assert evaluate(model, studies, tmp_path / "named", *options, **joined) == 0
    assert "scored together" not in capsys.readouterr().err
    wrong = ("--study-column", "ph")
    assert evaluate(model, studies, tmp_path / "target", *wrong) == UsageError.status
    single = ("--study-column", "site", "--where", "site=site-1")
    assert evaluate(model, studies, tmp_path / "single", *single) == DataError.status
    assert "single study" in capsys.readouterr().err


@pytest.mark.medium
def test_predict_begins_with_how_well_the_model_did(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Both programs say it: of a good model, of a useless one, and of one without evaluation."""
    good = trained(studies, "ph")
    frame = pd.read_csv(studies / "train.tsv", sep="\t", index_col=0)
    frame["noise"] = np.random.default_rng(0).permutation(frame["ph"])
    frame.to_csv(tmp_path / "noise.tsv", sep="\t")
    useless = tmp_path / "useless"
    args = ("--table", studies / "train.biom", "--metadata", tmp_path / "noise.tsv")
    assert aam("train", *args, "--metadata-column", "noise", "--output-dir", useless) == 0
    table = ("--table", studies / "other.biom")
    for model, is_better in ((good, True), (useless, False)):
        capsys.readouterr()
        assert aam("predict", *table, "--model", model, "--output", tmp_path / "p.tsv") == 0
        (tmp_path / "p.tsv").unlink()
        first = capsys.readouterr().err.splitlines()[0]
        scores = Scores.read(model / "scores.json")
        assert scores.is_better == is_better
        assert "has not been tested on another study" in first
        # The subjects of the training have two samples each.
        repeated = scores.repeated_samples
        known = scores.models["ensemble"].metrics["r2"].value
        assert f"{known if repeated is None else repeated.grouped:.2f}" in first
        assert first.startswith("warning: ") == (not is_better)
        loaded = library.load(model)
        assert first.removeprefix("warning: ") in repr(loaded)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded.predict(studies / "other.biom")
        said = [str(warning.message) for warning in caught]
        assert (first.removeprefix("warning: ") in said) == (not is_better)
    # Of several studies it is the verdict on those that were left out.
    several = tmp_path / "several"
    args = ("--table", studies / "train.biom", "--metadata", studies / "train.tsv")
    target = ("--metadata-column", "ph", "--study-column", "site", "--members", "kernel")
    assert aam("train", *args, *target, "--output-dir", several) == 0
    capsys.readouterr()
    assert aam("predict", *table, "--model", several, "--output", tmp_path / "p.tsv") == 0
    first = capsys.readouterr().err.splitlines()[0].removeprefix("warning: ")
    verdict = Scores.read(several / "scores.json").verdict
    assert first.startswith(f"{verdict.headline}. {verdict.sentence}")
    counts = biom.load_table(str(studies / "train.biom"))
    alone = library.AAMRegressor(members="kernel", evaluate=False).fit(counts, frame["ph"])
    assert "without an evaluation" in repr(alone.model_)


@pytest.mark.medium
def test_python_evaluates_tables_in_memory(studies: Path, tmp_path: Path) -> None:
    model = library.load(trained(studies, "ph"))
    assert evaluate(model.path, studies, tmp_path / "files", "--by", "site") == 0
    table = biom.load_table(str(studies / "other.biom"))
    metadata = pd.read_csv(studies / "other.tsv", sep="\t", index_col=0)
    found = model.evaluate(table, metadata, by="site", output=tmp_path / "memory")
    assert found.scores == json.loads((tmp_path / "files/scores.json").read_text())
    assert (tmp_path / "memory/report.html").is_file()
    assert found.predictions["actual"].equals(metadata.loc[found.predictions.index, "ph"])
    assert model.evaluate(table, metadata, by="site").scores == found.scores
    assert repr(found).endswith(found.scores["verdict"]["sentence"])
    with pytest.raises(DataError, match="no column 'age'"):
        model.evaluate(table, metadata, "age")


@pytest.mark.medium
def test_many_samples_are_predicted_in_blocks(studies: Path, tmp_path: Path) -> None:
    """Less memory, and the same predictions bit by bit."""
    args = ["--table", studies / "train.biom", "--metadata", studies / "train.tsv"]
    args += ["--metadata-column", "ph", "--members", "kernel", "--folds", 2]
    assert aam("train", *args, "--output-dir", tmp_path / "run") == 0
    table, rng = biom.load_table(str(studies / "other.biom")), np.random.default_rng(0)
    known = table.ids("observation").tolist()
    asvs = known + ["".join(rng.choice(list("ACGT"), 60)) for _ in range(400)]
    counts = (rng.random((len(asvs), 2000)) < 0.02) * rng.integers(1, 50, (len(asvs), 2000))
    counts[0] += 1  # every sample has a known ASV
    with h5py.File(tmp_path / "many.biom", "w") as file:
        biom.Table(counts, asvs, [f"s{k}" for k in range(2000)]).to_hdf5(file, "test")
    model = read_trained(tmp_path / "run", DeviceOptions())
    study, peaks, tables = load_study(TableOptions(table=tmp_path / "many.biom")), [], []
    for limit in (1.0, 0.001):
        input = TableOptions(table=tmp_path / "many.biom", max_memory_gb=limit)
        tracemalloc.start()
        options = unwritten(input, DeviceOptions(), tmp_path / "run", None)
        tables.append(predict_study(model, study, options)[0])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] / 2
    assert tables[0].equals(tables[1])


def test_a_model_or_predictions_are_needed(studies: Path, tmp_path: Path, capsys: Capture) -> None:
    known = ("--metadata", studies / "other.tsv", "--metadata-column", "ph")
    assert aam("evaluate", *known) == UsageError.status
    assert "--model" in capsys.readouterr().err
    model = tmp_path / "run"
    model.mkdir()
    assert aam("evaluate", *known, "--model", model) == UsageError.status
    assert "--table" in capsys.readouterr().err
    both = ("--classifier", "--table", studies / "other.biom", "--output", tmp_path / "out")
    assert aam("evaluate", *known, "--model", model, *both) == UsageError.status


def test_calibration_lines_are_those_of_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1.5, 300)
    codes = (rng.random(300) < 1 / (1 + np.exp(-(0.5 * x - 0.7)))).astype(float)
    chances = 1 / (1 + np.exp(-x))
    probabilities = np.stack([1 - chances, chances], axis=1)
    labels = Labels.of(codes, ("no", "yes"), None)
    (line,) = calibration_lines(labels, probabilities, Units.of(labels.groups))
    fitted = LogisticRegression(C=1e9, tol=1e-8).fit(x[:, None], codes)
    assert line.slope.value == pytest.approx(fitted.coef_[0, 0], abs=1e-4)
    assert line.intercept.value == pytest.approx(fitted.intercept_[0], abs=1e-4)
    # With this shift the mean prediction is the frequency of the class.
    assert line.shift.value is not None
    assert (1 / (1 + np.exp(-(x + line.shift.value)))).mean() == pytest.approx(codes.mean())
    # A line that separates the classes has no slope.
    labels = Labels.of((x > 0).astype(float), ("no", "yes"), None)
    (line,) = calibration_lines(labels, probabilities, Units.of(labels.groups))
    assert line.slope.value is None


def test_intervals_of_calibration_hold_their_level() -> None:
    """Of calibrated predictions about 95 % of the intervals have slope 1 and shift 0 inside."""
    rng, inside = np.random.default_rng(1), []
    for _ in range(150):
        x = rng.normal(0, 1.2, 80)
        chances = 1 / (1 + np.exp(-x))
        codes = (rng.random(80) < chances).astype(float)
        labels = Labels.of(codes, ("no", "yes"), None)
        probabilities = np.stack([1 - chances, chances], axis=1)
        (line,) = calibration_lines(labels, probabilities, Units.of(labels.groups))
        for score, truth in ((line.slope, 1), (line.shift, 0)):
            assert score.lower is not None
            assert score.upper is not None
            inside.append(score.lower <= truth <= score.upper)
    slopes, shifts = np.mean(inside[::2]), np.mean(inside[1::2])
    assert 0.9 <= slopes <= 0.99
    assert 0.9 <= shifts <= 0.99


@pytest.mark.parametrize(("subjects", "samples", "correlation"), [(30, 1, 0.0), (20, 5, 0.5)])
def test_the_interval_of_one_class_holds_its_level(
    subjects: int, samples: int, correlation: float
) -> None:
    rng, truth, cohorts = np.random.default_rng(4), 0.8, 1000
    chances = np.full((cohorts, subjects), truth)
    if correlation:
        total = 1 / correlation - 1
        chances = rng.beta(truth * total, (1 - truth) * total, size=chances.shape)
    shares = rng.binomial(samples, chances).mean(axis=1) / samples

    def coverage(units: int) -> float:
        scores = [exact_proportion(share, units) for share in shares.tolist()]
        return float(np.mean([(s.lower or 0) <= truth <= (s.upper or 0) for s in scores]))

    assert coverage(subjects) > 0.94
    # Samples of a subject are no independent observations.
    assert samples == 1 or coverage(subjects * samples) < 0.9


@pytest.mark.medium
def test_a_model_stores_the_threshold_of_its_left_out_predictions(
    studies: Path, tmp_path: Path, capsys: Capture
) -> None:
    """At a sensitivity of 0.9: in the run, on its page, and in another study."""
    args = ("--table", studies / "train.biom", "--metadata", studies / "train.tsv")
    args = (*args, "--metadata-column", "acid", "--sensitivity", 0.9, "--folds", 3)
    assert aam("train", *args, "--output-dir", tmp_path / "run", "--members", "forest") == 0
    default, chosen = Scores.read(tmp_path / "run/scores.json").thresholds
    stored = read_trained(tmp_path / "run", DeviceOptions()).facts.threshold
    assert chosen.threshold == stored and len(chosen.folds) == 3
    # Splitting removes the no-break spaces of the page.
    page = " ".join((tmp_path / "run/report.html").read_text().split())
    for scores in (default, chosen):
        for score in scores.metrics.values():
            assert score.text() in page
    assert evaluate(tmp_path / "run", studies, tmp_path / "e", column="acid") == 0
    _, elsewhere = Scores.read(tmp_path / "e/scores.json").thresholds
    assert (elsewhere.rule, elsewhere.threshold) == ("sensitivity 0.9", stored)
    scored = read(tmp_path / "e/predictions.tsv")
    positives = scored[scored["actual"] == "yes"]
    sensitivity = float((positives["p_yes"] >= stored).mean())
    assert elsewhere.metrics["sensitivity"].value == pytest.approx(sensitivity)
    page = " ".join((tmp_path / "e/report.html").read_text().split())
    assert elsewhere.metrics["sensitivity"].text() in page
    # Predictions are those of the most probable class, as without the option.
    assert (scored["predicted"] == np.where(scored["p_yes"] > 0.5, "yes", "no")).all()
    # Of more classes there is none.
    words = [*args, "--classifier", "--output-dir", tmp_path / "three", "--members", "forest"]
    words[words.index("acid")] = "level"
    assert aam("train", *words) == DataError.status
    assert "3 classes" in capsys.readouterr().err and not (tmp_path / "three/run.json").exists()
