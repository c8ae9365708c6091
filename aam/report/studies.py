"""Report of several studies: forest plot, transfer matrix, ordinations.

K studies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from aam.evaluation.intervals import NO_SKILL, Score
from aam.evaluation.meta_analysis import StudyScore, StudySummary
from aam.number_format import fixed
from aam.report.figures import (
    INK,
    SERIES,
    Colour,
    Drawing,
    blank,
    heat_map,
    ordination_figure,
    shortened,
    styled,
)
from aam.report.run import ReportInput
from aam.report.terminal import HEADINGS, Table, next_cell, studies_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTERS = 16  # longest name of a study
_REACH = 1.5  # most that is drawn below the baseline; R² has no least value


def by_study_table(report: ReportInput) -> Table | None:
    """Return the table of studies: scores, their mean, prediction interval of the next study."""
    scores = report.run.scores
    if scores is None or scores.studies is None:
        return None
    return studies_table(scores.studies, scores.classes)


@styled
def forest_picture(report: ReportInput) -> Drawing | None:
    """Draw a forest plot: scores of the studies with intervals, their mean, the next study."""
    scores = report.run.scores
    if scores is None or scores.studies is None:
        return None
    metric, studies = scores.verdict.metric, scores.studies
    summary, baseline, title = studies.summaries.get(metric), NO_SKILL[metric], HEADINGS[metric]
    rows = len(studies.studies) + (0 if summary is None else 2)
    figure, axes = blank(4.6, 1.4 + 0.36 * rows)
    ends, texts, numbers = [baseline, 1.0], [], dict[str, tuple[float | None, ...]]()
    for study in studies.studies:
        score = study.metrics[metric]
        numbers[study.study] = (score.value, score.lower, score.upper)
        ends += [end for end in numbers[study.study] if end is not None]
        texts.append(study.left_out if score.value is None else score.text(metric))
    names = [shortened(study.study, _LETTERS) for study in studies.studies]
    if summary is not None:
        ends += [summary.next_lower, summary.next_upper]
        names += ["mean", "next study"]
        numbers["mean"] = (summary.value, summary.lower, summary.upper)
        numbers["next study"] = (None, summary.next_lower, summary.next_upper)
        texts.append(Score(summary.value, summary.lower, summary.upper).text(metric))
        texts.append(next_cell(summary))
    axes.axvline(baseline, color=INK, lw=1, ls="--", alpha=0.6)
    # R² of a small study can be far below 0, and the other studies would have no width.
    low, high = max(min(ends), baseline - _REACH), max(ends)
    for row, study in enumerate(studies.studies):
        _draw_study(axes, row, study, metric, low)
    if summary is not None:
        _draw_summary(axes, len(studies.studies), summary)
    margin = 0.03 * (high - low)
    axes.set(xlim=(low - margin, high + margin), ylim=(rows - 0.5, -0.6))
    axes.set(title=f"{title} in each study", xlabel=title)
    axes.set_yticks(range(rows), names)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(rows), texts, fontsize=8.5)
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    caption = (
        "Squares: each study, predicted by models of the other studies, with 95 % intervals over "
        f"its samples or subjects. Dashed line: baseline ({baseline:g})."
    )
    if summary is None:
        caption += " A summary needs three studies with an interval."
    else:
        caption += (
            f" Diamond: random-effects mean of {summary.studies} studies. Bar: 95 % prediction "
            "interval of the next study."
        )
    if min(ends) < low:
        caption += f" The axis is cut at {fixed(low, 1)}; triangles lie below it."
    spoken = ", ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True))
    table = pd.DataFrame(numbers, [title, "lower", "upper"], dtype=float).T
    return Drawing(figure, caption, f"Forest plot of {title}: {spoken}.", numbers=table)


def _draw_study(axes: Axes, row: int, study: StudyScore, metric: str, low: float) -> None:
    """Draw a study: hollow if left out of the summary, a triangle if below the axis."""
    score, colour = study.metrics[metric], SERIES[0]
    if score.lower is not None and score.upper is not None:
        axes.plot((score.lower, score.upper), (row, row), color=colour, lw=1.5)
    if score.value is not None:
        look: dict[str, Any] = {"mfc": "none"} if study.left_out else {}
        marker = "s" if score.value >= low else "<"
        axes.plot(max(score.value, low), row, marker, color=colour, ms=6, **look)


def _draw_summary(axes: Axes, row: int, summary: StudySummary) -> None:
    x = (summary.lower, summary.value, summary.upper, summary.value)
    axes.fill(x, (row, row - 0.28, row, row + 0.28), color=SERIES[1], lw=0)
    ends, colour = (summary.next_lower, summary.next_upper), SERIES[1]
    axes.plot(ends, (row + 1, row + 1), color=colour, lw=5, alpha=0.5, solid_capstyle="butt")
    axes.axhline(row - 0.5, color=INK, lw=0.8, alpha=0.3)


@styled
def transfer_picture(report: ReportInput) -> Drawing | None:
    """Draw the transfer matrix: models trained on one study, or all others, tested on each."""
    matrix = None if report.run.scores is None else report.run.scores.transfer
    if matrix is None:
        return None
    values = np.array([*matrix.values, matrix.others], dtype=np.float64)
    baseline, number = NO_SKILL[matrix.metric], len(matrix.studies)
    names = [shortened(name, 14 if number <= 5 else 12) for name in matrix.studies]
    side = max(1.4 + 0.36 * number, 3.4)
    figure, axes = blank(max(side, 4.0), side)
    shades = np.nan_to_num((values - baseline) / (1 - baseline)).clip(0, 1)
    heat_map(axes, shades, [*names, "all others"], names)
    for (row, column), value in np.ndenumerate(values):
        text = "\N{EN DASH}" if np.isnan(value) else fixed(float(value), 2)
        if value < -1:
            text = "< -1"
        look: dict[str, Any] = {"color": "white" if shades[row, column] > 0.55 else INK}
        weight = "bold" if row == column else "normal"
        size = 10 if number <= 5 else 7
        axes.text(column, row, text, ha="center", va="center", fontsize=size, weight=weight, **look)
    axes.axhline(number - 0.5, color=INK, lw=1.2)
    title = HEADINGS[matrix.metric]
    axes.set(title=f"{title}: trained on, tested on", xlabel="tested on", ylabel="trained on")
    caption = (
        f"{title} of a {matrix.model} trained on the study of the row and tested on the study of "
        "the column. Diagonal, bold: cross-validation within the study. Last row: trained on all "
        f"other studies. No colour: baseline ({baseline:g}) or worse."
    )
    rows = zip([*matrix.studies, "all others"], values, strict=True)
    spoken = "; ".join(
        f"trained on {name}: {', '.join(fixed(float(cell), 2) for cell in row)}"
        for name, row in rows
    )
    numbers = pd.DataFrame(values, [*matrix.studies, "all others"], matrix.studies)
    return Drawing(figure, caption, f"Matrix. {caption} {spoken}.", numbers=numbers)


def ordination_picture(report: ReportInput, subject: Literal["study", "target"]) -> Drawing | None:
    """Draw the kernel ordination coloured by study or target."""
    run, scored = report.run, report.run.scored
    if scored is None or not scored.studies or run.ordination is None:
        return None
    ids, coordinates, explained = run.ordination
    row_of = {name: row for row, name in enumerate(ids)}
    rows = [row_of[name] for name in run.sample_ids if name in row_of]
    if len(rows) < len(run.sample_ids):
        return None
    colour, title = report.target_colour, f"Sequence kernel by {subject}"
    if subject == "study":
        column = str(run.option("study_column") or "study")
        colour = Colour(column, scored.studies, labels=scored.studies)
    figure = ordination_figure(coordinates[rows], explained.tolist(), title, colour)
    caption = f"PCoA of {len(rows)} samples by the sequence kernel, coloured by '{colour.column}'."
    return Drawing(figure, caption, f"Ordination. {caption}")


PICTURES: dict[str, Callable[[ReportInput], Drawing | None]] = {
    "studies": forest_picture,
    "transfer": transfer_picture,
    "ordination-study": partial(ordination_picture, subject="study"),
    "ordination-target": partial(ordination_picture, subject="target"),
}
TABLES = (by_study_table,)
