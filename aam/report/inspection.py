"""HTML page of `aam inspect`: findings and pictures of a study before training."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import rankdata

from aam.contract.errors import printable
from aam.data.metadata import LARGEST_NUMBER, as_numbers
from aam.data.study_inspection import Inspection, MetadataColumn
from aam.data.table import FeatureTable, auto_depth
from aam.evaluation.confounding import Association
from aam.evaluation.intervals import NO_SKILL
from aam.report.figures import SERIES, Drawing, Picture, blank, heat_map, shortened, styled
from aam.report.page import Tile, render, write_page
from aam.report.terminal import HEADINGS, OTHER_FORM, Table

if TYPE_CHECKING:
    from matplotlib.axis import Axis

MAX_COLUMNS = 150  # most metadata columns with a picture; each takes 45 ms of CPU time and 20 KB
MAX_RELATED = 25  # most columns in the heat map of associations
MAX_PAIRED = 2000
"""Samples, evenly spaced, from which associations are computed: 25 columns take a second."""

MAX_BARS = 9
BLOCK = 4096  # samples read at once
MAX_BINS = 30
GREY = "#8b95a1"  # colour of missing and pooled values
SMALL, LARGE = (3.1, 2.1), (4.6, 3.2)  # inches


def write_inspection(
    inspection: Inspection,
    target: tuple[MetadataColumn, Sequence[Association]] | None,
    name: str,
    path: Path,
) -> None:
    """Write the page of a study; `target` has the labels and the columns that predict them."""
    table = None if inspection.study is None else inspection.study.table
    drawings, tiles = {}, []
    if table is not None:
        tiles = [
            Tile(f"{len(table.sample_ids):,}", "samples"),
            Tile(f"{len(table.feature_ids):,}", "ASVs"),
            Tile(f"{np.median(table.richness):,.0f}", "ASVs in a sample", "median"),
        ]
        if table.quantity == "reads":
            drawings["reads"] = reads_picture(table)
            reads = f"{np.median(table.reads):,.0f}"
            tiles.insert(2, Tile(reads, "reads", "median per sample"))
        drawings["prevalence"] = prevalence_picture(table)
    if inspection.overlaps:
        drawings["overlap"] = overlap_picture(inspection.overlaps)
    if inspection.metadata is not None:
        tiles.append(Tile(f"{len(inspection.metadata.columns):,}", "metadata columns"))
    # Constant, empty and naming columns have no distribution to draw.
    distributed = [item for item in inspection.columns if item.kind in ("numbers", "categories")]
    columns = {
        f"column-{number}": column_picture(column, *SMALL)
        for number, column in enumerate(distributed[:MAX_COLUMNS])
    }
    without = {"one value": "Only one value", "empty": "Empty", "names": "A name for each sample"}
    left_out = {title: [column.name for column in inspection.columns if column.kind == kind]
                for kind, title in without.items()}  # fmt: skip
    left_out["Without a picture"] = [column.name for column in distributed[MAX_COLUMNS:]]
    # Facts about columns are the captions of their pictures.
    captions = {("fact", column.name, column.text) for column in inspection.columns}
    findings = [f for f in inspection.findings if (f.severity, f.subject, f.text) not in captions]
    findings.sort(key=lambda finding: ("error", "warning", "fact").index(finding.severity))
    relations = {"missing": missing_picture(inspection.columns),
                 "associations": association_picture(distributed)}  # fmt: skip
    errors = sum(finding.severity == "error" for finding in findings)
    text = render(
        "inspection.html.j2",
        name=name,
        errors=f"{errors} error{'s' * (errors > 1)}" if errors else "",
        tiles=tiles,
        findings=[finding for finding in findings if finding.subject != "target"],
        target_findings=[finding for finding in findings if finding.subject == "target"],
        marks={"fact": "", "warning": "warning", "error": "error"},
        reads=[Picture.of(*drawing) for drawing in drawings.items()],
        target=[Picture.of("target", column_picture(target[0], *LARGE))] if target else [],
        predictors=predictors_table(*target) if target else Table("", [], []),
        relations=[Picture.of(name, drawing) for name, drawing in relations.items() if drawing],
        columns=[Picture.of(*drawing) for drawing in columns.items()],
        left_out=[
            f"{reason} ({len(names)}): {', '.join(names)}"
            for reason, names in left_out.items()
            if names
        ],
    )
    write_page(path, text)


@styled
def reads_picture(table: FeatureTable) -> Drawing:
    """Draw a histogram of reads per sample, with the rarefaction depth."""
    reads_N, depth = table.reads, auto_depth(table.reads)
    figure, axes = blank(*LARGE)
    low, high = reads_N.min(), reads_N.max()
    bins = np.geomspace(max(low, 1), max(high, low + 1) * 1.001, MAX_BINS + 1)
    axes.hist(reads_N, bins.tolist(), color=SERIES[0])
    axes.axvline(depth, color=SERIES[1], lw=2, label=f"rarefaction depth (auto): {depth:,}")
    axes.set(title="Reads per sample", xscale="log", xlabel="reads", ylabel="samples")
    _plain_ticks(axes.xaxis, high / max(low, 1))
    figure.legend(loc="outside lower center")
    below = int((reads_N < depth).sum())
    caption = f"{below} of {len(reads_N)} samples have fewer reads than the depth."
    return Drawing(figure, caption, f"Histogram of reads, {low} to {high}. {caption}")


@styled
def prevalence_picture(table: FeatureTable) -> Drawing:
    """Draw a histogram of the prevalence of the ASVs."""
    samples = len(table.sample_ids)
    prevalence_F = np.zeros(len(table.feature_ids), dtype=np.int64)
    for start in range(0, samples, BLOCK):  # a prepared study may be larger than memory
        block = table.counts[np.arange(start, min(start + BLOCK, samples))]
        prevalence_F += np.bincount(block.indices, minlength=len(prevalence_F))
    figure, axes = blank(*LARGE)
    numbers, *_ = axes.hist(
        100 * prevalence_F / samples, [*np.linspace(0, 100, MAX_BINS + 1)], color=SERIES[2]
    )
    axes.set(title="Prevalence of the ASVs", xlabel="% of the samples", ylabel="ASVs")
    axes.set(xlim=(0, 100), yscale="log")
    _plain_ticks(axes.yaxis, float(np.max(numbers)))
    once, half = int((prevalence_F == 1).sum()), int((2 * prevalence_F >= samples).sum())
    caption = (
        f"{once:,} of {len(prevalence_F):,} ASVs are in only one sample, {half:,} in at least half "
        "of the samples."
    )
    return Drawing(figure, caption, f"Histogram of prevalence. {caption}")


def _plain_ticks(axis: Axis, ratio: float) -> None:
    """Label a logarithmic axis with plain numbers; `ratio` is the ratio of its ends."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    # Powers of ten are mathematical text, and this style does not draw it.
    steps = (1.0, 2.0, 5.0) if ratio < 30 else (1.0, 3.0) if ratio < 1000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


