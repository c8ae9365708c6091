"""Scores of a grouped study whose folds have different class frequencies; learning curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aam.arrays import F64
from aam.evaluation.confounding import Association, Confounder, confounders, confounding_sentences
from aam.evaluation.ensemble import combine_members
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import Score
from aam.evaluation.labels import Labels
from aam.evaluation.learning_curve import MIN_GROUPS, learning_curve, units_to_decide
from aam.evaluation.permutation import PermutationTest
from aam.evaluation.prediction_files import class_predictions, read_predictions
from aam.evaluation.scores import evaluate
from aam.evaluation.splits import Split, make_splits
from aam.members.kernel import Kernel
from aam.members.member import TrainingSamples
from aam.members.prediction_tables import held_out_table
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.run_scores import compare_inputs
from aam.report.terminal import studies_table
from benchmarks.units_to_decide import difference
from tests.support.run_folders import make_study

NAMES = ("no", "yes")


@pytest.fixture(scope="module")
def folds() -> Folds:
    """12 infants, ten samples each, of which one class is most."""
    rng = np.random.default_rng(0)
    infant = np.repeat(np.arange(12), 10)
    codes = rng.random(120) < np.where(infant % 3, 0.9, 0.1)
    groups = [str(k) for k in infant]
    splits = make_splits(120, test_size=0, folds=5, seed=0, groups=groups)
    return Folds(Labels.of(codes.astype(np.float64), NAMES, groups), splits, 0, "infant")


def noisy(folds: Folds, noise: float) -> F64:
    """Return probabilities that follow the labels, shifted by what each fold had to learn from."""
    rng = np.random.default_rng(1)
    score = folds.held_out.values + noise * rng.normal(size=120) + 8 * folds.baseline_MC[:, 1]
    chances = 1 / (1 + np.exp(-score + score.mean()))
    return np.column_stack([1 - chances, chances])


def test_a_guess_has_an_auc_of_one_half(folds: Folds) -> None:
    members = {"kernel": noisy(folds, 0.5), "constant": folds.baseline_MC}
    scores = evaluate("ill", folds, combine_members(members, folds), {})
    for name in ("constant", "guess"):
        metrics = scores.models[name].metrics
        assert metrics["auc"] == Score(0.5, 0.5, 0.5)
        assert metrics["balanced_accuracy"].value <= 0.5
    kernel = scores.models["kernel"].metrics["auc"]
    assert 0.6 < kernel.lower < kernel.value
    pairs = {(pair.model, pair.reference): pair for pair in scores.differences}
    assert pairs["kernel", "constant"].value == pytest.approx(kernel.value - 0.5)
    assert pairs["kernel", "constant"].beyond_noise


@pytest.mark.parametrize(("studies", "outcome"), [(2, "undecided"), (12, "better")])
def test_two_studies_do_not_show_a_model_to_be_better(
    folds: Folds, studies: int, outcome: str
) -> None:
    """However many samples they have, and however small p is."""
    groups = folds.labels.groups % studies
    few = replace(folds, labels=replace(folds.labels, groups=groups), group_column="study")
    combined = combine_members({"kernel": noisy(few, 0.5)}, few)
    verdict = evaluate("ill", few, combined, {}, PermutationTest(0.001, 999, 1.0)).verdict
    assert verdict.outcome == outcome
    assert (verdict.lower is None) == (outcome == "undecided")
    assert f"{studies} groups of study" in verdict.sentence


def test_inputs_add_nothing_to_a_model_that_is_not_better_than_a_guess(folds: Folds) -> None:
    """Both are ahead of metadata that mislead."""
    both = folds.baseline_MC + np.outer(folds.held_out.values - 0.5, [-1e-3, 1e-3])
    predictions = {"metadata": noisy(folds, 0.1)[:, ::-1], "counts": both, "both": both}
    found = [
        compare_inputs(["age"], predictions, "both", folds, better) for better in (True, False)
    ]
    assert found[0].counts_add and found[0].conclusion.startswith("The microbiome improves on")
    assert not found[1].counts_add and "improve" not in found[1].conclusion


def test_a_constant_prediction_is_stated(folds: Folds) -> None:
    """Of all samples, and of one of four studies."""
    constant_MC = np.tile([0.4, 0.6], (120, 1))
    verdict = evaluate("ill", folds, combine_members({"kernel": constant_MC}, folds), {}).verdict
    assert "all samples have the same prediction" in verdict.sentence
    study_M = np.array([f"study {row % 4}" for row in folds.rows_M])
    studies = np.arange(120) % 4
    splits = tuple(
        Split(np.flatnonzero(studies != k), np.arange(0), np.flatnonzero(studies == k))
        for k in range(4)
    )
    of_studies = replace(
        folds,
        labels=replace(folds.labels, groups=np.arange(120), studies=studies),
        splits=splits,
        study_column="study",
        studies=tuple(np.unique(study_M).tolist()),
    )
    mixed_MC = noisy(of_studies, 0.5)
    mixed_MC[of_studies.fold_M == 2] = 0.4, 0.6
    scores = evaluate("ill", of_studies, combine_members({"kernel": mixed_MC}, of_studies), {})
    assert scores.studies is not None
    assert [study.constant for study in scores.studies.studies] == [False, True, False, False]
    assert "one prediction for all samples: 1 (study 1)" in scores.verdict.sentence
    cells = [row[-1] for row in studies_table(scores.studies).rows]
    assert ["one prediction" in cell for cell in cells[:4]] == [False, True, False, False]


@pytest.mark.parametrize(
    ("smaller", "larger", "end"),
    [
        (0.9, 0.3, "more samples would probably help."),
        (0.3, 0.31, "twice as many samples would probably add little."),
        (0.9, 0.8, "it is unclear whether more samples would help."),
    ],
)
def test_the_learning_curve_claims_what_its_interval_has(
    smaller: float, larger: float, end: str
) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=60)
    splits = make_splits(60, test_size=0, folds=5, seed=0)
    folds = Folds(Labels.of(values, (), None), splits, 0)
    noise_M1 = rng.normal(size=(60, 1))
    # The last noise differs, so that its difference from the first is uncertain.
    other_M1 = noise_M1 if larger != 0.8 else rng.normal(size=(60, 1))

    def predict(parts: Folds, _: str) -> F64:
        return parts.held_out.outputs_NC + smaller * noise_M1

    predictions_MC = folds.held_out.outputs_NC + larger * other_M1
    curve = learning_curve("kernel", predict, folds, predictions_MC)
    assert curve is not None
    assert curve.sentence.endswith(end)


def test_a_column_without_skill_is_no_confounder_of_a_model_without_skill() -> None:
    """Its R² is below 0, but above that of the guess of these folds and near the model's."""
    rng = np.random.default_rng(0)
    fold_N = np.arange(100) // 20
    values = 2.0 * fold_N + rng.normal(size=100)
    none = np.arange(0)
    splits = tuple(
        Split(np.flatnonzero(fold_N != k), none, np.flatnonzero(fold_N == k)) for k in range(5)
    )
    folds = Folds(Labels.of(values, (), None), splits, 0)
    mean = values.mean()

    def association(column: str, skill: float) -> Association:
        predictions_MC = (mean + skill * (folds.held_out.values - mean))[:, None]
        r2 = folds.resampled(predictions_MC).values["r2"]
        return Association(column, "r2", r2, predictions_MC, False)

    found = [association("site", 0.1), association("batch", -0.02)]
    assert folds.resampled(folds.baseline_MC).values["r2"] < found[1].value < 0 < found[0].value
    named = confounders(found, folds, found[1].predictions_MC)
    assert [one.column for one in named] == ["site"]


