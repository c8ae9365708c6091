"""Ordinal targets: training, prediction, evaluation and report of ordered categories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.metrics import accuracy_score, cohen_kappa_score

from aam.contract.errors import DataError, UsageError
from aam.evaluation.calibration import fit_proportional_odds, median_codes
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.prediction_files import class_predictions
from aam.evaluation.splits import make_splits
from aam.members.member import TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.network.inference.stored_networks import read_networks
from aam.pipeline.cross_validation import combine_results
from aam.serialization import model_folder
from tests.support.commands import TINY, aam, merged, read
from tests.support.run_folders import make_study

LEVELS = ("low", "mid", "high")
"""The alphabetical order is another one."""
ORDER = ("--ordinal", "low,mid,high")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with its pH in three ordered categories, and with a category of one sample."""
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, samples=80)
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    parts = pd.qcut(metadata["ph"].astype(float), 3, labels=LEVELS).astype(str)
    metadata["acidity"] = parts
    metadata["rare"] = ["mid" if name == "high" else name for name in parts]
    metadata.loc[0, "rare"] = "high"
    metadata["stage"] = [str(1 + LEVELS.index(name)) for name in parts]
    metadata.to_csv(folder / "metadata.tsv", sep="\t", index=False)
    return folder


def labelled(study: Path, column: str = "acidity") -> list[object]:
    return [
        *("--table", study / "table.biom", "--metadata", study / "metadata.tsv"),
        *("--metadata-column", column),
    ]


def train(study: Path, folder: Path, *args: object, column: str = "acidity") -> int:
    """Train the kernel on one split; later arguments win."""
    defaults = ("--rarefy-depth", 0, "--members", "kernel", "--folds", 1)
    defaults = (*labelled(study, column), "--output-dir", folder, *defaults)
    return aam("train", *merged(defaults, args))


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "acidity"
    args = (*ORDER, "--folds", 3, "--group-column", "subject")
    assert train(study, folder, *args) == 0
    return folder


def ranks_of(names: pd.Series) -> np.ndarray:
    return np.array([LEVELS.index(name) for name in names])


def check_median(found: pd.DataFrame) -> None:
    """The category is the first with a cumulative probability of one half."""
    cumulative = found[[f"p_{name}" for name in LEVELS]].to_numpy().cumsum(axis=1)
    np.testing.assert_allclose(cumulative[:, -1], 1)
    assert (np.diff(cumulative) >= 0).all()
    np.testing.assert_array_equal(ranks_of(found["predicted"]), (cumulative >= 0.5).argmax(axis=1))


def test_predictions_have_category_rank_and_probabilities(run: Path) -> None:
    found = read(run / "predictions.tsv")
    assert list(found) == ["sample-id", "fold", "split", "actual", "predicted", "rank", "p_low",
                           "p_mid", "p_high", "lower", "upper", "kernel_rank"]  # fmt: skip
    assert len(found) == 80 and set(found["actual"]) == set(LEVELS)
    assert found["rank"].between(0, 2).all() and found["rank"].nunique() > 40
    check_median(found)
    # The ranks are in the given order: they rise with the true category.
    means = found.groupby("actual")["rank"].mean()
    assert means["low"] < means["mid"] < means["high"]


def test_scores_are_those_of_ordered_classes(run: Path) -> None:
    table = read(run / "predictions.tsv")
    actual, predicted = ranks_of(table["actual"]), ranks_of(table["predicted"])
    scores = json.loads((run / "scores.json").read_text())
    assert (scores["kind"], scores["classes"]) == ("ordinal", list(LEVELS))
    assert scores["metric"] == "weighted_kappa"
    found = scores["models"]["ensemble"]["metrics"]
    kappa = cohen_kappa_score(actual, predicted, weights="quadratic")
    assert found["weighted_kappa"]["value"] == pytest.approx(kappa) and kappa > 0.2
    assert found["weighted_kappa"]["lower"] < kappa < found["weighted_kappa"]["upper"]
    assert found["mae_ranks"]["value"] == pytest.approx(np.abs(actual - predicted).mean())
    assert found["accuracy"]["value"] == pytest.approx(accuracy_score(actual, predicted))
    constant = scores["models"]["guess"]["metrics"]
    assert constant["weighted_kappa"]["value"] < kappa


