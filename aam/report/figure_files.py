"""Figures of the report as files (PDF, PNG, SVG or TIFF), each with its numbers as TSV."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from aam.contract.files import atomic_write
from aam.contract.options.commands.use import FigureFormat, FigureWidth
from aam.report.figures import POINTS, STYLE, Drawing
from aam.report.run import ReportInput
from aam.report.sections import PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INCHES: dict[FigureWidth, float] = {"one-column": 3.35, "two-column": 7.0}  # 85 and 178 mm
DPI = 300
_TEXT = 0.75  # of the sizes on the page: 10 pt become 7.5

# TrueType in a PDF, and outlines in an SVG, need no font of the reader.
_EMBEDDED: Any = {**STYLE, "pdf.fonttype": 42, "svg.fonttype": "path"}
_METADATA: dict[FigureFormat, dict[str, None]] = {
    "pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}, "tiff": {}
}  # fmt: skip


def write_figures(
    given: ReportInput, folder: Path, form: FigureFormat, width: FigureWidth
) -> list[Path]:
    """Write each figure for which the run has data, with its name in the page, and its numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (_, draw) in PICTURES.items():
        if (drawing := draw(given)) is not None:
            paths.append(folder / f"{name}.{form}")
            _save(drawing, paths[-1], form, INCHES[width])
            with atomic_write(folder / f"{name}.tsv") as temporary:
                table = figure_numbers(drawing)
                table.to_csv(temporary, sep="\t", index=drawing.numbers is not None)
    return paths


def _save(drawing: Drawing, path: Path, form: FigureFormat, inches: float) -> None:
    figure = drawing.figure
    with rc_context(_EMBEDDED):
        if drawing.legend:
            handles = [Patch(facecolor=colour, label=text) for colour, text in drawing.legend]
            figure.legend(handles=handles, loc="outside lower center", ncols=3)
        _resize(figure, inches)
        packed: dict[str, Any] = {"pil_kwargs": {"compression": "tiff_lzw"}}
        with atomic_write(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
            figure.savefig(temporary, format=form, dpi=DPI, facecolor="white",
                           metadata=_METADATA[form] or None,
                           **(packed if form == "tiff" else {}))  # fmt: skip


def _resize(figure: Figure, inches: float) -> None:
    """Give a figure its width in print; text, lines and points take the sizes of a journal."""
    width, height = figure.get_size_inches()
    # A figure of few rows does not become taller than the page shows it.
    figure.set_size_inches(inches, height * min(1.0, max(inches / width, _TEXT)))
    for artist in figure.findobj():
        if isinstance(artist, Text):
            artist.set_fontsize(artist.get_fontsize() * _TEXT)
        elif isinstance(artist, Line2D):
            artist.set_linewidth(artist.get_linewidth() * _TEXT)
            artist.set_markersize(artist.get_markersize() * _TEXT)
        elif hasattr(artist, "set_sizes"):
            artist.set_sizes(np.asarray(artist.get_sizes()) * _TEXT**2)


def figure_numbers(drawing: Drawing) -> pd.DataFrame:
    """Return the numbers of a figure: its own table, or a row for each point that it draws."""
    if drawing.numbers is not None:
        return drawing.numbers
    rows = [row for axes in drawing.figure.axes for row in _drawn(axes, drawing.names)]
    axes = drawing.figure.axes[0]
    labels = [axes.get_xlabel() or "x", axes.get_ylabel() or "y"]
    table = pd.DataFrame(rows, columns=["series", *labels, "name"])
    return table.loc[:, (table != "").any()]


def _drawn(axes: Axes, names: Any) -> Iterator[tuple[Any, ...]]:
    """Yield series, x, y and name of each point of lines, point clouds, segments and bars."""
    x_names, y_names = _tick_names(axes.xaxis), _tick_names(axes.yaxis)

    def row(series: str, x: Any, y: Any, name: str = "") -> tuple[Any, ...]:
        return series, x_names.get(float(x), float(x)), y_names.get(float(y), float(y)), name

    def title(artist: Any) -> str:
        label = str(artist.get_label())
        return "" if label.startswith("_") else label.strip()

    # Lines across the axes, as of chance, are no data.
    for line in (line for line in axes.lines if line.get_transform() == axes.transData):
        yield from (row(title(line), *point) for point in line.get_xydata())
    for cloud in axes.collections:
        if isinstance(cloud, LineCollection):
            ends = (point for segment in cloud.get_segments() for point in segment)
            yield from (row(title(cloud), *point) for point in ends)
        else:
            points = np.ma.getdata(cloud.get_offsets())
            of = [name.partition("\n")[0] for name in names] if cloud.get_gid() == POINTS else []
            of += [""] * (len(points) - len(of))
            yield from (row(title(cloud), *point, of[k]) for k, point in enumerate(points))
    for bars in axes.containers:
        for bar in bars if isinstance(bars, BarContainer) else ():
            yield row(title(bars), bar.get_width(), bar.get_y() + bar.get_height() / 2)


def _tick_names(axis: Axis) -> dict[float, str]:
    """Return the names of positions on an axis that has names instead of numbers."""
    named = isinstance(axis.get_major_formatter(), FuncFormatter)  # of `set_ticks` with labels
    if not named or axis.get_scale() != "linear":
        return {}
    texts = [label.get_text().strip() for label in axis.get_ticklabels()]
    return dict(zip(map(float, axis.get_ticklocs()), texts, strict=True))
