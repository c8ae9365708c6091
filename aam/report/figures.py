"""Figures of the report in one style, and their SVG for the page and for files.

On a page, plain colours become CSS variables of its light or dark scheme. A file keeps the plain
colours, for image editors, and adds a style sheet for a dark scheme, for browsers.
"""

from __future__ import annotations

import base64
import html
import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np

from aam.arrays import F64
from aam.contract.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK = "#1f2a37"
# Okabe and Ito (2008): distinct for common colour vision. Black is invisible on a dark page, yellow
# on a light page.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DARK = ("#4aa3df", "#ff8a3d", "#2fc79a", "#e09abf", "#f0b429", "#8fd0f5")
DARK_INK, DARK_CARD = "#e4e8ed", "#191f26"  # as in style.css
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MAX_VECTORS = 2000  # points drawn as vectors; more are drawn as pixels
MAX_CATEGORIES = 9  # categories of a column with a colour and a marker each
MAX_CELLS = 300  # cells of a heat map drawn as vectors
POINTS = "points"  # gid of a scatter plot whose points have names

STYLE: Any = {
    "font.size": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.dpi": 100,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may contain dollar signs
    # Fixed ids: the same figure is the same bytes.
    "svg.hashsalt": "aam",
}


# matplotlib warns about a temporary cache if the home folder is read-only.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

_AXES: ContextVar[Axes | None] = ContextVar("axes", default=None)

P = ParamSpec("P")
T = TypeVar("T")


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a drawing function: it draws in `STYLE`, not in the user's matplotlibrc."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def shortened(name: str, letters: int) -> str:
    """Cut a name to some letters.

    A legend of matplotlib hides a name that begins with an underscore, so it gets a space.

    >>> shortened("Lactobacillus", 6), shortened("_a", 6)
    ('Lacto…', ' _a')
    """
    short = name if len(name) <= letters else f"{name[: letters - 1]}…"
    return f" {short}" if short.startswith("_") else short


@contextmanager
def drawing_on(axes: Axes | None) -> Iterator[None]:
    """Let `blank` return the user's axes; None for a new figure."""
    from matplotlib.axes import Axes

    if not isinstance(axes, Axes | None):
        remedy = "give axes of matplotlib, such as plt.gca()"
        raise UsageError("Invalid ax", type(axes).__name__, remedy)
    token = _AXES.set(axes)
    try:
        yield
    finally:
        _AXES.reset(token)


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure, sized in inches, with axes; within `drawing_on` the user's axes."""
    from matplotlib.figure import Figure

    if (axes := _AXES.get()) is not None:
        return cast("Figure", axes.figure), axes
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def legend_below(axes: Axes, **look: Any) -> None:
    """Draw a legend below the axes."""
    figure = cast("Figure", axes.figure)
    if _AXES.get() is None:
        figure.legend(loc="outside lower center", **look)
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), **look)