@pytest.mark.parametrize("better", [True, False])
def test_twelve_columns_and_the_depth_are_two_sentences(better: bool) -> None:
    """They predict as well as the table only where it predicts."""
    names = ["sequencing depth", *(f"x{k}" for k in range(12))]
    found = [Confounder(name, "auc", 0.8) for name in names]
    depth, columns = confounding_sentences(found, better, "On tables of equal depth it has 0.5")
    assert depth.startswith("The sequencing depth") and depth.endswith("depth it has 0.5.")
    assert columns.startswith("12 metadata columns") and "'x4' 0.800 and 7 more" in columns
    for sentence in (depth, columns):
        assert ("as well as the microbiome does" in sentence) == better


def test_the_predictions_have_the_folds_of_the_scores(folds: Folds, tmp_path: Path) -> None:
    chances_MC = noisy(folds, 1.0)
    scores = evaluate("ill", folds, combine_members({"kernel": chances_MC}, folds), {})
    assert scores.differences == []  # an ensemble of one member is this member
    path = tmp_path / "predictions.tsv"
    held_out_table([str(k) for k in range(120)], folds, chances_MC).to_csv(
        path, sep="\t", index=False
    )
    frame = read_predictions(path)
    found = class_predictions(frame, frame["actual"].tolist()).metrics()
    for name, value in found.items():
        if name != "samples":
            assert scores.models["kernel"].metrics[name].value == pytest.approx(value)