@styled
def overlap_picture(overlaps: Sequence[tuple[str, int, int]]) -> Drawing:
    """Draw the overlap of ids between files as bars."""
    figure, axes = blank(LARGE[0], 1.0 + 0.62 * len(overlaps))
    for row, (name, common, total) in enumerate(overlaps):
        share = 100 * common / total
        axes.barh(row, share, color=SERIES[0], height=0.35)
        axes.barh(row, 100 - share, left=share, color=GREY, alpha=0.35, height=0.35)
        axes.text(0, row - 0.27, f"{name}: {common:,} of {total:,}", va="bottom", fontsize=9)
    axes.set(xlim=(0, 100), ylim=(len(overlaps) - 0.6, -0.75), xlabel="%")
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.set_title("Ids in common")
    texts = [f"{name}: {common} of {total}" for name, common, total in overlaps]
    return Drawing(figure, "", f"Ids in common. {'; '.join(texts)}.")


@styled
def column_picture(column: MetadataColumn, width: float, height: float) -> Drawing:
    """Draw a metadata column: a histogram of numbers, or bars of frequent values."""
    from matplotlib.figure import Figure

    counts = Counter(column.values)
    missing = counts.pop("", 0)
    numbers_N = as_numbers([value for value in column.values if value])
    in_order = column.kind == "numbers" or not np.isnan(numbers_N).any()
    # Fixed margins: a layout for each of a hundred pictures would double their time.
    left_margin = 0.55 / width if in_order else 1.25 / width
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((left_margin, 0.45 / height, 0.95 - left_margin, 1 - 0.8 / height))
    if column.kind == "numbers":
        finite_N = numbers_N[np.abs(numbers_N) <= LARGEST_NUMBER]
        low, high = (finite_N.min(), finite_N.max()) if len(finite_N) else (0.0, 1.0)
        edges = np.linspace(low, high, min(MAX_BINS, max(8, int(len(finite_N) ** 0.5))) + 1)
        if not (np.diff(edges) > 0).all():  # too close for bins between them
            edges = low + max(1.0, abs(low)) * np.array([-0.1, 0.1])
        axes.hist(finite_N, edges.tolist(), color=SERIES[0])
        axes.set(ylabel="samples")
    elif in_order:
        values = sorted(counts, key=float)
        axes.bar(range(len(values)), [counts[v] for v in values], color=SERIES[0], width=0.8)
        names = [shortened(name, 8) for name in values]
        # About 22 digits fit below the small picture.
        every = 1 + (len(names) * (1 + max(map(len, names)))) // 22
        axes.set_xticks(range(0, len(names), every), names[::every])
        axes.grid(axis="x", visible=False)
        axes.set(ylabel="samples")
    else:
        rows = [(name, times, SERIES[0]) for name, times in counts.most_common(MAX_BARS)]
        if unlisted := sum(counts.values()) - sum(times for _, times, _ in rows):
            rows.append((f"{len(counts) - MAX_BARS} others", unlisted, GREY))
        if missing:
            rows.append(("missing", missing, GREY))
        places, names = range(len(rows)), [shortened(printable(row[0]), 18) for row in rows]
        axes.barh(places, [row[1] for row in rows], color=[row[2] for row in rows], height=0.7)
        axes.set_yticks(places, names, fontsize=8)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="samples")
    name = printable(column.name)
    title = shortened(name, int(11 * width))
    figure.suptitle(
        title, x=0.02, y=1 - 0.06 / height, va="top", ha="left", weight="bold", fontsize=10
    )
    caption = column.text if title == name else f"{shortened(name, 80)}: {column.text}"
    return Drawing(figure, caption, f"{name}: {column.text}")


