"""`aam compare`: runs side by side, in the terminal and as an HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.options.commands.use import Compare
from aam.report.comparison import comparison
from aam.report.figures import Picture
from aam.report.page import render, require_page, write_page
from aam.report.run import Run, read_run
from aam.report.terminal import Table, print_table


def run(options: Compare) -> None:
    """Print the tables, and write the page if --output is given; an existing one is replaced."""
    if len(options.run_dirs) < 2:
        raise UsageError("One run cannot be compared", str(*options.run_dirs), "name two or more")
    tables = compare_runs([read_run(folder) for folder in options.run_dirs], options.output)
    for table in tables:
        print_table(table)
    if options.output is not None:
        info(f"Comparison: {options.output}")


def compare_runs(runs: Sequence[Run], output: Path | None) -> Sequence[Table]:
    """Return the tables that compare runs, and write the page of an `output`."""
    if output is not None:
        require_page(output)
    tables, drawings = comparison(runs)
    if output is not None:
        place = output.resolve().parent
        links = [
            (quote(os.path.relpath(one.folder.resolve() / "report.html", place)), str(one.folder))
            for one in runs
            if (one.folder / "report.html").is_file()
        ]
        text = render(
            "compare.html.j2",
            lead=f"{len(runs)} runs that predict {runs[0].target}.",
            tables=tables,
            pictures=[Picture.of(name, drawing) for name, drawing in drawings.items()],
            links=links,
        )
        write_page(output, text)
    return tables