@pytest.mark.parametrize("number", [1, 5])
def test_a_guess_of_ordered_categories_has_no_agreement(number: int) -> None:
    """Also with a single split, whose parts have different categories."""
    rng = np.random.default_rng(0)
    infant = np.repeat(np.arange(24), 8)
    ranks = np.clip(np.rint(1 + rng.normal(size=24)[infant] + 0.3 * rng.normal(size=192)), 0, 2)
    groups = [str(k) for k in infant]
    splits = make_splits(192, test_size=0.4, folds=number, seed=0, groups=groups)
    folds = Folds(Labels.of(ranks, (), groups, ("low", "mid", "high")), splits, 0, "infant")
    found = folds.scored(folds.baseline_MC).metrics()
    kappa = found["weighted_kappa"]
    assert found["auc"] == 0.5
    assert kappa is not None and (kappa == 0 if number == 1 else kappa <= 0)


def test_members_are_compared_with_the_ensemble_and_each_other(folds: Folds) -> None:
    chances_MC = noisy(folds, 1.0)
    both = {"kernel": chances_MC, "forest": noisy(folds, 2.0)}
    found = evaluate("ill", folds, combine_members(both, folds), {}).differences
    pairs = [(pair.model, pair.reference) for pair in found]
    assert pairs == [("ensemble", "kernel"), ("ensemble", "forest"), ("kernel", "forest")]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Samples, np.ndarray, np.ndarray]:
    made = make_study(tmp_path_factory.mktemp("curve") / "study", 120)
    tokens = np.random.default_rng(0).integers(1, 5, (made.counts.shape[1], 20), dtype=np.uint8)
    return Samples(made.counts, tokens), made.places.ph, np.arange(120) // 2


def predict_of(inputs: TrainingSamples) -> Callable[[Folds, str], F64]:
    return lambda folds, part: Kernel().cross_validate(inputs, folds, False, part).predictions_MC


def test_more_groups_predict_better(study: tuple[Samples, np.ndarray, np.ndarray]) -> None:
    samples, ph, groups = study
    splits = make_splits(120, test_size=0.2, folds=3, seed=0, groups=groups.astype(str).tolist())
    folds = Folds(Labels(ph, (), groups), splits, 0, "subject")
    inputs = TrainingSamples(samples, AsvRelations(samples.tokens_FL))
    found = Kernel().cross_validate(inputs, folds, final=False)
    curve = learning_curve("kernel", predict_of(inputs), folds, found.predictions_MC)
    assert curve is not None
    assert (curve.model, curve.metric, curve.units) == ("kernel", "r2", "groups of subject")
    points = curve.points
    assert [point.units for point in points] == [MIN_GROUPS + 2, 20, 40]
    assert points[0].value < points[-1].value
    assert points[-1].value == pytest.approx(folds.resampled(found.predictions_MC).values["r2"])
    assert all(point.lower < point.value < point.upper for point in points)
    difference = points[-1].value - points[-2].value
    assert f"From 20 to 40 groups of subject the R² changes by {difference:+.3f}" in curve.sentence


