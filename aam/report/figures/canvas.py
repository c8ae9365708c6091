"""Style of all figures, and their conversion to SVG elements of a page.

Figures use plain colours, with which they can be saved as files. In a page those become CSS
variables, which follow its light or dark scheme.
"""

from __future__ import annotations

import base64
import html
import io
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2a37"
# Okabe and Ito (2008): distinct for every common colour vision. Black and yellow are left out: one
# is invisible on a dark page, the other on a light one.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MOST_VECTORS = 2000  # points drawn as vectors; more are drawn as pixels

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
    # Ids of an SVG are random without it: the same figure is the same bytes.
    "svg.hashsalt": "aam",
}


# Where the home folder is read-only, matplotlib warns that its cache is a temporary one.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

NOTHING: Mapping[str, Sequence[str]] = {}

P = ParamSpec("P")
T = TypeVar("T")


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a drawing function: it draws in `STYLE`, whatever the user's matplotlibrc sets."""

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
    shown = name if len(name) <= letters else f"{name[: letters - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure, sized in inches, with one pair of axes; for `styled` functions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


@styled
def inline_svg(
    figure: Figure,
    name: str,
    description: str,
    names: Mapping[str, Sequence[str]] = NOTHING,
    styles: Mapping[str, Sequence[str]] = NOTHING,
) -> str:
    """Return the figure as an `<svg>` element for a page.

    Args:
        figure: its colours of `INK` and `SERIES` become those of the page.
        name: unique in the page; prefix of every id in the SVG.
        description: text alternative for screen readers.
        names: gid of a scatter plot -> a line for each point, shown under the pointer.
        styles: gid of a scatter plot -> CSS of each point instead of its own.
    """
    drawn = plain_svg(figure, "none")
    drawn = drawn[drawn.index("<svg") :]
    # Ids are unique in a page: a clip path would otherwise be that of the first picture.
    drawn = re.sub(r'(?<=[ \n])id="', f'id="{name}-', drawn)
    drawn = re.sub(r'href="#', f'href="#{name}-', drawn)
    drawn = drawn.replace("url(#", f"url(#{name}-")
    for gid in {**names, **styles}:
        drawn = _mark_points(drawn, f"{name}-{gid}", names.get(gid, ()), styles.get(gid, ()))
    # The page's own font; the picture was laid out for a wider one.
    drawn = re.sub(r"font: ((?:bold |italic )*)([\d.]+)px [^;\"]*", _page_font, drawn)
    drawn = re.sub(INK, "currentColor", drawn, flags=re.IGNORECASE)
    for number, colour in enumerate(SERIES):
        drawn = re.sub(colour, f"var(--series-{number})", drawn, flags=re.IGNORECASE)
    label = html.escape(description, quote=True)
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    return drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


@styled
def plain_svg(figure: Figure, background: str = "white") -> str:
    """Return the figure as an SVG file, with the colours it was drawn with."""
    stream = io.StringIO()
    # A date or the version of matplotlib would change the bytes of the same figure.
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with warnings.catch_warnings():
        # The browser has fonts for what the font of the layout lacks, such as Chinese.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(stream, format="svg", facecolor=background, metadata=nothing, dpi=160)
    return re.sub(r"<metadata>.*?</metadata>", "", stream.getvalue(), flags=re.DOTALL)


def data_link(text: str, media_type: str) -> str:
    """Return a data URL with a text, for a link that downloads it.

    >>> data_link("a", "text/plain")
    'data:text/plain;charset=utf-8;base64,YQ=='
    """
    return f"data:{media_type};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def _mark_points(drawn: str, gid: str, names: Sequence[str], styles: Sequence[str]) -> str:
    """Give the points of a scatter plot names and styles; a plot drawn as pixels has no points."""
    head, attribute, tail = drawn.partition(f'id="{gid}"')
    number = max(len(names), len(styles))
    points = list(re.finditer(r"<use [^>]*/>", tail))[:number] if attribute else []
    if len(points) < number:
        return drawn
    parts, end = [head, attribute], 0
    for k, point in enumerate(points):
        element = point[0][:-2]
        if styles:
            element = re.sub(r' style="[^"]*"', "", element) + f' style="{styles[k]}"'
        # matplotlib escapes its own texts; these names are added after it.
        title = f"<title>{html.escape(names[k])}</title>" if names else ""
        parts += [tail[end : point.start()], f"{element.rstrip()}>{title}</use>"]
        end = point.end()
    return "".join([*parts, tail[end:]])


def _page_font(match: re.Match[str]) -> str:
    weight = "bold" if "bold" in match[1] else "normal"
    return f"font-family: inherit; font-weight: {weight}; font-size: {match[2]}px"
