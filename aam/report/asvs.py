"""ASVs in the report: importance, abundance, associations, attention, explanations.

The waterfall of one sample and the beeswarm over samples are the plots of SHAP (Lundberg et al.
2020, doi:10.1038/s42256-019-0138-9).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from aam.arrays import F64, Codes, Rows
from aam.data.store import Store, is_store
from aam.data.table import FeatureTable, read_table
from aam.data.taxonomy import named_ranks
from aam.evaluation.association import (
    ADJUSTED,
    ADJUSTED_Z,
    ASSOCIATED,
    CONDITIONAL,
    EQUAL_DEPTH,
    RATE,
    association_sentence,
)
from aam.evaluation.metrics import quantile_bins
from aam.members.explanations import FEATURES
from aam.members.importance import FOLD_RANK, stability, taxa_of_asvs
from aam.number_format import significant
from aam.report.figures import (
    INK,
    SERIES,
    Colour,
    Drawing,
    blank,
    heat_map,
    legend_below,
    shortened,
    styled,
)
from aam.report.run import NETWORK_EFFECT, ReportInput, Run, as_colour
from aam.report.terminal import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASVS = 15  # ASVs in figures, and first in the table
ID_LETTERS = 16  # letters of a printed feature id; a hash has `HASH_LETTERS`
HASH_LETTERS = 8

LISTED = 300  # ASVs in the table of the page; the filter finds hidden rows too
MAX_CLASSES = 12
BINS = 20  # columns of the heat map of a numeric target
HEAT_ROWS, HEAT_SAMPLES = 25, 4000
"""Most associated features and samples in the heat map of samples."""

LARGEST_TABLE = 200 * 2**20
"""Largest table in bytes that is read for the heat map: 200 MiB take about 10 s."""

LETTERS = 34  # longest name beside a row
SHORT_LABEL = 13  # longest label for three columns of a legend
MAX_ASVS = 25  # ASVs in the attention plot
FEATURE_ROWS = 10  # rows of features in an explanation

_NO_FINDING = (
    "The model is not shown to be better than the baseline: the bars explain its computation, not "
    "which ASVs matter. "
)


def read_abundances(run: Run, table: FeatureTable | None = None) -> pd.DataFrame | None:
    """Read the relative abundances of the leading ASVs of a run, samples x ASVs.

    None without importance.tsv, predictions or the table, or for one above `LARGEST_TABLE`.
    """
    if not run.importance or run.scored is None:
        return None
    if table is None and (recorded := run.input_path("--table")):
        table = _recorded_table(Path(recorded))
    if table is None:
        return None
    column_of = {name: column for column, name in enumerate(table.feature_ids)}
    leading = {row["feature-id"]: [row["feature-id"]] for row in run.importance[:ASVS]}
    features = {
        name: columns
        for name, ids in (leading | associated_features(run)).items()
        if (columns := [column_of[asv] for asv in ids if asv in column_of])
    }
    if not features:
        return None
    columns = sorted(set().union(*features.values()))
    counts = table.take_features(columns).counts
    sums = [counts[:, np.searchsorted(columns, of)].sum(axis=1) for of in features.values()]
    shares = np.column_stack(sums) / np.maximum(table.reads, 1)[:, None]
    return pd.DataFrame(shares, index=list(table.sample_ids), columns=list(features))


def associated_features(run: Run) -> dict[str, list[str]]:
    """Return the ASV ids of each associated genus (of each ASV without genera), by least q."""
    members = taxa_of_asvs(row.get("taxon") or "" for row in run.importance)
    genera = {"; ".join(ranks): rows for ranks, rows in members.items() if ranks[-1][:3] == "g__"}
    candidates = {
        row["feature"]: (
            row["q"],
            [run.importance[k]["feature-id"] for k in genera[row["feature"]]],
        )
        for row in run.associations
        if row["feature"] in genera
    } or {
        row["feature-id"]: (row.get(ASSOCIATED, ""), [row["feature-id"]]) for row in run.importance
    }
    q_values = {name: float(q or "nan") for name, (q, _) in candidates.items()}
    names = sorted((name for name, q in q_values.items() if q < RATE), key=q_values.__getitem__)
    return {name: candidates[name][1] for name in names[:HEAT_ROWS]}


def _recorded_table(path: Path) -> FeatureTable | None:
    mapped = is_store(path)
    file = path / "counts.npy" if mapped else path
    if not file.is_file() or file.stat().st_size > LARGEST_TABLE:
        return None
    return Store(path).open()[0] if mapped else read_table(path)


def importance_picture(report: ReportInput) -> Drawing | None:
    """Draw the importance of the leading ASVs as bars, with a notice below the baseline."""
    drawing = importance_drawing(report.run.importance, report.with_unit("effect"))
    if drawing is None or report.run.is_better:
        return drawing
    return Drawing(drawing.figure, _NO_FINDING + drawing.caption, drawing.description)


@styled
def importance_drawing(importance: Sequence[Mapping[str, str]], effect: str) -> Drawing | None:
    """Draw the importance of the leading ASVs as bars; None without a measure."""
    from matplotlib.patches import Patch

    rows = importance[:ASVS]
    measure, columns = _measure(rows, "permutation", "effect", NETWORK_EFFECT, "forest")
    if not columns:
        return None
    sizes, classes = zip(*(_strongest(row, measure, columns) for row in rows), strict=True)
    names = [f"{number}. {asv_name(row)}" for number, row in enumerate(rows, start=1)]
    figure, axes = blank(4.6, 1.2 + 0.26 * len(names))
    colours = [SERIES[0] if size >= 0 else SERIES[1] for size in sizes]
    # With several classes, a bar has the colour of its class.
    if has_classes := len(set(classes)) > 1:
        frequent = [name for name, _ in Counter(classes).most_common(len(SERIES) - 1)]
        colour_of = dict(zip(frequent, SERIES, strict=False))
        colours = [colour_of.get(name, SERIES[-1]) for name in classes]
        labels = {shortened(name, 20): colour for name, colour in colour_of.items()}
        if len(set(classes)) > len(frequent):
            labels["others"] = SERIES[-1]
        handles = [Patch(color=colour, label=label) for label, colour in labels.items()]
        across = 3 if max(map(len, labels)) <= SHORT_LABEL else 2  # a wider legend is cut off
        legend_below(axes, handles=handles, ncols=across)
    of_effects = measure in ("effect", NETWORK_EFFECT)
    axes.barh(range(len(names)), sizes, color=colours, height=0.7)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_yticks(range(len(names)), [shortened(name, LETTERS) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    if not has_classes and classes[0]:
        effect = f"{effect} on {classes[0]}"
    axes.set(title="Most important ASVs", xlabel=effect if of_effects else measure)
    axes.locator_params(axis="x", nbins=5)
    caption = f"The first {len(rows)} ASVs, ordered by {order_of(rows[0])[1]}" + (
        ". Bars: change of the prediction per standard deviation of the log abundance."
        if of_effects
        else "."
    )
    return Drawing(figure, caption, f"Bars of importance. {caption} The first is {names[0]}.")


@styled
def heat_picture(report: ReportInput) -> Drawing | None:
    """Draw a heat map of the leading ASVs: mean abundance by class or along the target."""
    scored, abundances = report.run.scored, report.abundances
    if scored is None or abundances is None:
        return None
    leading = [row["feature-id"] for row in report.run.importance[:ASVS]]
    abundances = abundances[[name for name in leading if name in abundances.columns]]
    table_row_of = {name: row for row, name in enumerate(abundances.index)}
    # Rows of the predictions of the samples in the table, and the samples of each column.
    row_of = {name: row for row, name in enumerate(report.run.sample_ids) if name in table_row_of}
    actual = scored.actual[[*row_of.values()]]
    rows_of: dict[str, npt.NDArray[np.int64]] = {}
    if scored.classes:
        times = np.bincount(scored.actual, minlength=len(scored.classes))
        most = np.sort(np.argsort(-times, kind="stable")[:MAX_CLASSES])
        rows_of = {scored.classes[code]: np.flatnonzero(actual == code) for code in most.tolist()}
    elif row_of:
        for rows in filter(len, quantile_bins(actual, BINS).values()):
            name = significant(float(np.median(actual[rows])))
            rows_of[name] = np.union1d(rows_of.get(name, rows), rows)
    # A quantile between equal values may leave a bin empty.
    rows_of = {name: rows for name, rows in rows_of.items() if len(rows)}
    if len(rows_of) < 2:
        return None
    logs = np.log10(1 + 1e4 * abundances.to_numpy()[[table_row_of[name] for name in row_of]])
    means = np.array([logs[rows].mean(axis=0) for rows in rows_of.values()]).T
    taxa = {row["feature-id"]: row for row in report.run.importance[:ASVS]}
    names = [
        shortened(f"{number}. {asv_name(taxa.get(name, {'feature-id': name}))}", LETTERS)
        for number, name in enumerate(abundances.columns, start=1)
    ]
    figure, axes = blank(4.6, 1.5 + 0.26 * len(names))
    # Relative to the highest mean of the ASV: a few abundant ASVs would leave the others blank.
    shares = means / np.maximum(means.max(axis=1, keepdims=True), 1e-9)
    heat_map(axes, shares, names, [shortened(name, 16) for name in rows_of])
    axes.set(title="Abundance", xlabel=report.run.target if scored.classes else report.target)
    division = "class" if scored.classes else "bin of samples, ordered by the target"
    caption = (
        f"Mean log abundance of each ASV in each {division}, relative to its highest mean (dark). "
        f"{len(row_of)} samples."
    )
    numbers = pd.DataFrame(shares, abundances.columns, rows_of)
    return Drawing(figure, caption, f"Heat map of {len(names)} ASVs. {caption}", numbers=numbers)


@styled
def sample_heat_picture(report: ReportInput) -> Drawing | None:
    """Draw a heat map of associated features by sample, ordered by prediction.

    Bars above have prediction, target, study and confounders, as in SIAMCAT (Wirbel et al. 2021,
    doi:10.1186/s13059-021-02306-1).
    """
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    run, scored, abundances = report.run, report.run.scored, report.abundances
    if scored is None or abundances is None:
        return None
    features = [name for name in associated_features(run) if name in abundances.columns]
    in_table = abundances.index
    rows = np.array(
        [k for k, name in enumerate(run.sample_ids) if name in in_table], dtype=np.int64
    )
    if len(features) < 2 or len(rows) < 2:
        return None
    scale = scored.predicted
    if scored.probabilities is not None and len(scored.classes) == 2:
        scale = scored.probabilities[:, 1]
    rows = rows[np.argsort(scale[rows], kind="stable")][:: 1 + (len(rows) - 1) // HEAT_SAMPLES]
    ids, bars = [run.sample_ids[row] for row in rows], _sample_bars(report, rows)
    logs = np.log10(1 + 1e4 * abundances.loc[ids, features].to_numpy())
    shares = logs / np.maximum(logs.max(axis=0), 1e-9)
    # Features that rise with the prediction first, those that fall last.
    rising = rankdata(shares, axis=0).T @ (np.arange(len(ids)) - (len(ids) - 1) / 2)
    order = np.argsort(-rising, kind="stable")
    taxa = {row["feature-id"]: asv_name(row) for row in run.importance}
    names = [taxa.get(features[k], features[k].rpartition("; ")[2]) for k in order]
    cells = np.zeros((len(bars) + 1 + len(features), len(ids), 4))
    cells[len(bars) + 1 :] = to_rgba(SERIES[0])
    cells[len(bars) + 1 :, :, 3] = 0.04 + 0.96 * shares[:, order].T
    # A column of the legend for each bar, with its name on top.
    longest, handles = max(len(bar.legend) for bar in bars[1:]), []
    for row, bar in enumerate(bars):
        colours, legend = bar.plain()
        cells[row] = [to_rgba(colour) for colour in colours]
        entries = [("none", bar.column), *legend, *[("none", "")] * (longest - len(legend))]
        handles += [Patch(facecolor=c, label=shortened(t, 22)) for c, t in entries if row]
    figure, axes = blank(4.6, 1.6 + 0.2 * len(cells) + 0.16 * longest)
    axes.imshow(cells, interpolation="none", aspect="auto")
    titles = [bar.column for bar in bars]
    labels = [shortened(name, LETTERS) for name in (*titles, "", *names)]
    axes.set_yticks(range(len(cells)), labels, fontsize=8.5)
    axes.set(xticks=[], xlabel=f"{len(ids)} samples, ordered by {titles[0]}")
    kind = "ASVs" if features[0] in taxa else "genera"
    axes.set_title(f"Associated {kind}")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    legend_below(axes, handles=handles, ncols=len(bars) - 1, fontsize=8.5)
    which = "The most strongly associated" if len(features) == HEAT_ROWS else "All associated"
    caption = (
        f"{which} {kind} ({len(features)}; rank test, q < {RATE:g}) in {len(ids)} samples. Dark: "
        "high log abundance relative to the highest of the row. Bars above: "
        f"{', '.join(titles)}."
    )
    numbers = pd.DataFrame({"sample": ids, **{bar.column: bar.texts for bar in bars}})
    numbers[[features[k] for k in order]] = abundances.loc[ids, [features[k] for k in order]].values
    description = f"Heat map by sample. {caption} The first is {names[0]}."
    return Drawing(figure, caption, description, numbers=numbers.set_index("sample"))


def _sample_bars(report: ReportInput, rows: Rows) -> list[Colour]:
    """Return prediction, target, study and confounders of samples as colours."""
    run, scored, target = report.run, report.run.scored, report.target_colour
    assert scored is not None
    texts = [f"{value:.4g}" for value in scored.predicted[rows].tolist()]
    title, is_category = f"predicted {report.target}", len(scored.classes) > 0
    if scored.probabilities is not None and len(scored.classes) == 2:
        texts = [f"{value:.4g}" for value in scored.probabilities[rows, 1].tolist()]
        title, is_category = f"probability of {scored.classes[1]}", False
    elif is_category:
        texts = [scored.classes[code] for code in scored.predicted[rows].tolist()]
    bars = [as_colour(title, texts, is_category)]
    bars.append(as_colour(report.target, [target.texts[row] for row in rows], bool(scored.classes)))
    if scored.studies:
        names = [scored.studies[row] for row in rows]
        bars.append(as_colour(str(run.option("study_column") or "study"), names, True))
    confounders = set() if run.scores is None else {c.column for c in run.scores.confounders}
    row_of = {name: row for row, name in enumerate(run.described_ids)}
    for colour in report.colours:
        if colour.column in confounders:
            positions = [row_of.get(run.sample_ids[row]) for row in rows]
            texts = ["" if row is None else colour.texts[row] for row in positions]
            bars.append(as_colour(colour.column, texts, colour.labels is not None))
    return bars


def order_of(row: Mapping[str, str]) -> tuple[str, str]:
    """Return the column that orders importance.tsv, "" without one, and its description."""
    if row.get("permutation"):
        return (
            "permutation",
            "permutation, the change of the predictions if its reads are permuted",
        )
    if "rank" in row:
        return "rank", "mean rank over the models"
    return "", "importance.tsv"


def importance_table(report: ReportInput) -> Table | None:
    """Return the table of ASVs by importance: effects, q-values, stability over folds."""
    rows = report.run.importance
    if not rows:
        return None
    first, target = rows[:LISTED], report.run.target or "the target"
    columns = {"ASV": [f"{number}. {asv_name(row)}" for number, row in enumerate(first, start=1)]}
    measure, effects = _measure(rows, "effect", NETWORK_EFFECT)
    if effects:
        sizes, classes = zip(*(_strongest(row, measure, effects) for row in first), strict=True)
        cells, of_class = _with_class([f"{size:+.3g}" for size in sizes], classes)
        columns[report.with_unit(f"Effect{of_class}")] = cells
    columns["Prevalence"] = [f"{float(row['prevalence']):.0%}" for row in first]
    # The tests read the samples, not the model: the order of the model controls no false discovery
    # rate (Benjamini and Hochberg 1995).
    tests = {ASSOCIATED: "q", ADJUSTED: "q adjusted", CONDITIONAL: "q given community"}
    q_values = {
        name: np.array([float(row[name] or "nan") for row in rows])
        for name in (*tests, EQUAL_DEPTH)
        if name in rows[0]
    }
    for name in [name for name in tests if name in q_values]:
        columns[tests[name]] = [f"{q:.2g}" for q in q_values[name][:LISTED]]
    leads = [association_sentence(q_values, target, report.run.is_better)] if q_values else []
    note = (
        f"Ordered by {order_of(rows[0])[1]}. Effect: change of the prediction of the "
        f"{'kernel' if measure == 'effect' else 'transformer'} per standard deviation of the log "
        "abundance; with classes, for the class that changes most. An association, not a cause."
    )
    folds = [name for name in rows[0] if name.startswith(FOLD_RANK)]
    if folds and len(rows) > 1:
        agreement = stability(np.array([[float(row[name]) for row in rows] for name in folds]))
        times = [f"{times} of {agreement.folds}" for times in agreement.times_U[:LISTED]]
        columns["Folds"] = times
        leads.append(agreement.sentence(q_values.get(ASSOCIATED)))
        note += f" Folds: number of folds with the ASV among the first {agreement.first}."
    if "taxon" not in rows[0]:
        leads.append("Add --taxonomy to `aam train` or `aam importance` for names.")
    note += " Names end with the first letters of the MD5 of the sequence."
    rows_of_table = list(zip(*columns.values(), strict=True))
    ids = [row["feature-id"] for row in first]
    return Table(
        "ASVs by importance",
        [*columns],
        rows_of_table,
        note,
        ids=ids,
        lead=" ".join(leads),
        filtered=True,
    )


def associations_table(report: ReportInput, kind: str) -> Table | None:
    """Return the table of ASVs or taxa associated within studies, with their direction in each."""
    rows = [row for row in report.run.associations if row["kind"] == kind]
    if not rows:
        return None
    first = rows[:ASVS]
    names = [name for name in rows[0] if name.startswith("z_") and name != ADJUSTED_Z]
    z, of_class = _with_class(
        [f"{float(row['z']):+.1f}" for row in first], [row.get("class", "") for row in first]
    )
    columns = {
        kind: [
            asv_name({**row, "feature-id": row["feature"]}) if kind == "ASV" else row["feature"]
            for row in first
        ],
        "Agreeing studies": [f"{row['agreeing']} of {row['studies']}" for row in first],
        f"z{of_class}": z,
        "q": [f"{float(row['q']):.2g}" for row in first],
    }
    if ADJUSTED in rows[0]:
        for name, form in ((ADJUSTED_Z, "+.1f"), (ADJUSTED, ".2g")):
            columns[name.replace("_", " ")] = [
                f"{float(row[name] or 'nan'):{form}}" for row in first
            ]
    if kind == "ASV":
        columns["Rank in the model"] = [f"{float(row['rank']):.3g}" for row in first]
    columns |= {
        name.removeprefix("z_"): [f"{float(row[name]):+.1f}" if row[name] else "" for row in first]
        for name in names
    }
    q, studies, agreeing = (
        np.array([float(row[name]) for row in rows]) for name in ("q", "studies", "agreeing")
    )
    sentence = agreement_sentence(q, studies, agreeing, "depth" in rows[0])
    note = (
        f"{sentence if kind == 'ASV' else ''} Rank test within studies, combined over the studies "
        "(van Elteren). z: standard normal without association; above 0 the abundance rises with "
        f"{report.run.target}. The last columns have the z of each study. The tests use the data; "
        "the rank comes from the model."
    ).strip()
    cells, ids = list(zip(*columns.values(), strict=True)), [row["feature"] for row in first]
    title = "ASVs" if kind == "ASV" else "Taxa"
    return Table(f"{title} associated within the studies", [*columns], cells, note, ids=ids)


def explanations_table(report: ReportInput) -> Table | None:
    """Return the table of explanations: the largest effects in the worst and typical samples."""
    rows = report.run.explanations
    if rows is None:
        return None
    samples: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        samples.setdefault(row["sample"], []).append(row)
    cells = []
    probability = bool(rows) and rows[0]["unit"].startswith("probability of ")
    for sample, sample_rows in samples.items():
        effects = [float(row["effect"]) for row in sample_rows]
        features = [k for k, row in enumerate(sample_rows) if row["kind"] in FEATURES][:3]
        # The first row is the mean, the last is the effect that no feature has.
        mean, remainder = effects[0], effects[-1]
        unnamed = sum(effects) - mean - remainder - sum(effects[k] for k in features)
        of = [sample_rows[0]["unit"].removeprefix("probability of ")] if probability else []
        largest = [
            f"{feature_name(sample_rows[k])} {significant(effects[k], True)}" for k in features
        ]
        largest += [""] * (3 - len(largest))
        starts = [significant(sum(effects)), significant(mean)]
        ends = [significant(unnamed, signed=True), significant(remainder, signed=True)]
        cells.append([sample, sample_rows[0]["group"], *of, *starts, *largest, *ends])
    heads = ["Sample", "Error", *(["Class"] if probability else []), "Predicted", "Mean"]
    heads += ["Largest effect", "Second", "Third", "All others", "Remainder"]
    note = (
        "Each row adds up to the prediction: mean of the training labels, effects, others and "
        "remainder. The models were not trained on the sample. Remainder: the effect that the "
        "model does not attribute to single ASVs. Effects explain the model, not causes."
    )
    return Table("Effects behind these predictions", heads, cells, note)


def feature_name(row: Mapping[Any, str]) -> str:
    """Return the short name of an ASV or a taxon, or a metadata column."""
    if row["kind"] == "metadata":
        return row["feature"]
    if row["kind"] == "taxon":
        return (named_ranks(row["feature"]) or [row["feature"]])[-1]
    return asv_name({"feature-id": row["feature"]})


def asv_name(row: Mapping[str, str]) -> str:
    """Return the taxon of an ASV from its genus on, and a short form of its id.

    A sequence has its MD5 as id, as in QIIME 2: sequences of one region begin alike.

    >>> asv_name({"feature-id": "ACGT" * 30, "taxon": "d__Bacteria; g__Blautia; s__obeum"})
    'g__Blautia; s__obeum 5622e692'
    """
    name = row["feature-id"]
    if len(name) > ID_LETTERS and not set(name.upper()) - set("ACGTURYSWKMBDHVN"):
        name = hashlib.md5(name.upper().encode(), usedforsecurity=False).hexdigest()
    is_hash = len(name) == 32 and not set(name) - set("0123456789abcdef")
    short = name[:HASH_LETTERS] if is_hash else shortened(name, ID_LETTERS)
    ranks = named_ranks(row.get("taxon") or "")
    # Without a named genus the lowest rank with a name.
    first = next((k for k, rank in enumerate(ranks) if rank.startswith("g__")), len(ranks) - 1)
    return " ".join(["; ".join(ranks[max(first, 0) :]), short]).strip()


def _measure(rows: Sequence[Mapping[str, str]], *names: str) -> tuple[str, list[str]]:
    """Return the first measure in importance.tsv, and its columns: one, or one per class."""
    for name in names if rows else ():
        if columns := [
            column for column in rows[0] if column == name or column.startswith(f"{name}_")
        ]:
            return name, columns
    return names[-1], []


def _with_class(cells: Sequence[str], classes: Sequence[str]) -> tuple[list[str], str]:
    """Add the class to each cell; return a common class for the head of the column instead.

    >>> _with_class(["+1", "-1"], ["case", "case"]), _with_class(["+1", "-1"], ["a", "b"])
    ((['+1', '-1'], ' on case'), (['+1 a', '-1 b'], ''))
    """
    if len(names := {*classes}) == 1:
        return [*cells], " on ".join(["", *filter(None, names)])
    return [f"{cell} {name}".rstrip() for cell, name in zip(cells, classes, strict=True)], ""


def _strongest(row: Mapping[str, str], measure: str, columns: Sequence[str]) -> tuple[float, str]:
    """Return the largest absolute value of a measure, and its class."""
    name = max(columns, key=lambda column: abs(float(row[column])))
    return float(row[name]), name.removeprefix(measure).removeprefix("_")


@styled
def draw_attention(table: pd.DataFrame, mixing_UU: npt.NDArray[np.float64], sample: str) -> Figure:
    """Draw attention and abundance of the first ASVs of a sample, and attention between them.

    Numbers after names are rows of `aam.members.importance.attention_table`.
    """
    from matplotlib.figure import Figure

    leading = table[:MAX_ASVS]
    places = np.arange(len(leading))
    height = 1.6 + 0.24 * len(leading)
    figure = Figure(figsize=(6.5 + 0.24 * len(leading), height), layout="constrained")
    bars, heat = figure.subplots(1, 2, sharey=True, width_ratios=(1, max(1, len(leading) / 20)))
    bars.barh(places, 100 * leading["attention"], color=SERIES[0], label="attention")
    bars.plot(100 * leading["relative_abundance"], places, "o", color=SERIES[1], label="reads")
    names = [
        f"{shortened(asv_name({str(key): str(value) for key, value in row.items()}), LETTERS)}  {k}"
        for k, (_, row) in enumerate(leading.iterrows(), start=1)
    ]
    bars.set_yticks(places, names)
    bars.invert_yaxis()
    bars.set_xlabel("% of the sample")
    bars.set_title(f"Attention in {sample}")
    bars.legend()
    image = heat.imshow(
        100 * mixing_UU[: len(leading), : len(leading)], cmap="cividis", aspect="auto"
    )
    heat.set_xticks([])
    heat.set_xlabel("from the ASV of the row to the ASV of the column")
    heat.set_title("Between ASVs")
    heat.grid(visible=False)
    figure.colorbar(image, ax=heat, label="%")
    return figure


@styled
def waterfall(effects: pd.DataFrame, sample: str) -> Drawing:
    """Draw a waterfall: the effects of a sample, from the mean label to its prediction."""
    sample_rows = effects[effects["sample"] == sample]
    mean = float(sample_rows.loc[sample_rows["kind"] == "mean", "effect"].iloc[0])
    features = sample_rows[sample_rows["kind"].isin(FEATURES)]
    first, minor = features[:FEATURE_ROWS], features[FEATURE_ROWS:]
    divided = (
        sample_rows.loc[sample_rows["kind"] == "others", "effect"].sum() + minor["effect"].sum()
    )
    remainder = float(sample_rows.loc[sample_rows["kind"] == "remainder", "effect"].sum())
    bars = [(feature_name(row), float(row["effect"])) for row in first.to_dict("records")]
    bars += [("all others", float(divided)), ("remainder", remainder)]
    # From the mean at the bottom to the prediction at the top, the largest effect last.
    steps = bars[::-1]
    figure, axes = blank(5.2, 1.4 + 0.3 * len(steps))
    start = mean
    for row, (_, effect) in enumerate(steps):
        axes.barh(row, effect, left=start, color=SERIES[0 if effect >= 0 else 1], height=0.7)
        text = significant(effect, signed=True)
        axes.annotate(
            text, (max(start, start + effect), row), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8.5,
        )  # fmt: skip
        axes.plot([start + effect] * 2, (row - 0.35, row + 1.35), color=INK, lw=0.6, alpha=0.5)
        start += effect
    axes.axvline(mean, color=INK, lw=1, ls="--", alpha=0.6)
    axes.set_yticks(range(len(steps)), [shortened(name, LETTERS) for name, _ in steps])
    axes.grid(axis="y", visible=False)
    axes.use_sticky_edges = False  # room beside the bars at the ends
    axes.margins(x=0.12, y=0.02)
    unit = sample_rows["unit"].iloc[0]
    ends = f"{significant(mean)} (training mean, dashed) to {significant(start)}"
    axes.set(title=f"{sample}: {significant(start)}", xlabel=unit)
    return Drawing(figure, f"From {ends}.", f"Waterfall of {sample}, from {ends}, {unit}.")


@styled
def beeswarm(effects: pd.DataFrame, abundances: pd.DataFrame | None = None) -> Drawing:
    """Draw a beeswarm: the effects of the strongest features, a point for each sample.

    Abundances (samples x ASVs) colour the points of an ASV by rank.
    """
    features = effects[effects["kind"].isin(FEATURES)]
    # The mean over all samples: small effects have no row.
    samples = max(effects["sample"].nunique(), 1)
    sizes = features["effect"].abs().groupby(features["feature"]).sum() / samples
    names = sizes.sort_values(ascending=False).index[:FEATURE_ROWS].tolist()
    figure, axes = blank(5.2, 1.5 + 0.34 * len(names))
    cloud = None
    for row, name in enumerate(names):
        of_feature = features[features["feature"] == name]
        values = of_feature["effect"].to_numpy(np.float64)
        places = row + _spread(values)
        look: dict[str, Any] = {"s": 14, "linewidths": 0}
        if abundances is not None and name in abundances.columns:
            ranks = abundances[name].rank(pct=True).reindex(of_feature["sample"])
            scale: dict[str, Any] = {"c": ranks, "cmap": "plasma", "vmin": 0, "vmax": 1}
            cloud = axes.scatter(values, places, **look, **scale)
        else:
            axes.scatter(values, places, color=SERIES[0], **look)
    if cloud is not None:
        figure.colorbar(cloud, ax=axes, label="abundance, rank within the ASV", shrink=0.8)
    axes.axvline(0, color=INK, lw=1, alpha=0.6)
    labels = [
        feature_name(features[features["feature"] == name].iloc[0].to_dict()) for name in names
    ]
    axes.set_yticks(range(len(names)), [shortened(label, LETTERS) for label in labels])
    axes.set_ylim(len(names) - 0.4, -0.6)
    units = effects["unit"].unique()
    unit = units[0] if len(units) == 1 else "probability of the predicted class"
    axes.set(title=f"Effects in {samples} samples", xlabel=f"effect ({unit})")
    caption = f"The {len(names)} features with the largest mean effect; a point for each sample."
    return Drawing(figure, caption, f"Beeswarm. {caption} The first is {', '.join(labels[:1])}.")


def _spread(values_N: F64) -> F64:
    """Return vertical offsets, -0.35 to 0.35, that keep points of near values apart."""
    if not len(values_N):
        return values_N
    bins = np.round(50 * (values_N - values_N.min()) / max(float(np.ptp(values_N)), 1e-12))
    offsets = np.zeros(len(values_N))
    for bin_number in np.unique(bins):
        rows = np.flatnonzero(bins == bin_number)
        # 0, 1, -1, 2, -2, ... from the middle outwards.
        steps = np.arange(len(rows))
        offsets[rows] = (steps + 1) // 2 * np.where(steps % 2, 1, -1)
    return 0.35 * offsets / max(float(np.abs(offsets).max()), 4.0)


PICTURES = {
    "importance": importance_picture,
    "abundance": heat_picture,
    "heatmap": sample_heat_picture,
}
TABLES = (
    importance_table,
    partial(associations_table, kind="ASV"),
    partial(associations_table, kind="taxon"),
)


def agreement_sentence(
    q_F: F64, studies_F: Codes, agreeing_F: Codes, at_equal_depth: bool = False
) -> str:
    """State how many features are associated within studies, and in how many all studies agree.

    >>> agreement_sentence(np.array([0.01, 0.03, 0.5]), np.array([3, 4, 4]), np.array([3, 3, 4]))
    '2 of 3 ASVs are associated within studies (q < 0.1); 1 has the same direction in every study.'
    """
    associated_F = q_F < RATE
    number = int((associated_F & (agreeing_F == studies_F)).sum())
    return (
        f"{int(associated_F.sum())} of {len(q_F)} ASVs are associated within studies (q < {RATE}"
        f"{', at equal depth' if at_equal_depth else ''}); {number} "
        f"{'has' if number == 1 else 'have'} the same direction in every study."
    )
