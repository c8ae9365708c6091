"""Figures of the report as files (PDF, PNG, SVG or TIFF), each with its numbers as TSV."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from aam.contract.errors import CannotCreate
from aam.contract.files import atomic_write
from aam.contract.options.commands.use import FigureFormat, FigureWidth
from aam.report.figures import POINTS, STYLE, Drawing
from aam.report.run import ReportInput
from aam.report.sections import PICTURES

INCHES: dict[FigureWidth, float] = {"one-column": 3.35, "two-column": 7.0}  # 85 and 178 mm
DPI = 300
_TEXT = 0.75  # of the sizes on the page: 10 pt become 7.5

# TrueType in a PDF, and outlines in an SVG, need no font of the reader.
_EMBEDDED: Any = {**STYLE, "pdf.fonttype": 42, "svg.fonttype": "path"}
# Without a date the same figure is the same bytes.
_SAVED: dict[str, Any] = {
    "pdf": {"metadata": {"CreationDate": None}}, "svg": {"metadata": {"Date": None}}, "png": {},
    "tiff": {"pil_kwargs": {"compression": "tiff_lzw"}},
}  # fmt: skip


def write_figures(
    report: ReportInput, folder: Path, form: FigureFormat, width: FigureWidth
) -> list[Path]:
    """Write each figure for which the run has data, with its name in the page, and its numbers."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        evidence, remedy = f"'{error.filename}', {error.strerror}", "choose another folder"
        raise CannotCreate("The folder of --figures cannot be made", evidence, remedy) from error
    paths = []
    for name, (_, draw) in PICTURES.items():
        if (drawing := draw(report)) is not None:
            paths.append(folder / f"{name}.{form}")
            _save(drawing, paths[-1], form, INCHES[width])
            with atomic_write(folder / f"{name}.tsv") as temporary:
                table = figure_numbers(drawing)
                table.to_csv(temporary, sep="\t", index=drawing.numbers is not None)
    return paths


def _save(drawing: Drawing, path: Path, form: FigureFormat, inches: float) -> None:
    figure = drawing.figure
    with rc_context(_EMBEDDED), warnings.catch_warnings(), atomic_write(path) as temporary:
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        if drawing.legend:
            handles = [Patch(facecolor=colour, label=text) for colour, text in drawing.legend]
            figure.legend(handles=handles, loc="outside lower center", ncols=3)
        _resize(figure, inches)
        figure.savefig(temporary, format=form, dpi=DPI, facecolor="white", **_SAVED[form])


def _resize(figure: Figure, inches: float) -> None:
    """Give a figure its width in print; text, lines and points take the sizes of a journal."""
    width, height = figure.get_size_inches()
    # A figure of few rows does not become taller than the page shows it.
    figure.set_size_inches(inches, height * min(1.0, max(inches / width, _TEXT)))
    for artist in figure.findobj():
        if isinstance(artist, Text):
            artist.set_fontsize(float(artist.get_fontsize()) * _TEXT)
        elif isinstance(artist, Line2D):
            artist.set_linewidth(artist.get_linewidth() * _TEXT)
            artist.set_markersize(artist.get_markersize() * _TEXT)
        elif isinstance(artist, PathCollection):
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


def _drawn(axes: Axes, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield series, x, y and name of each point of lines, point clouds, segments and bars."""
    x_names, y_names = _tick_names(axes.xaxis), _tick_names(axes.yaxis)
    points: list[tuple[Any, Any]] = []  # artist, its places [n, 2]
    # Lines across the axes, as of chance, are no data.
    for line in (line for line in axes.lines if line.get_transform() == axes.transData):
        points.append((line, line.get_xydata()))
    for cloud in axes.collections:
        if isinstance(cloud, LineCollection):
            points.append((cloud, np.vstack([np.empty((0, 2)), *cloud.get_segments()])))
        else:
            points.append((cloud, np.ma.getdata(cloud.get_offsets())))
    for bars in (bars for bars in axes.containers if isinstance(bars, BarContainer)):
        points.append((bars, [(b.get_width(), b.get_y() + b.get_height() / 2) for b in bars]))
    for artist, places in points:
        label = str(artist.get_label())
        series = "" if label.startswith("_") else label.strip()
        point_names = names if getattr(artist, "get_gid", str)() == POINTS else ()
        for row, (x, y) in enumerate(np.asarray(places, dtype=float).tolist()):
            name = point_names[row].partition("\n")[0] if row < len(point_names) else ""
            yield series, x_names.get(x, x), y_names.get(y, y), name


def _tick_names(axis: Axis) -> dict[float, str]:
    """Return the names of positions on an axis that has names instead of numbers."""
    has_names = isinstance(axis.get_major_formatter(), FuncFormatter)  # of `set_ticks` with labels
    if not has_names or axis.get_scale() != "linear":
        return {}
    texts = [label.get_text().strip() for label in axis.get_ticklabels()]
    return dict(zip(map(float, axis.get_ticklocs()), texts, strict=True))