def test_new_samples_are_predicted_and_evaluated(
    study: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, figures = tmp_path / "new.tsv", tmp_path / "figures.json"
    args = ("--table", study / "table.biom", "--output", output)
    assert aam("predict", "--model", run, *args) == 0
    found = read(output).drop(columns="split")  # it names them training samples
    found.to_csv(output, sep="\t", index=False)
    assert list(found)[:3] == ["sample-id", "predicted", "rank"]
    check_median(found)
    known = labelled(study)[2:]
    args = ("--predictions", output, *known, "--output", figures)
    assert aam("evaluate", *args, "--ordinal", *LEVELS) == 0
    assert "Weighted kappa" in capsys.readouterr().out
    scored = json.loads(figures.read_text())
    truth = read(study / "metadata.tsv").set_index("sample-id").loc[found["sample-id"], "acidity"]
    expected = np.abs(ranks_of(truth) - ranks_of(found["predicted"])).mean()
    assert scored["overall"]["mae_ranks"] == pytest.approx(expected)
    assert scored["confusion"]["classes"] == list(LEVELS)
    args = ("--predictions", output, *known, "--ordinal", "low,mid")
    assert aam("evaluate", *args) == DataError.status


def test_predictions_outside_the_order_are_refused() -> None:
    table = pd.DataFrame({"sample-id": ["a", "b"], "predicted": ["low", "huge"]})
    with pytest.raises(DataError, match=r"not in the order .*: 1 \(huge\), --ordinal"):
        class_predictions(table, ["low", "mid"], LEVELS)


def test_report_and_a_run_on_the_same_splits(
    study: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = tmp_path / "beside"
    args = ("--members", "kernel", "--splits", run / "splits.tsv", "--output-dir", beside)
    assert aam("train", *labelled(study), *ORDER, *args) == 0
    own, other = read(run / "predictions.tsv"), read(beside / "predictions.tsv")
    joined = own.merge(other, on=["sample-id", "fold"])
    assert len(joined) == 80
    assert (joined["predicted_x"] == joined["predicted_y"]).mean() > 0.9
    page = tmp_path / "report.html"
    assert aam("report", "--run-dir", run, "--output", page) == 0
    text = page.read_text(encoding="utf-8")
    parts = ("Weighted kappa", "MAE, ranks", "By class", "Confusion", "ranks (it covers")
    for part in parts:
        assert part in text
    assert aam("compare", run, run) == 0
    assert "Weighted kappa" in capsys.readouterr().out


@pytest.mark.medium
def test_the_transformer_learns_ranks(study: Path, tmp_path: Path) -> None:
    """Alone, resumed, and beside the kernel in an ensemble."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    args = (*TINY, *ORDER, "--members", "transformer", "--loss-type", "mae")
    assert train(study, alone, *args) == 0
    target = read_networks(alone)[0].config.target
    assert target is not None
    assert (target.levels, target.classes, target.range.highest) == (LEVELS, (), 2.0)
    more = ("--resume-from", alone / "checkpoints" / "last.ckpt", "--epochs", 2)
    assert train(study, tmp_path / "reversed", *args, *more, "--ordinal", "high,mid,low") != 0
    assert train(study, tmp_path / "resumed", *args, *more) == 0
    output = tmp_path / "new.tsv"
    predict = ("predict", "--table", study / "table.biom", "--device", "cpu", "--output")
    assert aam(*predict, output, "--model", alone) == 0
    check_median(read(output))
    held_out = read(alone / "predictions.tsv")
    assert {"rank", "p_low", "transformer_rank"} <= set(held_out)
    check_median(held_out)
    assert json.loads((alone / "scores.json").read_text())["kind"] == "ordinal"
    assert train(study, both, *merged(args, ("--members", "kernel", "transformer"))) == 0
    assert tuple(model_folder.read(both).facts["levels"]) == LEVELS
    columns = set(read(both / "predictions.tsv"))
    assert {"rank", "p_low", "kernel_rank", "transformer_rank"} <= columns


def test_numbers_as_categories_and_rare_ones(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(study, tmp_path / "stage", "--ordinal", "1,2,3,4", column="stage") == 0
    shown = capsys.readouterr().err
    assert "that no sample has in 'stage': 1 (4)." in shown
    assert " ranks (it covers" in " ".join(shown.split())
    assert set(read(tmp_path / "stage" / "predictions.tsv")["predicted"]) <= {1, 2, 3, 4}
    assert train(study, tmp_path / "rare", *ORDER, column="rare") == 0
    assert "Classes of 'rare' with a single sample: 1 (high)." in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_scores_the_weighted_kappa(study: Path, tmp_path: Path) -> None:
    """The inner folds have few subjects, fewer than the parts of --test-size."""
    pytest.importorskip("optuna")
    args = (*labelled(study), *ORDER, "--group-column", "subject")
    args = (*args, "--rarefy-depth", 0, "--members", "kernel", "--folds", 2, "--inner-folds", 2)
    search = ("--trials", 1, "--vary", "seed=1,2", "--output-dir", tmp_path / "search")
    assert aam("search", *args, *search) == 0
    found = json.loads((tmp_path / "search" / "search.json").read_text())
    assert found["metric"] == "weighted_kappa"
    assert all(-1 <= fold["inner"] <= 1 and -1 <= fold["outer"] <= 1 for fold in found["folds"])


@pytest.mark.medium
def test_predictions_of_held_out_samples_do_not_depend_on_their_labels() -> None:
    """Models of the other folds know these labels, and must not choose the categories."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(1, 20, (30, 12)).repeat(2, axis=0)) + 1
    ranks = np.searchsorted([0.03, 0.1], counts[:, 0] / counts.sum(axis=1)).astype(np.float64)
    tokens = rng.integers(1, 5, (12, 20), dtype=np.uint8)
    samples = Samples(sparse.csr_array(counts), tokens, None, [str(k) for k in range(60)])
    training = TrainingSamples(samples, AsvRelations(tokens))
    groups = [str(k // 2) for k in range(60)]
    splits = make_splits(60, test_size=0, folds=3, seed=0, groups=groups)

    def probabilities(values: np.ndarray) -> dict[str, np.ndarray]:
        folds = Folds(Labels.of(values, (), groups, LEVELS), splits, 0, "subject")
        found = {
            name: estimator(name).cross_validate(training, folds, final=False, weighed=True)
            for name in ("kernel", "forest")
        }
        combined = combine_results(found, folds)
        predictions = {"ensemble": combined.predictions_MC, **combined.members}
        return {name: folds.scored(one).probabilities for name, one in predictions.items()}

    held_out = splits[0].test
    changed = ranks.copy()
    changed[held_out] = 2 - ranks[held_out]
    before, after = probabilities(ranks), probabilities(changed)
    for name in ("ensemble", "kernel", "forest"):
        own = slice(len(held_out))
        np.testing.assert_array_equal(before[name][own], after[name][own])
        assert (before[name] != after[name]).any()


def test_proportional_odds() -> None:
    """Known cutpoints are found; useless and constant predictions give the frequencies."""
    rng = np.random.default_rng(1)
    ranks = rng.uniform(0, 2, 4000)
    codes = (4 * ranks + rng.logistic(size=4000) > np.array([[2.0], [5.0]])).sum(axis=0)
    found = fit_proportional_odds(ranks, codes, 3)
    assert found.slope == pytest.approx(4, rel=0.1)
    assert found.cutpoints == pytest.approx((2, 5), rel=0.1)
    shares = np.bincount(codes, minlength=4) / 4000
    for useless in (-ranks, np.ones(4000)):
        model = fit_proportional_odds(useless, codes, 4)  # no sample has the fourth category
        probabilities = model.probabilities(useless[:5])
        np.testing.assert_allclose(probabilities, np.tile(shares, (5, 1)), atol=0.02)
    separable = fit_proportional_odds(codes.astype(np.float64), codes, 3)
    np.testing.assert_array_equal(
        median_codes(separable.probabilities(np.array([0.0, 1.0, 2.0]))), [0, 1, 2]
    )


@pytest.mark.parametrize(
    ("column", "args", "status", "message"),
    [
        ("acidity", "--ordinal low,high", DataError.status, "'acidity' has values that the order"),
        ("acidity", "--ordinal low", UsageError.status, "No order of two or more categories"),
        ("acidity", "--ordinal low,mid,mid", UsageError.status, "No order of two or more"),
        ("acidity", "--ordinal low,mid,high --classifier", UsageError.status, "with --classifier"),
        ("acidity,ph", "--ordinal low,mid,high", UsageError.status, "--ordinal with several"),
    ],
)
def test_orders_that_do_not_fit(
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    args: str,
    status: int,
    message: str,
) -> None:
    assert train(study, tmp_path / "run", *args.split(), column=column) == status
    assert message in capsys.readouterr().err
