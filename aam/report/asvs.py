"""ASVs of the report: importance as bars and as a table, and abundance by class or target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aam.data.error_analysis import quantile_bins
from aam.data.table import FeatureTable, read_table
from aam.data.taxonomy import named_ranks
from aam.members.stability import FOLD_RANK, stability
from aam.number_format import significant
from aam.report.base import Abundances, Drawing, ReportInput
from aam.report.figures.asv_plots import heat_figure, importance_figure
from aam.report.run import NETWORK_EFFECT, Run
from aam.report.terminal import Table

ASVS = 15
"""ASVs that are drawn and shown first."""

ID_LETTERS = 16
"""Letters of a feature id that are shown."""

MOST_CLASSES = 12
BINS = 20
"""Columns of the heat map of a number."""

LARGEST_TABLE = 200 * 2**20
"""Bytes of a table that is read for the heat map: 200 MiB take about 10 s."""


def read_abundances(run: Run, table: FeatureTable | None = None) -> Abundances | None:
    """Read the leading ASVs in the table of a run.

    Args:
        run: run with predictions and importance.tsv.
        table: samples of the run; None to read them from the recorded path.

    Returns:
        None without importance or predictions, or where the table is gone, larger than
        `LARGEST_TABLE`, or a store.
    """
    if not run.importance or run.scored is None:
        return None
    if table is None:
        recorded = run.facts.get("inputs", {}).get("--table", {}).get("path")
        path = None if recorded is None else Path(recorded)
        if path is None or not path.is_file() or path.stat().st_size > LARGEST_TABLE:
            return None
        table = read_table(path)
    return leading_abundances(table, [row["feature-id"] for row in run.importance])


def leading_abundances(table: FeatureTable, feature_ids: Sequence[str]) -> Abundances | None:
    """Return the relative abundances of the first ASVs that the table has; None without any.

    Args:
        table: reads of N samples.
        feature_ids: ids by importance, the most important first; the first `ASVS` are looked up.
    """
    column_of = {name: column for column, name in enumerate(table.feature_ids)}
    named = [name for name in feature_ids[:ASVS] if name in column_of]
    if not named:
        return None
    counts = table.counts[:, [column_of[name] for name in named]].toarray()
    return Abundances(
        tuple(table.sample_ids), tuple(named), counts / np.maximum(table.reads, 1)[:, None]
    )


def importance_picture(given: ReportInput) -> Drawing | None:
    """Draw the measure of the most important ASVs of importance.tsv as bars."""
    return importance_drawing(given.run.importance, given.with_unit("effect"))


def importance_drawing(importance: Sequence[Mapping[str, str]], effect: str) -> Drawing | None:
    """Draw the measure of the most important ASVs as bars.

    Args:
        importance: rows of importance.tsv, the most important ASV first.
        effect: name of an effect, with the unit of the target.

    Returns:
        The drawing; None without rows, or where they have no measure.
    """
    rows = importance[:ASVS]
    if not rows or (column := _measure(rows[0])) is None:
        return None
    columns = [name for name in rows[0] if name == column or name.startswith(f"{column}_")]
    strongest = [_strongest(row, columns) for row in rows]
    sizes = [float(row[name]) for row, name in zip(rows, strongest, strict=True)]
    classes = [name.removeprefix(column).removeprefix("_") for name in strongest]
    names = [f"{number}. {_name(row)}" for number, row in enumerate(rows, start=1)]
    of_effects = column in ("effect", NETWORK_EFFECT)
    figure = importance_figure(names, sizes, classes, effect if of_effects else column)
    caption = f"The first {len(rows)} ASVs of importance.tsv" + (
        ": change of the prediction for one standard deviation of the log abundance."
        if of_effects
        else "."
    )
    return Drawing(figure, caption, f"Bars of importance. {caption} The first is {names[0]}.")


def heat_picture(given: ReportInput) -> Drawing | None:
    """Draw the mean abundance of the leading ASVs in each class, or along the target."""
    scored, abundances = given.run.scored, given.abundances
    if scored is None or abundances is None:
        return None
    place = {name: row for row, name in enumerate(abundances.sample_ids)}
    rows_of = {name: row for row, name in enumerate(given.run.sample_ids) if name in place}
    columns: dict[str, list[int]] = {}
    if scored.classes:
        times = np.bincount(scored.actual, minlength=len(scored.classes))
        most = np.sort(np.argsort(-times, kind="stable")[:MOST_CLASSES])
        for code in most.tolist():
            own = [place[name] for name, row in rows_of.items() if scored.actual[row] == code]
            columns |= {scored.classes[code]: own} if own else {}
    else:
        known = list(rows_of)
        actual = scored.actual[[rows_of[name] for name in known]]
        # Between equal values an interpolated quantile may leave a bin empty.
        for inside in filter(len, quantile_bins(actual, BINS).values()):
            middle = significant(float(np.median(actual[inside])))
            columns.setdefault(middle, []).extend(place[known[row]] for row in inside.tolist())
    if len(columns) < 2:
        return None
    logs = np.log10(1 + 1e4 * abundances.values)
    means = np.array([logs[rows].mean(axis=0) for rows in columns.values()]).T
    taxa = {row["feature-id"]: row for row in given.run.importance[:ASVS]}
    names = [
        f"{number}. {_name(taxa.get(name, {'feature-id': name}))}"
        for number, name in enumerate(abundances.feature_ids, start=1)
    ]
    along = given.target if not scored.classes else given.run.target or ""
    # Each ASV relative to its own highest mean: a few abundant ones would leave the others blank.
    figure = heat_figure(means / np.maximum(means.max(axis=1, keepdims=True), 1e-9), names,
                         list(columns), along)  # fmt: skip
    what = "class" if scored.classes else "part of the samples, ordered by the target"
    caption = (
        f"Mean log abundance of each ASV in each {what}, relative to its highest mean: dark is "
        f"where it is abundant. {len(rows_of)} samples."
    )
    return Drawing(figure, caption, f"Heat map of {len(names)} ASVs. {caption}")


def importance_table(given: ReportInput) -> Table | None:
    """List the most important ASVs of importance.tsv, with effects and stability over folds."""
    rows = given.run.importance
    if not rows:
        return None
    prefix = "effect" if any(name.startswith("effect") for name in rows[0]) else NETWORK_EFFECT
    effects = [name for name in rows[0] if name == prefix or name.startswith(f"{prefix}_")]
    folds = [name for name in rows[0] if name.startswith(FOLD_RANK)]
    agreement = None
    if folds and len(rows) > 1:
        ranks = [[float(row[name]) for row in rows] for name in folds]
        agreement = stability(np.array(ranks))
    cells = []
    for number, row in enumerate(rows[:ASVS], start=1):
        cell = [f"{number}. {_name(row)}"]
        if effects:
            name = _strongest(row, effects)
            label = name.removeprefix(prefix).removeprefix("_")
            cell.append(f"{float(row[name]):+.3g} {label}".rstrip())
        cell.append(f"{float(row['prevalence']):.0%}")
        if agreement is not None:
            cell.append(f"{agreement.times_U[number - 1]} of {agreement.folds}")
        cells.append(cell)
    heads = ["ASV", *([given.with_unit("Effect")] if effects else []), "Prevalence"]
    note = (
        "The first rows of importance.tsv. Effect: change of the prediction of the "
        f"{'kernel' if prefix == 'effect' else 'transformer'} for one standard deviation of the "
        "ASV's log abundance; of classes, of the score of the class that changes most. An "
        "association, not a cause."
    )
    if agreement is not None:
        heads.append(f"Folds with it among the first {agreement.first}")
        note += f" {agreement.sentence}"
    if "taxon" not in rows[0]:
        note += " `aam importance --taxonomy` and `aam train --taxonomy` add taxa."
    return Table(f"The {len(cells)} most important ASVs", heads, cells, note)


def _measure(row: Mapping[str, str]) -> str | None:
    """Return the column, or the start of the columns of classes, whose size is drawn."""
    for column in ("permutation", "effect", NETWORK_EFFECT, "forest"):
        if any(name == column or name.startswith(f"{column}_") for name in row):
            return column
    return None


def _name(row: Mapping[str, str]) -> str:
    """Return the last two named ranks of the taxon of an ASV, or the beginning of its id."""
    if named := named_ranks(row.get("taxon") or ""):
        return "; ".join(named[-2:])
    name = row["feature-id"]
    return name if len(name) <= ID_LETTERS else f"{name[:ID_LETTERS]}…"


def _strongest(row: Mapping[str, str], columns: Sequence[str]) -> str:
    """Return the column with the largest absolute value."""
    return max(columns, key=lambda name: abs(float(row[name])))
