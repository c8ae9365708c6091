"""Types of the report: what pictures and tables are made from, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from aam.number_format import significant
from aam.report.colours import Colour
from aam.report.models import ModelComparison
from aam.report.run import Run
from aam.report.terminal import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Section = Literal["predictions", "asvs", "learning", "embedding"]


@dataclass(frozen=True)
class Abundances:
    """Relative abundances of the leading ASVs of a run.

    Attributes:
        sample_ids: N names.
        feature_ids: A names, the most important first.
        values: float64 [N, A].
    """

    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReportInput:
    """Data of a report.

    Attributes:
        run: content of the run folder.
        colours: metadata columns of the embedded samples; empty for none.
        unit: unit of a numeric target; "" if unknown.
        models: comparison with other models; None without predictions.
        abundances: abundances of the leading ASVs; None without importance.tsv or the table.
    """

    run: Run
    colours: tuple[Colour, ...] = ()
    unit: str = ""
    models: ModelComparison | None = None
    abundances: Abundances | None = None

    @property
    def target(self) -> str:
        """Name of the target, with its unit."""
        name = self.run.target or "the target"
        return self.with_unit(name)

    def with_unit(self, title: str) -> str:
        """Add the unit of the target, if it is known, to a title."""
        return f"{title} ({self.unit})" if self.unit else title

    def measured(self, value: float, signed: bool = False) -> str:
        """Format an error in the unit of the target, ranks if it is ordinal, with three digits."""
        scored = self.run.scored
        unit = "ranks" if scored is not None and scored.type == "ordinal" else self.unit
        return f"{significant(value, signed)} {unit}".rstrip()


@dataclass(frozen=True)
class Drawing:
    """A figure for the page.

    Attributes:
        figure: figure of matplotlib, in the style of `figures.canvas.STYLE`.
        caption: shown below it.
        description: text alternative for screen readers.
        names: gid of a scatter plot in the figure -> a line for each point, shown under the
            pointer.
        styles: gid of a scatter plot -> CSS of each point, which replaces its colour.
    """

    figure: Figure
    caption: str
    description: str
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    styles: Mapping[str, Sequence[str]] = field(default_factory=dict)


Draw = Callable[[ReportInput], Drawing | None]
"""Draws one picture; None where the run folder lacks the data."""


Tabulate = Callable[[ReportInput], Table | None]
"""Makes one table; None where the run folder lacks the data."""