def heat_map(axes: Axes, shares: F64, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw a heat map of shares, 0 to 1, with names of rows and columns."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    alphas = 0.04 + 0.96 * shares
    if shares.size > MAX_CELLS:
        blue = np.full((*shares.shape, 3), to_rgb(SERIES[0]))
        axes.imshow(np.dstack([blue, alphas]), interpolation="none", aspect="auto")
    else:
        for (row, column), alpha in np.ndenumerate(alphas):
            corner = (column - 0.48, row - 0.48)
            look: Any = {"facecolor": SERIES[0], "alpha": float(alpha), "lw": 0}
            axes.add_patch(Rectangle(corner, 0.96, 0.96, **look))
    turned = len(columns) > 4 or max(map(len, columns)) > 10
    look = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    every = 1 + (len(columns) - 1) // 15
    axes.set_xticks(range(0, len(columns), every), columns[::every], **look)
    every = 1 + (len(rows) - 1) // 20
    axes.set_yticks(range(0, len(rows), every), rows[::every])
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


@dataclass(frozen=True)
class Drawing:
    """Figure for the page, with a caption and a text alternative for screen readers."""

    figure: Figure
    caption: str
    description: str
    names: Sequence[str] = ()  # of the points with the gid `POINTS`, shown under the pointer
    styles: Sequence[str] = ()  # CSS that replaces the colours of these points
    legend: Sequence[tuple[str, str]] = ()  # colours and texts; a page has its own legend
    numbers: pd.DataFrame | None = None  # numbers of the file; None: taken from the artists


@dataclass(frozen=True)
class Picture:
    """Picture on the page: an SVG element, and the same SVG as a file (a data URL)."""

    name: str
    svg: str
    caption: str
    link: str

    @classmethod
    @styled
    def of(cls, name: str, drawing: Drawing) -> Picture:
        """Draw a figure for the page and the file."""
        stream = io.StringIO()
        # Dates and versions would change the bytes of the same figure.
        undated = {"Date": None, "Creator": None, "Format": None, "Type": None}
        with warnings.catch_warnings():
            # Browsers have fonts for missing glyphs, such as Chinese.
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
            drawing.figure.savefig(
                stream, format="svg", facecolor="none", metadata=undated, dpi=160
            )
        file = re.sub(r"<metadata>.*?</metadata>", "", stream.getvalue(), flags=re.DOTALL)
        head, defs, tail = file.partition("<defs>")
        dark = "".join(
            f'[style*="{property_name}: {plain}" i]{{{property_name}: {colour} !important}}'
            for plain, colour in zip((INK, *SERIES), (DARK_INK, *DARK), strict=True)
            for property_name in ("fill", "stroke")
        )
        dark = f"@media (prefers-color-scheme: dark){{#page{{fill: {DARK_CARD}}}{dark}}}"
        white = '<rect id="page" width="100%" height="100%" fill="white"/>'
        link = data_link(f"{head}<style>{dark}</style>{white}{defs}{tail}", "image/svg+xml")

        svg = file[file.index("<svg") :]
        # Unique ids in the page: a clip path would otherwise belong to the first picture.
        svg = re.sub(r'(?<=[ \n])id="', f'id="{name}-', svg)
        svg = re.sub(r'href="#', f'href="#{name}-', svg)
        svg = svg.replace("url(#", f"url(#{name}-")
        # The font of the page; the layout was made for a wider font.
        for weight, start in (("normal", "font: "), ("bold", "font: bold ")):
            page_font = rf"font-family: inherit; font-weight: {weight}; font-size: \1px"
            svg = re.sub(rf'{start}([\d.]+)px [^;"]*', page_font, svg)
        svg = re.sub(INK, "currentColor", svg, flags=re.IGNORECASE)
        for number, colour in enumerate(SERIES):
            svg = re.sub(colour, f"var(--series-{number})", svg, flags=re.IGNORECASE)
        for size in ("width", "height"):
            svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
        # Names and styles of points, unless they were drawn as pixels.
        head_of_points, gid, tail_of_points = svg.partition(f'id="{name}-{POINTS}"')
        points = list(re.finditer(r"<use [^>]*/>", tail_of_points))[: len(drawing.names)]
        if gid and len(points) == len(drawing.names):
            pieces, end = [head_of_points, gid], 0
            for k, point in enumerate(points):
                element = point[0][:-2]
                if drawing.styles:
                    element = re.sub(r' style="[^"]*"', "", element)
                    element += f' style="{drawing.styles[k]}"'
                # matplotlib escapes only its own texts.
                title = f"<title>{html.escape(drawing.names[k])}</title>"
                pieces += [tail_of_points[end : point.start()], f"{element.rstrip()}>{title}</use>"]
                end = point.end()
            svg = "".join([*pieces, tail_of_points[end:]])
        label = html.escape(drawing.description, quote=True)
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
        return cls(name, svg, drawing.caption, link)


def data_link(text: str, media_type: str) -> str:
    """Return a data URL with a text, for a link that downloads it.

    >>> data_link("a", "text/plain")
    'data:text/plain;charset=utf-8;base64,YQ=='
    """
    return f"data:{media_type};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


UNKNOWN, OTHERS = "var(--unknown)", "var(--others)"
STEPS = 10  # colours of the scale of numbers, in `style.css`


@cache
def plain_colours() -> dict[str, str]:
    """Return the plain colours of the CSS variables of a light page."""
    style = (files("aam.report") / "style.css").read_text(encoding="utf-8")
    colours = re.findall(r"--([a-z]+(?:-\d)?): (#[0-9a-f]{6})", style.partition("@media")[0])
    colours += [(f"series-{number}", colour) for number, colour in enumerate(SERIES)]
    return {f"var(--{name})": colour for name, colour in colours}


@dataclass(frozen=True)
class Colour:
    """Metadata column of N samples for colours, as numbers or as labels."""

    column: str
    texts: tuple[str, ...]  # as in the metadata; "" where unknown
    values: F64 | None = None  # [N], NaN where unknown
    labels: tuple[str, ...] | None = None  # categories, "" where unknown

    @property
    def legend(self) -> list[tuple[str, str]]:
        """CSS colours and texts of the legend; the ends of the scale for numbers."""
        if self.values is not None:
            ends = (np.nanmin(self.values), np.nanmax(self.values))
            return [
                (f"var(--scale-{step})", f"{end:.4g}")
                for step, end in zip((0, STEPS - 1), ends, strict=True)
            ]
        times = Counter(self.texts)
        colour_of = self._colour_of_label()
        entries = [(colour, f"{name} ({times[name]})") for name, colour in colour_of.items()]
        unlisted = len(times) - len(colour_of) - ("" in times)
        if unlisted:
            entries.append((OTHERS, f"{unlisted} others"))
        if "" in times:
            entries.append((UNKNOWN, f"no value ({times['']})"))
        return entries

    def plain(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the plain colours of the samples and of the legend."""
        of = plain_colours()
        return [of[shade] for shade in self.css()], [
            (of[shade], text) for shade, text in self.legend
        ]

    def css(self) -> list[str]:
        """Return the CSS colour of each sample."""
        if self.values is not None:
            low, high = np.nanmin(self.values), np.nanmax(self.values)
            steps = (self.values - low) / ((high - low) or 1) * STEPS
            return [
                UNKNOWN if np.isnan(step) else f"var(--scale-{min(int(step), STEPS - 1)})"
                for step in steps
            ]
        colour_of = self._colour_of_label() | {"": UNKNOWN}
        return [colour_of.get(label, OTHERS) for label in self.labels or ()]

    def _colour_of_label(self) -> dict[str, str]:
        times = Counter(label for label in self.labels or () if label)
        frequent = sorted(name for name, _ in times.most_common(len(SERIES)))
        return {name: f"var(--series-{number})" for number, name in enumerate(frequent)}


@styled
def ordination_figure(
    coords: F64, explained: Sequence[float], title: str = "", colour: Colour | None = None
) -> Figure:
    """Draw an ordination of samples [N, 2 or more], coloured by a metadata column."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    figure, axes = blank(4.8, 4.8)
    x, y = coords[:, :2].T
    as_pixels = len(coords) > MAX_VECTORS
    look: dict[str, Any] = {
        "s": 36 if len(coords) <= 300 else 7 if as_pixels else 18,
        "alpha": 0.6 if as_pixels else 0.85,
        "linewidths": 0,
        "rasterized": as_pixels,
    }
    axes.set(xlabel=f"PC1 ({explained[0]:.1%})", ylabel=f"PC2 ({explained[1]:.1%})")
    axes.set_title(title)
    if colour is None:
        axes.scatter(x, y, color=SERIES[0], **look)
        return figure
    labels = np.array(colour.labels or (), dtype=str)
    present = labels != "" if colour.values is None else np.isfinite(colour.values)
    if not present.all():
        hollow = {"facecolors": "none", "edgecolors": INK, "linewidths": 0.7, "alpha": 0.4}
        missing = f"no value ({(~present).sum()})"
        axes.scatter(x[~present], y[~present], label=missing, **look | hollow)
    if colour.values is not None:
        # Plasma without its ends, to contrast with dark and light pages.
        plasma = ListedColormap(matplotlib.colormaps["plasma"](np.linspace(0.08, 0.9, 256)))
        points = axes.scatter(x[present], y[present], c=colour.values[present], cmap=plasma, **look)
        bar = figure.colorbar(points, ax=axes, label=colour.column, shrink=0.85)
        bar.outline.set_visible(False)
        bar.ax.grid(False)
        if bar.solids is not None:
            bar.solids.set_alpha(1)
        return figure
    # Frequent categories have a colour and a marker each, others are grey.
    times = Counter(labels[present].tolist())
    chosen = sorted(name for name, _ in times.most_common(MAX_CATEGORIES))
    unlisted_N = present & ~np.isin(labels, chosen)
    if unlisted_N.any():
        unlisted = f"{len(times) - len(chosen)} others"
        axes.scatter(
            x[unlisted_N], y[unlisted_N], color="#8b95a1", marker=".", label=unlisted, **look
        )
    for number, name in enumerate(chosen):
        look["color"], look["marker"] = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
        label = f"{shortened(name, 24)} ({times[name]})"
        axes.scatter(x[labels == name], y[labels == name], label=label, **look)
    handles, names = axes.get_legend_handles_labels()
    # Pooled categories are drawn first, at the bottom, and listed last.
    first = len(handles) - len(chosen)
    figure.legend(
        handles[first:] + handles[:first],
        names[first:] + names[:first],
        title=colour.column,
        loc="outside lower center",
        ncols=2,
        alignment="left",
    )
    return figure
