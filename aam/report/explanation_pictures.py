"""Pictures of explanations: the waterfall of one sample, and the beeswarm over samples.

They are those of SHAP (Lundberg et al. 2020, doi:10.1038/s42256-019-0138-9), of the effects that
`Model.explain` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from aam.arrays import F64
from aam.members.explanations import FEATURES
from aam.number_format import significant
from aam.report.asvs import LETTERS, feature_name
from aam.report.figures import INK, SERIES, Drawing, blank, shortened, styled

if TYPE_CHECKING:
    import pandas as pd

ROWS = 10
"""Features with a row of their own."""


@styled
def waterfall(effects: pd.DataFrame, sample: str) -> Drawing:
    """Draw how the effects of a sample lead from the mean label to its prediction."""
    parts = effects[effects["sample"] == sample]
    mean = float(parts.loc[parts["kind"] == "mean", "effect"].iloc[0])
    features = parts[parts["kind"].isin(FEATURES)]
    first, rest = features[:ROWS], features[ROWS:]
    divided = parts.loc[parts["kind"] == "others", "effect"].sum() + rest["effect"].sum()
    remainder = float(parts.loc[parts["kind"] == "remainder", "effect"].sum())
    named = [(_name(row), float(row["effect"])) for row in first.to_dict("records")]
    named += [("all others", float(divided)), ("not divisible", remainder)]
    # From the mean at the bottom to the prediction at the top: the largest effect is the last step.
    steps = named[::-1]
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
    unit = parts["unit"].iloc[0]
    ends = f"{significant(mean)} (mean of training, dashed) to {significant(start)}"
    axes.set(title=f"{sample}: {significant(start)}", xlabel=unit)
    return Drawing(figure, f"From {ends}.", f"Waterfall of {sample}, from {ends}, {unit}.")


@styled
def beeswarm(effects: pd.DataFrame, abundances: pd.DataFrame | None = None) -> Drawing:
    """Draw the effects of the strongest features in every sample as points, a row each.

    Abundances (samples x ASVs) colour the points of an ASV by their rank within it.
    """
    shown = effects[effects["kind"].isin(FEATURES)]
    # The mean over all samples: a sample has no row for a feature of small effect.
    samples = max(effects["sample"].nunique(), 1)
    sizes = shown["effect"].abs().groupby(shown["feature"]).sum() / samples
    names = sizes.sort_values(ascending=False).index[:ROWS].tolist()
    figure, axes = blank(5.2, 1.5 + 0.34 * len(names))
    drawn = None
    for row, name in enumerate(names):
        of_feature = shown[shown["feature"] == name]
        values = of_feature["effect"].to_numpy(np.float64)
        places = row + _spread(values)
        look: dict[str, Any] = {"s": 14, "linewidths": 0}
        if abundances is not None and name in abundances.columns:
            ranks = abundances[name].rank(pct=True).reindex(of_feature["sample"])
            scale: dict[str, Any] = {"c": ranks, "cmap": "plasma", "vmin": 0, "vmax": 1}
            drawn = axes.scatter(values, places, **look, **scale)
        else:
            axes.scatter(values, places, color=SERIES[0], **look)
    if drawn is not None:
        figure.colorbar(drawn, ax=axes, label="abundance, rank within the ASV", shrink=0.8)
    axes.axvline(0, color=INK, lw=1, alpha=0.6)
    labels = [_name(shown[shown["feature"] == name].iloc[0].to_dict()) for name in names]
    axes.set_yticks(range(len(names)), [shortened(label, LETTERS) for label in labels])
    axes.set_ylim(len(names) - 0.4, -0.6)
    units = effects["unit"].unique()
    unit = units[0] if len(units) == 1 else "probability of the predicted class"
    axes.set(title=f"Effects in {samples} samples", xlabel=f"effect ({unit})")
    caption = f"The {len(names)} features with the largest mean effect, a point for each sample."
    return Drawing(figure, caption, f"Beeswarm. {caption} The first is {', '.join(labels[:1])}.")


def _name(row: Mapping[Any, Any]) -> str:
    return feature_name({key: str(value) for key, value in row.items()})


def _spread(values_N: F64) -> F64:
    """Return vertical offsets, -0.35 to 0.35, which keep points of near values apart."""
    if not len(values_N):
        return values_N
    bins = np.round(50 * (values_N - values_N.min()) / max(float(np.ptp(values_N)), 1e-12))
    offsets = np.zeros(len(values_N))
    for place in np.unique(bins):
        inside = np.flatnonzero(bins == place)
        # 0, 1, -1, 2, -2, ... from the middle outwards.
        steps = np.arange(len(inside))
        offsets[inside] = (steps + 1) // 2 * np.where(steps % 2, 1, -1)
    return 0.35 * offsets / max(float(np.abs(offsets).max()), 4.0)
