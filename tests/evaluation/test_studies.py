"""Scores over several studies: summary, next study, what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aam.arrays import F64
from aam.evaluation.ensemble import Combined, Ensemble
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import ResampledMetrics, Score, Units, resample_metrics
from aam.evaluation.labels import Labels
from aam.evaluation.meta_analysis import Spread, random_effects, score_study, summarise
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.permutation import permutation_test
from aam.evaluation.scores import Scores, evaluate
from aam.evaluation.splits import Split
from aam.report.run import ReportInput, read_run
from aam.report.studies import forest_picture
from benchmarks.random_labels import member_predictions
from benchmarks.studies_intervals import coverage
from benchmarks.studies_random_labels import studies
from tests.evaluation.test_study_splits import with_studies
from tests.support.commands import aam


def cases(positive: int, negative: int, separation: float, seed: int = 0) -> ScoredPredictions:
    """Draw normal scores of two classes."""
    codes = np.repeat([0, 1], [negative, positive])
    score_N = codes * separation + np.random.default_rng(seed).normal(size=len(codes))
    chance_N = 1 / (1 + np.exp(-score_N))
    chances = np.stack([1 - chance_N, chance_N], axis=1)
    return ScoredPredictions(codes, chances.argmax(axis=1), (), ("no", "yes"), chances)


def resampled(scored: ScoredPredictions, repeats: int = 1) -> ResampledMetrics:
    """Score samples, `repeats` in a row of which are one subject's."""
    return resample_metrics(scored, Units.of(np.arange(len(scored.actual)) // repeats))


@pytest.mark.medium
@pytest.mark.parametrize(("spread", "number"), [(0.3, 5), (0.3, 10), (0.6, 3), (0.8, 3), (0.8, 10)])
def test_intervals_cover_the_mean_and_the_next_study(spread: float, number: int) -> None:
    """Nominal 0.95, of 200 replicates with a standard error of 0.015."""
    ours, _ = coverage("auc-0.75", spread, number, 200)
    assert ours.summary >= 0.91
    assert 0.89 <= ours.following <= 0.995


@pytest.mark.parametrize(
    ("aucs", "low", "high"),
    [((1, 0.92, 0.42), 0.75, 0.88), ((1, 1, 0.42), 0.75, 0.94), ((1, 0.42, 0), 0.4, 0.55),
     ((0.7, 0.7, 0.7), 0.69, 0.71), ((1, 1, 1), 0.9, 1)],
)  # fmt: skip
@pytest.mark.parametrize("number", [8, 13, 40])
def test_the_mean_lies_among_the_studies(
    aucs: tuple[float, ...], low: float, high: float, number: int
) -> None:
    """A perfect study does not decide the mean, however few samples it has."""
    models = [resampled(_of_auc(auc, number)) for auc in aucs]
    summary = summarise("auc", models)
    assert summary is not None
    assert low <= summary.value <= high
    assert summary.next_lower < summary.lower < summary.upper < summary.next_upper < 1


def _of_auc(auc: float, number: int) -> ScoredPredictions:
    """Return as many samples of two classes, with an AUC that is given within one pair."""
    wrong = round((1 - auc) * number**2)
    # Each positive sample stands above as many of the negative ones, in order.
    above = np.diff(np.linspace(0, number**2 - wrong, number + 1).round())
    score_N = np.concatenate([np.arange(number), above - 0.5])
    codes = np.repeat([0, 1], number)
    chance_N = (score_N + 1) / (number + 1)
    return ScoredPredictions(
        codes,
        (chance_N > 0.5).astype(int),
        (),
        ("no", "yes"),
        np.stack([1 - chance_N, chance_N], 1),
    )


@pytest.mark.medium
def test_few_studies_are_not_more_certain_without_prior() -> None:
    """Hartung and Knapp alone: three studies have an interval of no use, the next one none."""
    ours, usual = coverage("auc-0.75", 0.8, 3, 200)
    assert ours.summary_width < 0.85 * usual.summary_width
    assert usual.following < 0.93


def test_agreement_of_studies_makes_no_interval_shorter_than_a_fixed_effect() -> None:
    variance_K = np.array([0.01, 0.02, 0.04])
    fixed = 1.96 / np.sqrt((1 / variance_K).sum())
    for spread in (Spread(0.0, 0.0), Spread(0.3, 6.0), Spread(0.01, 0.0)):
        found = random_effects(np.full(3, 1.0), variance_K, spread)
        assert found.half >= 0.999 * fixed
        assert found.next_half >= found.half
        assert found.i2 == 0


def test_the_spread_of_many_studies_is_that_of_the_studies() -> None:
    """The prior has a part in few studies alone."""
    value_K = np.random.default_rng(0).normal(scale=0.8, size=200)
    found = random_effects(value_K, np.full(200, 1e-4), Spread(0.3, 6.0))
    assert found.tau == pytest.approx(0.8, rel=0.15)
    assert found.i2 > 0.99
    assert found.next_half == pytest.approx(1.96 * 0.8, rel=0.15)


def test_without_prior_it_is_hartung_and_knapp() -> None:
    """By hand, with equal variances: the t interval of the scores."""
    value_K = np.array([0.2, 0.5, 1.1, 1.4])
    found = random_effects(value_K, np.full(4, 0.01), Spread(0.0, 0.0))
    # DerSimonian and Laird of equal variances: that of the scores less the sampling variance.
    assert found.tau == pytest.approx(np.sqrt(value_K.var(ddof=1) - 0.01))
    assert found.mean == pytest.approx(value_K.mean())
    assert found.half == pytest.approx(3.1824 * value_K.std(ddof=1) / 2, rel=1e-4)


def test_an_auc_of_1_is_finite_and_weighs_as_its_samples() -> None:
    """It would have no variance of its own."""
    others = [resampled(cases(30, 30, 1.0, seed)) for seed in (1, 2)]
    summary = summarise("auc", [*others, resampled(cases(30, 30, 9.0))])
    without = summarise("auc", [*others, resampled(cases(30, 30, 1.0, 3))])
    assert summary is not None and without is not None
    assert without.value < summary.value < 0.98
    assert summary.next_lower < summary.lower < summary.value < summary.upper < 1


def test_subjects_with_many_samples_weigh_as_subjects() -> None:
    one = summarise("auc", [resampled(cases(12, 12, 1.0, seed)) for seed in range(3)])
    repeated = []
    for seed in range(3):
        scored = cases(12, 12, 1.0, seed)
        repeated.append(resampled(scored.take(np.repeat(np.arange(24), 20)), repeats=20))
    many = summarise("auc", repeated)
    assert one is not None and many is not None
    assert many.upper - many.lower == pytest.approx(one.upper - one.lower, rel=0.02)


def test_two_studies_have_no_summary() -> None:
    models = [resampled(cases(30, 30, 2.0, seed)) for seed in (0, 1)]
    assert summarise("auc", models) is None
    assert all(score_study("a", model).better for model in models)


@pytest.mark.parametrize(
    "scored", [cases(0, 20, 1.0), cases(2, 1, 1.0), cases(3, 40, 3.0)],
    ids=["one class", "three samples", "three cases"],
)  # fmt: skip
def test_a_study_without_interval_is_left_out(scored: ScoredPredictions) -> None:
    """Whatever its score is, the summary of the others stays."""
    models = [resampled(cases(20, 20, 1.0, seed)) for seed in range(3)]
    study = score_study("small", resampled(scored))
    assert study.left_out and not study.better
    assert summarise("auc", [*models, resampled(scored)]) == summarise("auc", models)


def test_numbers_are_summarised_on_their_scales() -> None:
    """The mean error is between those of the studies; R² of a shifted study may be far below 0."""
    rng = np.random.default_rng(0)
    models = []
    for shift in (0.0, 0.5, 3.0):
        actual = rng.normal(size=40)
        models.append(resampled(ScoredPredictions(actual, actual + shift + rng.normal(size=40))))
    errors = [model.values["mae"] for model in models]
    mae, r2 = summarise("mae", models), summarise("r2", models)
    assert mae is not None and r2 is not None
    assert min(errors) < mae.value < max(errors)
    assert mae.next_lower < mae.lower < mae.value < mae.upper < mae.next_upper
    assert r2.next_lower < r2.lower < r2.value < r2.upper < r2.next_upper < 1
    equal = ScoredPredictions(np.ones(20), rng.normal(size=20))
    assert score_study("equal", resampled(equal)).left_out
    assert summarise("r2", [*models, resampled(equal)]) == r2


def three_studies(
    classes: int, signal: float, seed: int = 0, studies: int = 3
) -> tuple[Folds, F64]:
    """Draw labels and left-out predictions; the second study has other proportions."""
    rng = np.random.default_rng(seed)
    study_N = np.repeat(np.arange(studies), 40)
    splits = tuple(
        Split(np.flatnonzero(study_N != k), np.arange(0), np.flatnonzero(study_N == k))
        for k in range(studies)
    )
    names = tuple(f"s{k}" for k in range(studies))
    chance_N = np.where(study_N == 1, 0.8, 0.3)
    if not classes:
        actual = study_N * 10.0 + rng.normal(size=len(study_N))
        predicted = actual + rng.normal(size=len(study_N)) / signal
        labels = Labels.of(actual, (), None, studies=[names[k] for k in study_N])
        return Folds(labels, splits, 0, None, "study", names), predicted[:, None]
    codes = np.where(rng.random(len(study_N)) < chance_N, classes - 1, rng.integers(classes - 1))
    logits = rng.normal(size=(len(codes), classes)) + signal * np.eye(classes)[codes]
    # What the model reads besides is the study alone, whose proportions differ.
    logits[:, -1] += 3 * (study_N == 1)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = Labels.of(
        codes.astype(float), tuple("abc"[:classes]), None, studies=[names[k] for k in study_N]
    )
    return Folds(labels, splits, 0, None, "study", names), chances


def scores_of(folds: Folds, predictions_MC: F64) -> Scores:
    combined = Combined(
        Ensemble({"kernel": 1.0}, np.inf, 1.0), {"kernel": predictions_MC}, predictions_MC,
        predictions_MC, None, [{"kernel": 1.0}] * len(folds.splits),
    )  # fmt: skip
    return evaluate("target", folds, combined, {}, permutation_test(folds, predictions_MC))


@pytest.mark.parametrize(("classes", "signal"), [(0, 4.0), (2, 1.5), (3, 4.0)])
def test_the_verdict_is_that_of_the_summary(classes: int, signal: float, tmp_path: Path) -> None:
    folds, predictions_MC = three_studies(classes, signal)
    scores = scores_of(folds, predictions_MC)
    assert scores.is_better and scores.studies is not None
    metric = {0: "r2", 2: "auc", 3: "mcfadden_r2"}[classes]
    assert scores.metric == scores.verdict.metric == metric
    summary = scores.studies.summaries[metric]
    # The scores of the model are the summary; each study has its own.
    assert scores.models["ensemble"].metrics[metric].value == summary.value
    values = [study.metrics[metric].value or 0.0 for study in scores.studies.studies]
    assert min(values) <= summary.value <= max(values)
    # With the digits that each interval supports.
    mean = Score(summary.value, summary.lower, summary.upper)
    following = Score(None, summary.next_lower, summary.next_upper)
    expected = following.limits().replace(" to ", " and ")
    for text in (mean.text().partition(" (")[0], mean.limits(), f"between {expected}"):
        assert text in scores.verdict.sentence
    scores.write(tmp_path / "scores.json")
    assert Scores.read(tmp_path / "scores.json") == scores


@pytest.mark.parametrize("classes", [0, 2])
def test_differences_between_studies_are_no_skill(classes: int) -> None:
    """Pooled, predictions that tell the studies apart alone would have skill, and a small p."""
    folds, predictions_MC = three_studies(classes, 1e-9 if classes else 0.3)
    if not classes:
        predictions_MC = np.repeat([0.0, 10.0, 20.0], 40)[:, None]
    scores = scores_of(folds, predictions_MC)
    assert not scores.is_better
    assert scores.verdict.p is None or scores.verdict.p > 0.05
    pooled = replace(folds, labels=replace(folds.labels, studies=None))
    scored = replace(pooled.scored(predictions_MC), folds=())
    assert scored.metrics()["auc" if classes else "r2"] > 0.65  # type: ignore[operator]


def test_two_studies_have_figures_and_no_summary() -> None:
    folds, predictions_MC = three_studies(2, 4.0, studies=2)
    scores = scores_of(folds, predictions_MC)
    assert scores.studies is not None and not scores.studies.summaries
    assert all(study.better for study in scores.studies.studies)
    assert scores.verdict.outcome == "undecided"
    assert scores.models["ensemble"].metrics["auc"] == Score(None)
    for study in scores.studies.studies:
        assert f"{study.metrics['auc'].value:.2f}" in scores.verdict.sentence


def test_a_study_of_one_class_is_named_and_left_out() -> None:
    folds, predictions_MC = three_studies(2, 4.0, studies=4)
    values = folds.labels.values.copy()
    values[120:] = 1
    scores = scores_of(replace(folds, labels=replace(folds.labels, values=values)), predictions_MC)
    assert scores.studies is not None
    assert scores.studies.summaries["auc"].studies == 3
    assert "not in the summary: 1 (s3) with one class" in scores.verdict.sentence
    assert scores.is_better


def test_members_are_compared_within_the_studies() -> None:
    """The interval of a difference is over the studies, not over their samples."""
    folds, first_MC = three_studies(2, 4.0, studies=4)
    _, second_MC = three_studies(2, 2.0, studies=4)
    one, two = folds.resampled(first_MC), folds.resampled(second_MC)
    name, difference = one.paired_difference(two)
    each = [one.studies[key].values[name] - two.studies[key].values[name] for key in one.studies]
    half = 3.1824 * np.std(each, ddof=1) / 2
    assert difference.value == pytest.approx(np.mean(each))
    assert difference.upper == pytest.approx(np.mean(each) + half, rel=1e-3)


@pytest.mark.medium
def test_proportions_of_the_studies_give_a_model_no_score() -> None:
    """Cases are 20 to 80 % of a study, and unpredictable within: seldom significant, AUC 0.5."""
    scores, small = [], 0
    for seed in range(12):
        samples, folds = studies(np.random.default_rng([11, seed]), "two", "3")
        predictions_MC = member_predictions(samples, folds, ["kernel"])["kernel"]
        test = permutation_test(folds, predictions_MC)
        assert test is not None
        small += test.p <= 0.05
        scores.append(folds.resampled(predictions_MC).values["auc"])
    assert small <= 3
    # Three standard errors; the standard deviation of a run is 0.096 (60 runs).
    assert abs(np.mean(scores) - 0.5) < 3 * 0.096 / np.sqrt(len(scores))


@pytest.mark.medium
def test_a_run_says_how_each_study_is_predicted(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From `aam train` to report, `evaluate` and `compare`."""
    metadata, folder = tmp_path / "metadata.tsv", tmp_path / "run"
    with_studies(study_dir, metadata)
    inputs = ("--metadata", metadata, "--metadata-column", "ph")
    command = ("train", "--table", study_dir / "table.biom", *inputs, "--members", "kernel")
    assert aam(*command, "--study-column", "batch", "--output-dir", folder) == 0
    shown = capsys.readouterr().out
    scores = Scores.read(folder / "scores.json")
    assert scores.studies is not None
    assert [study.study for study in scores.studies.studies] == ["b0", "b1", "b2"]
    assert all(study.study in shown for study in scores.studies.studies)
    page = (folder / "report.html").read_text()
    assert "next study" in page and scores.verdict.sentence[:40] in page
    for picture in ("studies", "transfer", "ordination-study", "ordination-target"):
        assert f'id="{picture}-' in page
    assert scores.transfer is not None and scores.transfer.studies == ["b0", "b1", "b2"]
    # Of two studies the picture has the figures and no mean.
    run = read_run(folder)
    two = replace(scores.studies, studies=scores.studies.studies[:2], summaries={})
    drawing = forest_picture(ReportInput(replace(run, scores=replace(scores, studies=two))))
    assert drawing is not None
    assert "b0" in drawing.description and "mean" not in drawing.description
    output = tmp_path / "metrics.json"
    predictions = ("--predictions", folder / "predictions.tsv", "--output", output)
    assert aam("evaluate", *predictions, *inputs) == 0
    found = json.loads(output.read_text())
    assert set(found["studies"]) == {"b0", "b1", "b2"}
    summary = scores.studies.summaries["r2"]
    assert found["summaries"]["r2"]["value"] == pytest.approx(summary.value)
    # A run with folds of all studies has another score: both are pooled.
    assert aam(*command, "--folds", 3, "--output-dir", tmp_path / "pooled") == 0
    capsys.readouterr()
    assert aam("compare", folder, tmp_path / "pooled") == 0
    assert aam("compare", folder, folder) == 0
    # An edited file is not shown beside the scores.
    predictions_file = folder / "predictions.tsv"
    predictions_file.write_text(predictions_file.read_text().replace("\tb0\t", "\tb1\t", 3))
    assert aam("report", "--run-dir", folder) != 0
