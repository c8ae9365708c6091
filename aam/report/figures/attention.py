"""Picture of the attention to the ASVs of one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aam.data.taxonomy import named_ranks
from aam.report.figures.canvas import SERIES, shortened, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_ASVS = 25
"""ASVs with the highest attention, which are drawn."""

_LETTERS = 34


@styled
def draw_attention(table: pd.DataFrame, mixing_UU: npt.NDArray[np.float64], sample: str) -> Figure:
    """Draw attention and abundance of the first ASVs of a sample, and the attention between them.

    The number after a name is the row of the table.

    Args:
        table: rows of `aam.members.sample_attention.attention_table`.
        mixing_UU: attention of each ASV (row) to each (column).
        sample: its id.
    """
    from matplotlib.figure import Figure

    shown = table[:MOST_ASVS]
    places = np.arange(len(shown))
    height = 1.6 + 0.24 * len(shown)
    figure = Figure(figsize=(6.5 + 0.24 * len(shown), height), layout="constrained")
    bars, heat = figure.subplots(1, 2, sharey=True, width_ratios=(1, max(1, len(shown) / 20)))
    bars.barh(places, 100 * shown["attention"], color=SERIES[0], label="attention")
    bars.plot(100 * shown["relative_abundance"], places, "o", color=SERIES[1], label="reads")
    names = [f"{_name(row)}  {k}" for k, (_, row) in enumerate(shown.iterrows(), start=1)]
    bars.set_yticks(places, names)
    bars.invert_yaxis()
    bars.set_xlabel("% of the sample")
    bars.set_title(f"Attention in {sample}")
    bars.legend()
    mixing = heat.imshow(100 * mixing_UU[: len(shown), : len(shown)], cmap="cividis", aspect="auto")
    heat.set_xticks([])
    heat.set_xlabel("from the ASV of the row to that of the column")
    heat.set_title("Between ASVs")
    heat.grid(visible=False)
    figure.colorbar(mixing, ax=heat, label="%")
    return figure


def _name(row: pd.Series) -> str:
    """Return the lowest named rank of an ASV, or the start of its id."""
    named = named_ranks(str(row.get("taxon", "")))
    name = named[-1] if named else str(row["feature-id"])
    return shortened(name, _LETTERS)
