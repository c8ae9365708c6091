"""`aam report`: HTML report of a run folder."""

from __future__ import annotations

from dataclasses import replace

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.files import write_text
from aam.contract.options.commands.use import Report
from aam.contract.preflight import target_folders
from aam.report.asvs import read_abundances
from aam.report.base import ReportInput
from aam.report.colours import choose_colours
from aam.report.models import compare_models
from aam.report.page import page
from aam.report.run import read_run


def run(options: Report) -> None:
    """Write the page, or one for each target; existing ones are replaced.

    Raises:
        MissingInput: not a run folder, or no such metadata file.
        DataError: a file of the run is damaged, or the column does not exist.
        UsageError: --color-by without metadata; --output for several targets.
        CannotCreate: the page cannot be written.
    """
    if not (targets := target_folders(options.run_dir)):
        return _write(options)
    if options.output is not None:
        evidence = f"--output {options.output}, {len(targets)} targets in '{options.run_dir}'"
        remedy = "leave it out, or name the folder of one target with --run-dir"
        raise UsageError("One page for several targets", evidence, remedy)
    for folder in targets:
        _write(replace(options, run_dir=folder))


def _write(options: Report) -> None:
    """Write the page of one target."""
    found = read_run(options.run_dir)
    colours = choose_colours(found, options.metadata, options.color_by, options.categories)
    place = options.output or options.run_dir / "report.html"
    given = ReportInput(found, colours, options.unit, compare_models(found), read_abundances(found))
    text = page(given, place)
    write_text(place, text)
    info(f"Report: {place} ({len(text.encode()) / 1024:.0f} KiB)")
