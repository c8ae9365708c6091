"""Figures of a report: colours, points, ordinations, calibration."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from sklearn.metrics import auc as area

from aam.cli import main
from aam.data.distances import coordinates_of_distances, principal_coordinates, read_distances
from aam.evaluation.metrics import ScoredPredictions
from aam.report.figures import (
    MAX_CATEGORIES,
    MAX_VECTORS,
    Colour,
    Drawing,
    Picture,
    ordination_figure,
)
from aam.report.predictions import (
    calibration_picture,
    confusion_picture,
    precision_recall_picture,
    roc_picture,
)
from aam.report.run import ReportInput, as_colour, read_run
from tests.support.report_pages import report


@pytest.mark.medium
def test_unifrac_is_shown_beside_the_embedding(study_folder: Path, run_folder: Path) -> None:
    study = study_folder / "study"
    text = report(run_folder)
    command = re.search(r"<code>(aam unifrac [^<]*)", text)
    assert command is not None
    assert main(shlex.split(command[1])[1:]) == 0
    text = report(run_folder)
    found = read_run(run_folder)
    assert found.embeddings is not None
    distances = read_distances(run_folder / "unifrac.tsv").aligned(found.embedded_ids).values
    above = np.triu_indices(len(distances), 1)
    expected = spearmanr(pdist(found.embeddings), distances[above])[0]
    assert f"UniFrac with the distances of the embedding: {expected:.2f}." in text
    assert "aam unifrac" not in text
    assert study.is_dir()


def axes_of(
    draw: Callable[[ReportInput], Drawing | None], run: Path, scored: ScoredPredictions
) -> Axes:
    """Return the axes of a picture of some predictions."""
    drawing = draw(ReportInput(replace(read_run(run), partitions=scored)))
    assert drawing is not None
    return drawing.figure.axes[0]


def test_calibration_counts_how_often_a_probability_is_right(run_folder: Path) -> None:
    chances = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10)
    actual = np.array([0] * 9 + [1] + [1] * 5 + [0] * 5)
    scored = ScoredPredictions(actual, chances.argmax(axis=1), (), ("a", "b"), chances)
    axes = axes_of(calibration_picture, run_folder, scored)
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [(0.6, 0.5), (0.9, 0.9)])
    assert [text.get_text() for text in axes.texts] == ["10", "10"]


def test_calibration_is_drawn_for_each_study(run_folder: Path) -> None:
    """Right in all samples together, too certain in one study and too doubtful in the other."""
    right = np.repeat([True, False, True], (100, 20, 80))
    chance = np.full(200, 0.9)
    studies = ("first",) * 120 + ("second",) * 80
    scored = ScoredPredictions(
        right.astype(np.int64), np.ones(200, dtype=np.int64), (), ("no", "yes"),
        np.column_stack([1 - chance, chance]), studies=studies,
    )  # fmt: skip
    axes = axes_of(calibration_picture, run_folder, scored)
    shares = [line.get_ydata()[0] for line in axes.lines[1:]]
    assert shares == pytest.approx([100 / 120, 1.0])
    labels = [line.get_label() for line in axes.lines[1:]]
    assert labels == ["first, 0.07", "second, 0.10"]
    drawing = confusion_picture(ReportInput(replace(read_run(run_folder), partitions=scored)))
    assert drawing is not None and "All studies together" in drawing.caption


def test_the_area_of_roc_curves_is_the_auc_within_folds(run_folder: Path) -> None:
    """Chance lies on the diagonal, whatever the classes of a fold; a lone class has no curve."""
    rng = np.random.default_rng(0)
    fold = np.repeat(np.arange(4), (20, 40, 60, 10))
    actual = (rng.random(130) < np.array([0.2, 0.5, 0.9, 0.0])[fold]).astype(np.int64)
    shares = np.array([actual[fold != k].mean() for k in range(4)])[fold]
    names = tuple(map(str, fold))
    for score in (shares, shares + 0.1 * actual + 0.1 * rng.normal(size=130)):
        chances = np.column_stack([1 - score, score])
        scored = ScoredPredictions(actual, (score > 0.5).astype(int), names, ("no", "yes"), chances)
        auc = scored.metrics()["auc"]
        axes = axes_of(roc_picture, run_folder, scored)
        wrong, right = axes.lines[1].get_xydata().T
        assert area(wrong, right) == pytest.approx(auc, abs=0.005)
        assert axes.get_legend_handles_labels()[1] == [f"yes, AUC {auc:.2f}"]
    # Of several partitions into folds the area is their mean, as the AUC of the run.
    every = [np.tile(array, 2) for array in (actual, chances[:, 1] > 0.5)]
    other = np.concatenate([chances, chances[rng.permutation(130)]])
    folds, repeats = names + tuple(f"{k + 4}" for k in fold), ("1",) * 130 + ("2",) * 130
    several = ScoredPredictions(every[0], every[1].astype(int), folds, ("no", "yes"), other)
    several = replace(several, repeats=repeats)
    given = ReportInput(replace(read_run(run_folder), partitions=several))
    drawing = roc_picture(given)
    assert drawing is not None
    (label,) = drawing.figure.axes[0].get_legend_handles_labels()[1]
    assert label == f"yes, AUC {several.metrics()['auc']:.2f}" != f"yes, AUC {auc:.2f}"

    scored = replace(scored, probabilities=np.column_stack([1 - shares, shares]))
    axes = axes_of(precision_recall_picture, run_folder, scored)
    for curve, chance in np.reshape(axes.lines, (2, 2)):
        precision = curve.get_xydata()[1:, 1]  # it is 1 at recall 0
        assert precision == pytest.approx(chance.get_ydata()[0])


@pytest.mark.medium
def test_numbers_that_are_names_are_categories(study_folder: Path) -> None:
    """A subject's number is a category: as the group column of the run, or by --categories."""
    many = [str(number) for number in range(9)]
    assert as_colour("age", [*many, ""]).values is not None
    assert as_colour("age", many, category=True).labels == tuple(many)
    assert as_colour("plate", ["1", "2", "1", "2"] * 5).labels is not None
    assert as_colour("odd", [*many, "inf"]).labels is not None
    text = report(study_folder / "numbers", "--color-by", "subject")
    legend = re.search(r'aria-label="Colours of subject">(.*?)</ul>', text, re.DOTALL)
    assert legend is not None
    assert "others" in legend[1]
    args = ("--color-by", "depth", "--metadata", str(study_folder / "study" / "metadata.tsv"))
    for more, kind in (((), 'class="scale"'), (("--categories", "depth"), "others")):
        text = report(study_folder / "pretrain", *args, *more)
        legend = re.search(r'aria-label="Colours of depth">(.*?)</ul>', text, re.DOTALL)
        assert legend is not None
        assert kind in legend[1]