@styled
def missing_picture(columns: Sequence[MetadataColumn]) -> Drawing | None:
    """Draw the percentage of missing values of each column that has any."""
    shares = {c.name: 100 * sum(not value for value in c.values) / len(c.values) for c in columns}
    shares = {name: share for name, share in shares.items() if share}
    if not shares:
        return None
    names = sorted(shares, key=shares.__getitem__, reverse=True)[:MAX_RELATED]
    figure, axes = blank(LARGE[0], 1.0 + 0.24 * len(names))
    axes.barh(range(len(names)), [shares[name] for name in names], color=GREY, height=0.7)
    axes.set_yticks(range(len(names)), [shortened(printable(name), 24) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(title="Missing values", xlabel="% of the samples", xlim=(0, 100))
    caption = f"{len(shares)} of {len(columns)} columns have missing values"
    caption += f"; the {len(names)} with the most." if len(names) < len(shares) else "."
    texts = (f"{name} {shares[name]:.0f} %" for name in names)
    return Drawing(figure, caption, f"Missing values. {caption} {', '.join(texts)}.")


@styled
def association_picture(columns: Sequence[MetadataColumn]) -> Drawing | None:
    """Draw a heat map of the associations between metadata columns."""
    limit = max((len(column.values) for column in columns), default=0) // 5
    related = [c for c in columns if c.kind == "numbers" or len({*c.values}) <= min(limit, 20)]
    related = related[:MAX_RELATED]
    if len(related) < 2:
        return None
    values = np.zeros((len(related), len(related)))
    for row, column in itertools.product(range(len(related)), repeat=2):
        if row > column:
            values[row, column] = values[column, row] = association(related[row], related[column])
    names = [shortened(printable(column.name), 20) for column in related]
    figure, axes = blank(LARGE[0], 1.6 + 0.22 * len(related))
    heat_map(axes, values, names, names)
    axes.set(title="Associated columns")
    pairs = itertools.combinations(range(len(related)), 2)
    first = sorted(pairs, key=lambda pair: -values[pair])[:3]
    texts = [f"{names[row]} and {names[column]} {values[row, column]:.2f}" for row, column in first]
    caption = (
        f"Highest: {', '.join(texts)}. 1: one column determines the other; 0: no association "
        "(Spearman's correlation for numbers, Cramér's V for categories, eta for one of each)."
    )
    return Drawing(figure, caption, f"Associations of columns. {caption}")


def association(first: MetadataColumn, second: MetadataColumn) -> float:
    """Return the association of two columns, 0 to 1, over the samples that have both.

    Root of the mean squared canonical correlation of ranks (numbers) and indicators (categories):
    |Spearman's rho| for numbers, Cramér's V for categories, eta for one of each.
    """
    step = 1 + (len(first.values) - 1) // MAX_PAIRED
    pairs = zip(first.values[::step], second.values[::step], strict=True)
    pairs_of_values = [pair for pair in pairs if all(pair)]
    if len(pairs_of_values) < 3:
        return 0.0
    bases = []
    for column, texts in zip((first, second), zip(*pairs_of_values, strict=True), strict=True):
        if column.kind == "numbers":
            coded_NC = rankdata(as_numbers(texts))[:, None]
        else:
            coded_NC = (np.array(texts)[:, None] == np.unique(texts)).astype(np.float64)
        coded_NC = coded_NC - coded_NC.mean(axis=0)
        left_NC, sizes_C, _ = np.linalg.svd(coded_NC, full_matrices=False)
        bases.append(left_NC[:, sizes_C > 1e-9 * len(pairs_of_values)])
    smaller = min(basis.shape[1] for basis in bases)
    correlations = np.square(bases[0].T @ bases[1]).sum()
    return min(float(np.sqrt(correlations / smaller)), 1.0) if smaller else 0.0


def predictors_table(target: MetadataColumn, columns: Sequence[Association]) -> Table:
    """Return the table of the single columns that predict the target best."""
    skilled = [column for column in columns if column.value > NO_SKILL[column.metric]][:10]
    forms = any(column.other_form for column in skilled)
    rows = [
        [column.column, f"{column.value:.3f}", *[OTHER_FORM if column.other_form else ""] * forms]
        for column in skilled
    ]
    title = HEADINGS[skilled[0].metric] if skilled else ""
    note = "Each column alone, on the splits of `aam train`."
    note += f" Baseline: {NO_SKILL[skilled[0].metric]:g}." if skilled else ""
    heads = ["Column", title, *["Role"] * forms]
    return Table(f"Single columns that predict {target.name}", heads, rows, note)
