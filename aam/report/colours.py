"""Colours of embedded samples: metadata columns as numbers or as categories, by sample id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.contract.errors import UsageError
from aam.data.metadata import Metadata, as_numbers, read_metadata
from aam.report.figures.canvas import SERIES
from aam.report.run import Run

FEW_VALUES = 6
"""A column with no more distinct numbers than this is shown as categories."""

OFFERED = 5
"""Columns to choose from without --color-by."""

STEPS = 10
"""Colours of the scale of numbers, in `style.css`."""

UNKNOWN, OTHERS = "var(--unknown)", "var(--others)"


@dataclass(frozen=True)
class Colour:
    """Metadata column of N samples, as numbers or as labels; the other is None.

    Attributes:
        column: its name.
        texts: N values as in the metadata; "" where unknown.
        values: float64 [N], NaN where unknown.
        labels: N categories, "" where unknown.
    """

    column: str
    texts: tuple[str, ...]
    values: npt.NDArray[np.float64] | None = None
    labels: tuple[str, ...] | None = None

    @property
    def legend(self) -> list[tuple[str, str]]:
        """CSS colour and text of each entry; the ends of the scale for numbers."""
        if self.values is not None:
            ends = (np.nanmin(self.values), np.nanmax(self.values))
            return [
                (f"var(--scale-{step})", f"{end:.4g}")
                for step, end in zip((0, STEPS - 1), ends, strict=True)
            ]
        times = Counter(self.texts)
        colour_of = self._colour_of_label()
        entries = [(colour, f"{name} ({times[name]})") for name, colour in colour_of.items()]
        others = len(times) - len(colour_of) - ("" in times)
        if others:
            entries.append((OTHERS, f"{others} others"))
        if "" in times:
            entries.append((UNKNOWN, f"no value ({times['']})"))
        return entries

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


def choose_colours(
    run: Run, metadata: Path | None, columns: Sequence[str], categories: Sequence[str]
) -> tuple[Colour, ...]:
    """Return the colours of the samples of `run.described_ids`.

    Args:
        run: the run; its metadata file and target are the defaults.
        metadata: metadata file (--metadata); None for that of the run.
        columns: columns to show (--color-by); if empty, the target, the group and columns with few
            values.
        categories: columns whose numbers are names (--categories).

    Raises:
        UsageError: --color-by without metadata.
        MissingInput, DataError: see `read_metadata`.
    """
    recorded = run.facts.get("inputs", {}).get("--metadata", {}).get("path")
    path = metadata or (Path(recorded) if recorded else None)
    if not run.described_ids:
        return ()
    if path is None and columns:
        given = f"--color-by {' '.join(columns)}"
        raise UsageError("No metadata to colour by", given, "give --metadata")
    if path is None or (metadata is None and not columns and not path.exists()):
        return ()
    table = read_metadata(path)
    group = run.option("split", "group_column")
    is_category = run.option("target", "classifier") or run.option("target", "ordinal")
    named = {*categories, group} | ({run.target} if is_category else set())
    chosen = list(columns)
    if run.target is not None and run.target not in chosen:
        chosen.insert(0, run.target)
    if not columns:
        chosen += [group] * bool(group and group in table.columns)
        chosen += [name for name in _offered(table, run) if name not in chosen]
        chosen = chosen[:OFFERED]
    return tuple(
        as_colour(name, table.values(name, run.described_ids).tolist(), name in named)
        for name in chosen
    )


def _offered(metadata: Metadata, run: Run) -> list[str]:
    """List the columns with two to six values, known for most samples, the completest first."""
    offered = []
    for name in metadata.columns:
        texts = [text for text in metadata.values(name, run.described_ids).tolist() if text]
        if 2 * len(texts) > len(run.described_ids) and 2 <= len(set(texts)) <= FEW_VALUES:
            offered.append((-len(texts), name))
    return [name for _, name in sorted(offered, key=lambda pair: pair[0])]


def as_colour(column: str, texts: Sequence[str], category: bool = False) -> Colour:
    """Convert texts ("" where unknown) to numbers if all are and many differ, else to labels."""
    known = [text for text in texts if text]
    if not category and len(set(known)) > FEW_VALUES:
        values = as_numbers(texts)
        if np.isfinite(values).sum() == len(known):
            return Colour(column, tuple(texts), values=values)
    return Colour(column, tuple(texts), labels=tuple(texts))
