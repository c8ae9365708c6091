"""`aam report`: HTML report of a run folder."""

from __future__ import annotations

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.options.commands.use import Report
from aam.contract.preflight import target_folders
from aam.report.asvs import read_abundances
from aam.report.page import write_report
from aam.report.run import read_run


def run(options: Report) -> None:
    """Write the page, or one for each target; existing ones are replaced."""
    targets = target_folders(options.run_dir)
    if targets and options.output is not None:
        evidence = f"--output {options.output}, {len(targets)} targets in '{options.run_dir}'"
        remedy = "leave it out, or name the folder of one target with --run-dir"
        raise UsageError("One page for several targets", evidence, remedy)
    for folder in targets or [options.run_dir]:
        place, found = options.output or folder / "report.html", read_run(folder)
        write_report(
            found,
            place,
            options.metadata,
            options.color_by,
            options.categories,
            options.unit,
            read_abundances(found),
        )
        info(f"Report: {place}")
