"""`aam report`: HTML report of a run folder."""

from __future__ import annotations

from aam.console import say
from aam.contract.files import atomic_write
from aam.contract.options.commands.use import Report
from aam.report.base import ReportInput
from aam.report.colours import choose_colours
from aam.report.models import compare_models
from aam.report.page import page
from aam.report.run import read_run


def run(options: Report) -> None:
    """Write the page; an existing one is replaced, since it can be made again.

    Raises:
        MissingInput: not a run folder, or no such metadata file.
        DataError: a file of the run is damaged, or the column does not exist.
        UsageError: --color-by without metadata.
        CannotCreate: the page cannot be written.
    """
    found = read_run(options.run_dir)
    colours = choose_colours(found, options.metadata, options.color_by, options.categories)
    place = options.output or options.run_dir / "report.html"
    text = page(ReportInput(found, colours, options.unit, compare_models(found)), place)
    with atomic_write(place) as temporary:
        temporary.write_text(text, encoding="utf-8")
    say(f"Report: {place} ({len(text.encode()) / 1024:.0f} KiB)")