def test_many_categories_are_gathered() -> None:
    rng = np.random.default_rng(0)
    labels = [f"c{k:02d}" for k in range(20) for _ in range(k + 1)] + [""] * 5
    figure = ordination_figure(
        rng.normal(size=(len(labels), 2)), [0.5, 0.2], colour=Colour("", (), labels=tuple(labels))
    )
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:1] == ["c11 (12)"]
    assert names[-2:] == ["no value (5)", "11 others"]
    assert len(names) == MAX_CATEGORIES + 2


def test_many_points_become_pixels() -> None:
    rng = np.random.default_rng(0)
    number = 10 * MAX_VECTORS
    figure = ordination_figure(
        rng.normal(size=(number, 2)), [0.5, 0.2], colour=Colour("", (), values=rng.random(number))
    )
    drawn = Picture.of("x", Drawing(figure, "", "many points")).svg
    assert "data:image/png" in drawn
    assert len(drawn) < 1_000_000


def test_principal_coordinates_are_those_of_scikit_bio() -> None:
    from scipy.spatial.distance import squareform
    from skbio.stats.ordination import pcoa

    vectors = np.random.default_rng(0).normal(size=(20, 6)) * np.arange(1, 7)
    ours, explained = principal_coordinates(vectors)
    distances = squareform(pdist(vectors))
    theirs = pcoa(distances, dimensions=6)
    np.testing.assert_allclose(abs(ours), abs(theirs.samples.to_numpy()[:, :2]), atol=1e-9)
    np.testing.assert_allclose(explained, theirs.proportion_explained.to_numpy()[:2])
    by_distances, shares = coordinates_of_distances(distances)
    np.testing.assert_allclose(by_distances, ours, atol=1e-9)
    np.testing.assert_allclose(shares, explained, atol=1e-9)
    alike, nothing = principal_coordinates(np.ones((3, 4)))
    assert not alike.any()
    assert not nothing.any()


def test_a_read_only_home_is_no_reason_to_warn() -> None:
    """A container often has no folder where matplotlib could keep its fonts."""
    code = "from aam.report.figures import blank; blank(1, 1)"
    variables = {"HOME": "/proc/none", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True,
                          text=True, check=True, cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.stderr == ""
