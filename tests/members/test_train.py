"""`aam train` with members, and `aam predict` with their ensemble, on a simulated study."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from biom import load_table

from aam.contract.errors import DataError, UsageError
from tests.support.commands import TINY, aam, merged, read
from tests.support.models import rewrite
from tests.support.run_folders import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, samples=80)
    return folder


def train(study: Path, folder: Path, *args: object, column: str = "ph") -> int:
    depth = ("--rarefy-depth", 0) if "transformer" in args else ()
    defaults = (
        "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
        "--metadata-column", column, "--output-dir", folder, *depth,
    )  # fmt: skip
    return aam("train", *merged(defaults, args))


def predict(run: Path, study: Path, output: Path, *args: object) -> int:
    given = ("--model", run, "--table", study / "table.biom", "--output", output)
    return aam("predict", *given, *args)


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with nothing but table, metadata, column and group."""
    folder = tmp_path_factory.mktemp("runs") / "ph"
    assert train(study, folder, "--group-column", "subject") == 0
    return folder


@pytest.mark.medium
def test_kernel_and_forest_are_the_default(run: Path) -> None:
    scores = json.loads((run / "scores.json").read_text())
    assert list(scores["models"]) == ["ensemble", "kernel", "forest", "guess"]
    assert (scores["samples"], scores["groups"], scores["part"]) == (80, 20, "test")
    r2 = {name: model["metrics"]["r2"] for name, model in scores["models"].items()}
    assert r2["ensemble"]["value"] > 0.3 > r2["guess"]["value"]
    assert r2["ensemble"]["lower"] < r2["ensemble"]["value"] < r2["ensemble"]["upper"]
    # The ensemble is the kernel in every fold, so that it has no difference from it.
    assert [(d["model"], d["reference"]) for d in scores["differences"]] == [
        ("ensemble", "forest"), ("kernel", "forest")
    ]  # fmt: skip
    assert "20 groups of subject" in scores["differences"][0]["sentence"]
    record = json.loads((run / "run.json").read_text())
    assert record["members"] == ["kernel", "forest"]
    assert record["options"]["folds"] == "auto"
    assert record["finished"]


@pytest.mark.medium
def test_reads_of_equal_sequences_are_summed(study: Path, tmp_path: Path) -> None:
    """By every member, in training and in prediction, and from a prepared study.

    Half of the reads are those of the same sequences in lower case.
    """
    whole = load_table(str(study / "table.biom")).to_dataframe(dense=True).astype(int)
    half = whole // 2
    divided = pd.concat([whole - half, half.rename(index=str.lower)])
    labels = ("--metadata", study / "metadata.tsv", "--metadata-column", "ph")
    members = ("--members", "kernel", "forest", "transformer", "--folds", 1, "--rarefy-depth", 1000)
    found = {}
    for name, table in {"whole": whole, "divided": divided}.items():
        path, new = tmp_path / f"{name}.tsv", tmp_path / "new.tsv"
        table.to_csv(path, sep="\t", index_label="#OTU ID")
        run, given = tmp_path / name, ("--table", path)
        assert aam("train", *given, *labels, *members, *TINY, "--output-dir", run) == 0
        output = ("--output", new, "--overwrite", "--device", "cpu")
        assert aam("predict", "--model", tmp_path / "whole", *given, *output) == 0
        found[name] = [read(run / "predictions.tsv"), read(new)]
    for one, other in zip(found["whole"], found["divided"], strict=True):
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.medium
@pytest.mark.parametrize(
    "groups", [pytest.param((), marks=pytest.mark.nightly), ("--group-column", "subject")]
)
def test_the_order_of_the_rows_changes_nothing(
    study: Path, tmp_path: Path, groups: tuple[str, ...]
) -> None:
    """Of table, metadata and splits file; bags and halves of the forest are drawn by row."""
    counts = load_table(str(study / "table.biom")).to_dataframe(dense=True).astype(int)
    shuffled = counts.sample(frac=1, axis=1, random_state=0).sample(frac=1, random_state=0)
    shuffled.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str)
    types, samples = metadata[:1], metadata[1:].sample(frac=1, random_state=0)
    pd.concat([types, samples]).to_csv(tmp_path / "metadata.tsv", sep="\t", index=False)
    assert train(study, tmp_path / "a", "--folds", 3, *groups) == 0
    splits = read(tmp_path / "a" / "splits.tsv").sample(frac=1, random_state=0)
    splits.to_csv(tmp_path / "splits.tsv", sep="\t", index=False)
    given = ("--table", tmp_path / "table.tsv", "--metadata", tmp_path / "metadata.tsv")
    for name, folds in {"b": ("--folds", 3), "c": ("--splits", tmp_path / "splits.tsv")}.items():
        options = ("--metadata-column", "ph", "--output-dir", tmp_path / name)
        assert aam("train", *given, *options, *folds, *groups) == 0
        # Sums of the kernel round by the order of the matrices that BLAS chooses.
        pd.testing.assert_frame_equal(
            read(tmp_path / "a" / "predictions.tsv"),
            read(tmp_path / name / "predictions.tsv"),
            rtol=1e-9,
        )


