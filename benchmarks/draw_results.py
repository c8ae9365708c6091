"""Tables and interval plot of docs/results.md, from the files of docs/results.

    python benchmarks/draw_results.py

writes docs/results/scores.svg, and replaces the tables of docs/results.md, each between a comment
with the name of its file and the next `end`. `results.tsv` has a row for each task and model: a
score, its 95 % interval and the command that gives it; `python benchmarks/members.py` prints the
scores of all tasks but "tutorial". `peers.tsv` and `studies.tsv` are written by `python -m
benchmarks.peers`. Where the column `partition` is "earlier", a score was not measured again since
samples were divided into other folds; the tables mark it.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "results.tsv"
PICTURE = RESULTS.with_name("scores.svg")
PAGE = ROOT / "docs" / "results.md"

COLOURS = {
    "forest": "#009e73",
    "kernel": "#0072b2",
    "transformer": "#d55e00",
    "ensemble": "#1f2a37",
}
AXES = {"R²": (0.2, 0.4, 0.6, 0.8, 1.0), "AUC": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)}
"""Ticks of the metrics; scores below the first tick are arrows at the left edge."""
WIDTH, LEFT, RIGHT = 480, 176, 16
STEP, GAP, HEAD = 9, 11, 46
"""Pixels from interval to interval, between tasks, and of the heading of an axis."""

PEERS, STUDIES = (RESULTS.with_name(name) for name in ("peers.tsv", "studies.tsv"))
TITLES = {
    "celiac-active": "celiac, active, 3 studies",
    "celiac-treated": "celiac, treated, 4 studies",
}
"""Names of the tasks that are not in results.tsv."""

Row = dict[str, str]


def read_tasks() -> dict[str, dict[str, Row]]:
    """Return the rows of `results.tsv` by task and model."""
    return by_task(read_rows(RESULTS))


def table(tasks: dict[str, dict[str, Row]]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| study, target | ensemble (95&nbsp;%&nbsp;interval) | forest | kernel | transformer "
        "| samples | folds by | seeds | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, models in tasks.items():
        row = models["ensemble"]
        cells = [
            f"{row['study']}, {row['target']} ({row['metric']})",
            f"**{row['value']}** ({row['lower']}&nbsp;to&nbsp;{row['upper']}){mark(row)}",
            *(cell(models, model) for model in ("forest", "kernel", "transformer")),
            f"{int(row['samples']):,}",
            row["groups"] or "samples",
            str(len(row["seeds"].split())),
            "[tutorial](tutorial_infant_age.md)" if name == "tutorial" else f"`{name}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(models: dict[str, Row], model: str) -> str:
    """Return the score of a model, with its number of samples where that is another."""
    if model not in models:
        return "not measured"
    row, samples = models[model], models["ensemble"]["samples"]
    other = f" ({row['samples']} samples)" if row["samples"] != samples else ""
    return row["value"] + mark(row) + other


def mark(row: Row) -> str:
    """Return the mark of a score that was measured with other folds."""
    return "†" if row["partition"] == "earlier" else ""


def picture(tasks: dict[str, dict[str, Row]]) -> str:
    """Return the interval plot as SVG."""
    parts, y = [], 20
    for number, (model, colour) in enumerate(COLOURS.items()):
        left = 12 + 116 * number
        parts.append(f'<path d="M{left} {y}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{left + 9}" cy="{y}" r="3" fill="{colour}"/>')
        parts.append(text(left + 24, y + 4, model))
    for metric, ticks in AXES.items():
        shown = {
            name: models for name, models in tasks.items() if models["ensemble"]["metric"] == metric
        }
        top = y + HEAD
        bottom = top + len(shown) * (len(COLOURS) * STEP + GAP)
        parts.append(text(12, top - 12, metric, ' font-weight="bold"'))
        for tick in ticks:
            x = place(tick, ticks)
            parts.append(f'<path d="M{x} {top - 6}V{bottom}" stroke="#d5d9de"/>')
            parts.append(text(x, top - 12, f"{tick:g}", ' text-anchor="middle"'))
        y = top
        for models in shown.values():
            parts += task(models, y, ticks)
            y += len(COLOURS) * STEP + GAP
    size = f'width="{WIDTH}" height="{y + 6}" viewBox="0 0 {WIDTH} {y + 6}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="14" '
        'role="img">\n<title>Scores of the models with 95 % intervals</title>\n'
        f'<rect width="{WIDTH}" height="{y + 6}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def task(models: dict[str, Row], y: int, ticks: tuple[float, ...]) -> list[str]:
    """Return the labels of a task and an interval for each of its models."""
    row = models["ensemble"]
    parts = [
        text(12, y + 14, f"{row['study']}, {row['target']}"),
        text(12, y + 30, f"{int(row['samples']):,} samples, {row['folds']}", ' font-size="12"'),
    ]
    for number, (model, colour) in enumerate(COLOURS.items()):
        if model not in models:
            continue
        value, lower, upper = (float(models[model][key]) for key in ("value", "lower", "upper"))
        at = y + 4 + number * STEP
        if value < ticks[0]:
            x = place(ticks[0], ticks)
            parts.append(f'<path d="M{x} {at}l7 -4v8z" fill="{colour}"/>')
            continue
        line = f"M{place(lower, ticks)} {at}H{place(upper, ticks)}"
        parts.append(f'<path d="{line}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{place(value, ticks)}" cy="{at}" r="3" fill="{colour}"/>')
    return parts


def place(value: float, ticks: tuple[float, ...]) -> float:
    """Return the horizontal place of a score."""
    part = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x}" y="{y}" fill="#1f2a37"{attributes}>{words}</text>'


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def by_task(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """Return rows by task and model."""
    tasks: dict[str, dict[str, Row]] = {}
    for row in rows:
        tasks.setdefault(row["task"], {})[row["model"]] = row
    return tasks


def spread(row: Row) -> str:
    """Return a mean over seeds, and where it is measured the range of the seeds."""
    ends = f" ({row['lowest']} to {row['highest']})" if row["lowest"] != row["highest"] else ""
    return row["value"] + ends


def peers_table(rows: list[Row], titles: dict[str, str]) -> str:
    """Return scores beside other models, mean ranks, and where the ensemble is behind."""
    tasks = by_task(rows)
    models = list(next(iter(tasks.values())))
    lines = [f"| task | {' | '.join(models)} |", f"|{'---|' * (len(models) + 1)}"]
    behind = ["| behind | model ahead of the ensemble | by |", "|---|---|---|"]
    ranks: dict[str, list[list[float]]] = {"classes": [], "numbers": []}
    for task, scores in tasks.items():
        ours, cells = float(scores[models[0]]["value"]), []
        title = f"{titles[task]} ({scores[models[0]]['metric']})"
        for model in models:
            row, value = scores[model], float(scores[model]["value"])
            star = "\\*" * (row["beyond_noise"] == "yes") + mark(row)
            ahead = value > ours and not mark(row)
            cells.append(f"**{spread(row)}**{star}" if ahead else spread(row) + star)
            if ahead:
                behind.append(f"| {title} | {model} | {value - ours:.3f}{star} |")
        lines.append(f"| {title} | {' | '.join(cells)} |")
        target = "classes" if scores[models[0]]["metric"] == "AUC" else "numbers"
        ranks[target].append(rankdata([-float(scores[model]["value"]) for model in models]))
    for target, of_tasks in ranks.items():
        means = " | ".join(f"{rank:.1f}" for rank in np.mean(of_tasks, axis=0))
        lines.append(f"| mean rank, {len(of_tasks)} tasks of {target} | {means} |")
    return "\n".join([*lines, "", *behind])


def studies_table(rows: list[Row]) -> str:
    """Return the AUC in each study that is left out, and their mean."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = [f"| model | {' | '.join(TITLES[task] for task in tasks)} |", "|---|---|---|"]
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = []
        for task in tasks:
            of_studies = {
                row["study"]: row for row in rows if (row["task"], row["model"]) == (task, model)
            }
            mean = of_studies.pop("mean")
            values = ", ".join(row["value"] for row in of_studies.values())
            note = f"; {mean['note']}" if mean["note"] else ""
            cells.append(f"{values}: **{spread(mean)}**{note}".removeprefix(": "))
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """Return all tables by the name of their file."""
    tasks = read_tasks()
    titles = {
        task: f"{models['ensemble']['study']}, {models['ensemble']['target']}"
        for task, models in tasks.items()
    } | TITLES
    return {
        RESULTS.name: table(tasks),
        PEERS.name: peers_table(read_rows(PEERS), titles),
        STUDIES.name: studies_table(read_rows(STUDIES)),
    }


def page(old: str) -> str:
    """Return the page with the tables of the files."""
    drawn = tables()
    pattern = r"(?<=<!-- )(\S+\.tsv)( -->\n\n).*?(?=\n\n<!-- end -->)"
    return re.sub(pattern, lambda at: at[1] + at[2] + drawn[at[1]], old, flags=re.DOTALL)


def main() -> None:
    """Write the picture and the tables."""
    PICTURE.write_text(picture(read_tasks()), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
