"""HTML page of a measurement: bars of speeds or shares, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aam.contract.files import write_text
from aam.number_format import significant
from aam.report.base import Drawing
from aam.report.figures.canvas import INK, SERIES, blank, styled
from aam.report.page import render
from aam.report.pictures import Picture
from aam.report.terminal import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bar:
    """Value of a setting, such as its samples per second.

    Attributes:
        label: name of the setting.
        value: length of the bar.
        spread: half the interquartile range of the value.
        default: others are compared with it; it is a line too.
    """

    label: str
    value: float
    spread: float = 0.0
    default: bool = False


@styled
def bar_figure(title: str, bars: Sequence[Bar], unit: str) -> Figure:
    """Plot values as bars, with a line at the default."""
    figure, axes = blank(4.6, 0.9 + 0.38 * len(bars))
    places = range(len(bars))
    axes.barh(
        places,
        [bar.value for bar in bars],
        xerr=[bar.spread for bar in bars],
        color=[SERIES[bar.default] for bar in bars],
        height=0.62,
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 3},
    )
    for bar in bars:
        if bar.default:
            axes.axvline(bar.value, color=INK, lw=1, ls="--", alpha=0.6)
    axes.set_yticks(list(places), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel=unit, xlim=(0, None))
    axes.set_title(title)
    return figure


def write_page(
    path: Path,
    title: str,
    lead: str,
    charts: Mapping[str, Sequence[Bar]],
    tables: Sequence[Table],
    unit: str = "samples per second",
) -> None:
    """Write the page.

    Args:
        charts: title -> bars; those without bars are left out.
        unit: unit of the bars.

    Raises:
        CannotCreate: it cannot be written.
    """
    pictures = []
    for number, (name, bars) in enumerate(charts.items()):
        if bars:
            spoken = ", ".join(f"{bar.label} {significant(bar.value)}" for bar in bars)
            description = f"{name}, {unit}: {spoken}"
            drawing = Drawing(bar_figure(name, bars, unit), "", description)
            pictures.append(Picture.of(f"speed{number}", drawing))
    text = render("speed.html.j2", title=title, lead=lead, pictures=pictures, tables=tables)
    write_text(path, text)