@pytest.mark.medium
def test_a_kernel_and_a_forest_need_neither_a_loop_nor_a_tree_nor_a_depth(
    study: Path, tmp_path: Path
) -> None:
    """The tree lacks ASVs of the table, and one sample has a tenth of the reads of the others."""
    table = load_table(str(study / "table.biom")).to_dataframe(dense=True).astype(int)
    table.iloc[:, 0] = -(table.iloc[:, 0] // -10)
    table.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    (tmp_path / "tree.nwk").write_text(f"({table.index[0]}:1,{table.index[1]}:1);")
    args = ["train", "--table", tmp_path / "table.tsv", "--tree", tmp_path / "tree.nwk",
            "--metadata", study / "metadata.tsv", "--metadata-column", "ph", "--folds", 2,
            "--repeats", 1,
            "--output-dir", tmp_path / "run", "--cpu-threads", 1]  # fmt: skip
    code = (
        "import sys\n"
        "from aam.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "import joblib\n"
        "print(joblib.effective_n_jobs(-1), *sorted(sys.modules))\n"
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "this option has no effect: --tree." in done.stderr
    assert len(read(tmp_path / "run" / "predictions.tsv")) == 80
    threads, *modules = done.stdout.splitlines()[-1].split()
    assert threads == "1"  # of the forest
    unused = {"torch", "aam.network.door", "aam.network.training.runs", "aam.network.training.loop"}
    assert not set(modules) & unused


@pytest.mark.medium
def test_predictions_are_held_out_by_group_with_intervals(run: Path) -> None:
    found = read(run / "predictions.tsv")
    assert list(found) == ["sample-id", "fold", "split", "actual", "predicted", "lower", "upper",
                           "kernel_predicted", "forest_predicted"]  # fmt: skip
    assert len(found) == found["sample-id"].nunique() == 80
    covered = ((found["lower"] <= found["actual"]) & (found["actual"] <= found["upper"])).mean()
    assert 0.82 <= covered <= 1
    scores = json.loads((run / "scores.json").read_text())
    assert scores["interval"]["covered"] == pytest.approx(covered)
    # The prediction is the weighted mean of the members.
    folds = scores["weights"]["folds"]
    assert len(folds) == found["fold"].max() == 5
    mean = sum(
        found[f"{name}_predicted"] * [folds[fold - 1][name] for fold in found["fold"]]
        for name in ("kernel", "forest")
    )
    assert found["predicted"].to_numpy() == pytest.approx(mean.to_numpy(), rel=1e-5)


@pytest.mark.medium
def test_compare_has_the_intervals_of_the_training(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    assert aam("compare", run, copy) == 0
    r2 = json.loads((run / "scores.json").read_text())["models"]["ensemble"]["metrics"]["r2"]
    shown = f"{r2['value']:.3f} ({r2['lower']:.3f} to {r2['upper']:.3f})"
    printed = capsys.readouterr().out
    assert printed.count(shown) == 2
    # Equal predictions are no difference within noise, and what the ensemble is stands beside.
    assert "the same predictions" in printed
    assert "The ensemble of copy is " in printed


@pytest.mark.medium
def test_predict_needs_the_checkpoint_alone(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The final members are fitted to all samples, so these predictions are closer."""
    model = Path(shutil.copytree(run / "model", tmp_path / "copy"))
    assert predict(model, study, tmp_path / "a.tsv") == 0
    capsys.readouterr()
    assert predict(run, study, tmp_path / "b.tsv", "--prediction-passes", 3) == 0
    warning = "Without the member transformer this option has no effect: --prediction-passes."
    assert warning in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()
    found, held = read(tmp_path / "a.tsv"), read(run / "predictions.tsv").set_index("sample-id")
    held = held.loc[found["sample-id"]]
    width = found["upper"] - found["lower"]
    assert width.to_numpy() == pytest.approx(width.iloc[0])
    own, other = (np.abs(t["predicted"].to_numpy() - held["actual"].to_numpy()).mean()
                  for t in (found, held))  # fmt: skip
    assert own < other


@pytest.mark.slow
def test_classes_have_calibrated_probabilities(study: Path, tmp_path: Path) -> None:
    assert train(study, tmp_path / "site", "--classifier", "--folds", 4, column="site") == 0
    scores = json.loads((tmp_path / "site" / "scores.json").read_text())
    assert scores["metric"] == "auc"
    auc = {name: model["metrics"]["auc"]["value"] for name, model in scores["models"].items()}
    assert auc["ensemble"] > 0.7
    assert auc["guess"] == 0.5
    assert scores["calibration"]["log_loss"] < 1
    assert scores["interval"] is None
    assert predict(tmp_path / "site", study, tmp_path / "p.tsv") == 0
    found = read(tmp_path / "p.tsv")
    columns = ["p_site-1", "p_site-2", "p_site-3"]
    assert found[columns].to_numpy().sum(axis=1) == pytest.approx(1)
    assert {f"kernel_{name}" for name in columns} < set(found)
    args = ("--metadata", study / "metadata.tsv", "--metadata-column", "site", "--classifier")
    args = ("--predictions", tmp_path / "site" / "predictions.tsv", *args)
    assert aam("evaluate", *args, "--output", tmp_path / "f.json") == 0
    again = json.loads((tmp_path / "f.json").read_text())
    assert again["overall"]["auc"] == pytest.approx(auc["ensemble"])
    assert aam("report", "--run-dir", tmp_path / "site") == 0
    scores["models"]["ensemble"]["metrics"]["auc"]["value"] = 0.99
    (tmp_path / "site" / "scores.json").write_text(json.dumps(scores))
    assert aam("report", "--run-dir", tmp_path / "site") == DataError.status


@pytest.mark.medium
def test_the_transformer_is_a_member_too(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--members", "transformer", "forest", "--folds", 2, *TINY)
    quantiles = ("--loss-type", "quantile", "--quantiles", 0.2, 0.8)
    assert train(study, tmp_path / "run", *args, *quantiles) == 0
    # Trained for so few steps, it lowers the error of the forest in no fold.
    weights = json.loads((tmp_path / "run" / "scores.json").read_text())["weights"]
    assert [weights["model"], *weights["folds"]] == 3 * [{"forest": 1, "transformer": 0}]
    printed = " ".join(capsys.readouterr().err.split())
    assert "transformer has weight 0 for new samples" in printed
    found = read(tmp_path / "run" / "predictions.tsv")
    assert (found["q_0.2"] <= found["q_0.8"]).all()
    members = found[["transformer_predicted", "forest_predicted"]]
    assert found["predicted"].between(members.min(axis=1), members.max(axis=1)).all()
    for fold in (1, 2):  # it predicts by all samples of the other fold
        assert (tmp_path / "run" / f"fold-{fold}" / "checkpoints" / "best.ckpt").exists()
    model = Path(shutil.copytree(tmp_path / "run" / "model", tmp_path / "copy"))
    assert predict(model, study, tmp_path / "p.tsv") == 0
    new = read(tmp_path / "p.tsv")
    assert (new["q_0.2"] <= new["q_0.8"]).all()
    assert new["transformer_predicted"].equals(new["q_0.2"])  # of both the nearest to 0.5
    assert (new["spread"] > 0).any()  # of the models of two folds
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["members"] == ["forest", "transformer"]
    assert len(record["folds"]) == 2


@pytest.mark.medium
def test_a_transformer_alone_has_intervals_and_confounders(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    metadata["temperature"] = [f"{2 * float(ph):.2f}" for ph in metadata["ph"]]
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t", index=False)
    args = ("--members", "transformer", "--metadata", tmp_path / "metadata.tsv", *TINY)
    assert train(study, tmp_path / "run", *args) == 0
    assert "'temperature' determines 'ph'" in capsys.readouterr().err
    found = read(tmp_path / "run" / "predictions.tsv")
    assert (found["lower"] < found["predicted"]).all()
    assert found["predicted"].equals(found["transformer_predicted"])
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["confounders"][0]["column"] == "temperature"
    assert scores["interval"]["half_width"] > 0
    best = json.loads((tmp_path / "run" / "run.json").read_text())["best"]
    assert {"val_loss", "validation_r2"} <= {name.removeprefix("best_") for name in best}


@pytest.mark.medium
def test_columns_that_predict_as_well_as_the_table_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch that follows the pH is named.

    A batch at random, names of samples, and infinite and large numbers are not.
    """
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    ph = metadata["ph"].astype(float)
    metadata["batch"] = [f"batch {k:.0f}" for k in ph]
    # Numbers in any order, which float32 does not tell apart.
    metadata["run"] = [str(1_000_012_300 + 5 * round(k) % 7) for k in ph]
    metadata["chance"] = [f"batch {k % 4}" for k in range(len(metadata))]
    metadata["name"] = [f"name {k}" for k in range(len(metadata))]
    metadata["lowest"] = ["-Inf", *(str(k % 7) for k in range(len(metadata) - 1))]
    metadata["highest"] = ["3.5e38", *(str(k % 5) for k in range(len(metadata) - 1))]
    metadata["temperature"] = [f"{k:.2f}" for k in 3 * ph]
    path = tmp_path / "metadata.tsv"
    metadata.to_csv(path, sep="\t", index=False)
    args = ("--metadata", path, "--members", "kernel", "--group-column", "subject")
    assert train(study, tmp_path / "run", *args) == 0
    named = json.loads((tmp_path / "run" / "scores.json").read_text())["confounders"]
    forms = {one["column"]: one["other_form"] for one in named}
    assert forms == {"batch": False, "run": False, "temperature": True}
    shown = " ".join(capsys.readouterr().err.split())
    assert "2 metadata columns each predict the target" in shown and "'batch' 0." in shown
    assert shown.count("'temperature' determines 'ph' almost exactly (R² 0.") == 1
    assert "'temperature' alone" not in shown
    assert aam("report", "--run-dir", tmp_path / "run") == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("possible confounder") == 2
    assert page.count(">another form of the target") == 1


@pytest.mark.medium
@pytest.mark.parametrize(
    "kind", [("--classifier",), ("--ordinal", "site-1,site-2,site-3")], ids=["classes", "ordered"]
)
def test_a_score_is_another_form_of_its_categories(
    study: Path, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """A score whose ranges are the categories is named apart from a column that only predicts."""
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    site = metadata["site"].str.removeprefix("site-").astype(int)
    assert set(site) == {1, 2, 3}
    row = np.arange(len(site))
    metadata["score"] = [f"{k:.2f}" for k in 3 * site + row % 7 / 7]
    metadata["clinic"] = [f"clinic {k}" for k in np.where(row % 12 == 0, site % 3 + 1, site)]
    path = tmp_path / "metadata.tsv"
    metadata.to_csv(path, sep="\t", index=False)
    args = ("--metadata", path, "--members", "forest", *kind)
    assert train(study, tmp_path / "run", *args, column="site") == 0
    named = json.loads((tmp_path / "run" / "scores.json").read_text())["confounders"]
    forms = {one["column"]: one["other_form"] for one in named}
    assert forms["score"] is True and forms["clinic"] is False


def test_groups_that_are_the_target_are_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ("--table", study / "table.biom", "--metadata", study / "metadata.tsv")
    target = ("--metadata-column", "site", "--classifier", "--group-column", "site")
    assert aam("train", *table, *target, "--output-dir", tmp_path / "run") == UsageError.status
    assert "The groups are the target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "The target is the same in all training samples"),
        (("--classifier",), "A class has no training sample: 1 (4)"),
    ],
)
def test_a_target_that_varies_in_one_group_alone_is_refused(
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    message: str,
) -> None:
    """The fold that holds this group out has a single value to train with."""
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    inside = metadata["subject"] == metadata["subject"][0]
    metadata["score"] = inside.map({True: "4", False: "5"})
    path = tmp_path / "metadata.tsv"
    metadata.to_csv(path, sep="\t", index=False)
    given = ("--metadata", path, "--group-column", "subject", "--members", "kernel", *args)
    assert train(study, tmp_path / "run", *given, column="score") == DataError.status
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run" / "scores.json").exists()


def test_kernel_and_forest_train_without_a_class_that_one_fold_holds_out(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The network, which begins at the frequencies of the classes, refuses the fold."""
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    inside = metadata["subject"] == metadata["subject"][0]
    metadata["score"] = metadata["site"].where(~inside, "rare")
    path = tmp_path / "metadata.tsv"
    metadata.to_csv(path, sep="\t", index=False)
    given = ("--metadata", path, "--group-column", "subject", "--classifier", "--folds", 3)
    members = ("--members", "kernel", "forest")
    assert train(study, tmp_path / "run", *given, *members, column="score") == 0
    found = read(tmp_path / "run" / "predictions.tsv").set_index("sample-id")
    held_out = found.loc[metadata["sample-id"][inside], "p_rare"]
    assert (held_out < 0.5).all() and np.isfinite(held_out).all()
    capsys.readouterr()
    network = (*given, "--members", "transformer", "--batch-size", 8, "--rarefy-depth", 100)
    assert train(study, tmp_path / "network", *network, column="score") == DataError.status
    printed = " ".join(capsys.readouterr().err.split())
    assert "A class has no training sample: 1 (rare)" in printed
    assert "leave its samples out (--where)" in printed and "--seed" not in printed


@pytest.mark.medium
def test_a_logarithmic_target_is_transformed_for_every_member(study: Path, tmp_path: Path) -> None:
    args = ("--members", "kernel", "--target-transform", "log-zscore", "--folds", 2)
    assert train(study, tmp_path / "log", *args) == 0
    assert train(study, tmp_path / "plain", *args[:2], *args[4:]) == 0
    one, two = (read(tmp_path / name / "predictions.tsv")["predicted"] for name in ("log", "plain"))
    assert not np.allclose(one, two)
    assert np.abs(one - two).max() < 1


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ("--members kernel --freeze-base", "--freeze-base without --members transformer"),
        ("--members kernel kernel", "--members kernel kernel"),
        ("--resume-from /", "--resume-from / with --members kernel forest"),
    ],
)
def test_refusals(
    study: Path, tmp_path: Path, args: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(study, tmp_path / "run", *args.split()) == UsageError.status
    assert shown in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_options_of_the_network_without_it_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--members", "kernel", "--epochs", 3, "--seed", 3, "--loss-type", "mse")
    assert train(study, tmp_path, *args, "--folds", 1) == 0
    assert "no effect: --epochs, --loss-type." in capsys.readouterr().err
    # A single split is validated.
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert (scores["part"], scores["samples"]) == ("validation", 16)


@pytest.mark.medium
def test_damaged_ensembles_are_refused(run: Path, study: Path, tmp_path: Path) -> None:
    for changed in (
        lambda content: content.facts.update(levels=["a"]),
        lambda content: content.settings["kernel"].update(gamma="wide"),
        lambda content: content.arrays["forest"].pop("values"),
        lambda content: content.settings.pop("forest"),
        lambda content: content.arrays.pop("training"),
        lambda content: content.arrays["training"].update(tokens=np.full((300, 60), 9, np.uint8)),
        *(
            lambda content, name=name: content.arrays["training"].update(
                {name: content.arrays["training"][name][:-1]}
            )
            for name in ("richness_R", "landmarks/starts")
        ),
        lambda content: content.arrays["training"].update(richness_R=np.empty(0, np.int64)),
        lambda content: content.arrays["kernel"]["starts"].fill(0),
    ):
        model = rewrite(run, tmp_path / "changed", changed)
        assert predict(model, study, tmp_path / "p.tsv") == DataError.status
    assert predict(rewrite(run, tmp_path / "same", id), study, tmp_path / "p.tsv") == 0


@pytest.mark.medium
def test_predictions_stay_in_the_range_of_the_outputs(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--members", "kernel", "--folds", 2)
    bounds = ("--output-min", 3, "--output-max", 9.5)
    assert train(study, tmp_path / "run", *args, *bounds) == 0
    assert "no effect" not in capsys.readouterr().err
    assert predict(tmp_path / "run", study, tmp_path / "p.tsv") == 0
    for path in (tmp_path / "run" / "predictions.tsv", tmp_path / "p.tsv"):
        found = read(path)[["predicted", "lower", "upper", "kernel_predicted"]]
        assert found.to_numpy().min() >= 3
        assert found.to_numpy().max() <= 9.5
    assert (found == 9.5).to_numpy().any()
    narrow = ("--output-max", 6)
    assert train(study, tmp_path / "narrow", *args, *narrow) == DataError.status
    assert "Values of 'ph' are outside the range of the outputs" in capsys.readouterr().err
    empty = ("--output-min", 9, "--output-max", -1)
    assert train(study, tmp_path / "empty", *args, *empty) == UsageError.status
    classes = ("--classifier", "--output-max", 6)
    assert train(study, tmp_path / "c", *args, *classes, column="site") == UsageError.status