def test_few_groups_have_no_curve(study: tuple[Samples, np.ndarray, np.ndarray]) -> None:
    samples, ph, _ = study
    splits = make_splits(120, test_size=0.2, folds=3, seed=0)
    folds = Folds(Labels(ph, (), np.arange(120) % 12), splits, 0)
    inputs = TrainingSamples(samples, AsvRelations(samples.tokens_FL))
    found = Kernel().cross_validate(inputs, folds, final=False)
    assert learning_curve("kernel", predict_of(inputs), folds, found.predictions_MC) is None


def test_units_to_decide_are_a_range_that_a_gain_narrows() -> None:
    """A difference of 2.8 standard errors is above 0 in 80 % of data sets."""
    # With a standard error of 1 the 50 % interval ends at 1.9 - 0.674.
    nearer = Score(1.9, 1.9 - 1.96, 1.9 + 1.96)
    _, most = units_to_decide(nearer, 40) or (0, None)
    assert most is not None
    assert most == pytest.approx(40 * (2.8 / (1.9 - 0.674)) ** 2, rel=0.05)
    fewest, none = units_to_decide(Score(0.5, 0.5 - 1.96, 0.5 + 1.96), 40) or (0, 0)
    assert (fewest, none) == (pytest.approx(40 * (2.8 / 2.46) ** 2, rel=0.05), None)
    # With a certain gain of each doubling fewer do.
    _, sooner = units_to_decide(nearer, 40, Score(0.5, 0.3, 0.7)) or (0, None)
    assert sooner is not None
    assert 40 < sooner < 0.6 * most
    # Below a guess only a gain could lift it; without limits nothing is told.
    behind = Score(-2.5, -2.5 - 1.96, -2.5 + 1.96)
    assert units_to_decide(behind, 40) is None
    assert units_to_decide(behind, 40, Score(0.9, 0.7, 1.1)) is not None
    assert units_to_decide(Score(0.1), 40) is None
    assert units_to_decide(Score(0.0, 0.0, 0.0), 40) is None


def test_the_number_that_is_stated_holds_on_new_data() -> None:
    """A small version of `benchmarks/units_to_decide.py`: without a signal no upper number."""
    rng = np.random.default_rng(0)
    none = [units_to_decide(difference(rng, 20, 0, False), 20) for _ in range(100)]
    assert sum(limits is not None and limits[1] is not None for limits in none) < 20
    # 80 % power with a correlation of .3 is reached by about 200 groups.
    some = [difference(rng, 20, 0.3, False) for _ in range(100)]
    ranges = [units_to_decide(each, 20) for each in some if (each.lower or 0) <= 0]
    covered = [(low <= 200) and (high is None or high >= 200) for low, high in filter(None, ranges)]
    assert np.mean(covered) > 0.8


@pytest.mark.parametrize(("noise", "states"), [(0.1, False), (1.4, True)])
def test_a_score_that_is_not_shown_says_what_would_decide_it(noise: float, states: bool) -> None:
    rng = np.random.default_rng(3)
    rows, none = np.arange(60), np.arange(0)
    splits = tuple(Split(rows[rows % 5 != k], none, rows[rows % 5 == k]) for k in range(5))
    folds = Folds(Labels.of(rng.normal(size=60), (), None), splits, 0)
    truth_MC = folds.held_out.outputs_NC
    predictions_MC = 0.5 * (truth_MC + noise * rng.normal(size=truth_MC.shape))
    scores = evaluate("ph", folds, combine_members({"kernel": predictions_MC}, folds), {})
    assert (scores.verdict.outcome == "not better") == states
    texts = [finding.text for finding in scores.findings() if finding.field == "deciding"]
    assert len(texts) == states
    assert all("samples" in text and "60" in text for text in texts)
