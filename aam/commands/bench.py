"""`aam bench`: speed and memory of a command with one setting varied at a time."""

from __future__ import annotations

from collections.abc import Sequence

from aam.console import info
from aam.contract.files import write_json
from aam.contract.options.commands.measure import BenchPretrain, BenchTrain, BenchWorkload
from aam.performance.measurement.bench import Measured
from aam.performance.measurement.results import RATE_NOTE, failures, measured_json, rate_cells
from aam.performance.measurement.settings import Setting
from aam.performance.measurement.setup import set_up
from aam.report.speed_page import Bar, write_page
from aam.report.terminal import Table, print_table


def run(options: BenchPretrain | BenchTrain | BenchWorkload) -> None:
    """Measure each subject against the given options; print tables, write bench.json and a page.

    Raises:
        AamError: see `set_up`.
        DataError: the workload fails as it is given.
    """
    with set_up(options) as given:
        measurements = {}
        for subject, propose in given.stages.items():
            if settings := propose(given.defaults, given.device):
                measurements[subject] = given.bench.compare(subject, Setting("as given"), settings)
        if not measurements:
            measurements["workload"] = given.bench.compare("workload", Setting("as given"), [])
        content = {
            "measured": given.identity,
            "rounds": given.bench.rounds,
            "steps": given.bench.steps,
            "warmup_steps": given.bench.warmup,
            "subjects": {
                subject: [measured_json(one) for one in measured]
                for subject, measured in measurements.items()
            },
        }
        write_json(given.folder / "bench.json", content)
        tables, charts = [], {}
        for subject, measured in measurements.items():
            heads, rows = rate_cells(measured)
            table = Table(subject, heads, rows, " ".join([RATE_NOTE, *failures(measured)]))
            tables.append(table)
            print_table(table)
            charts[subject] = rate_bars(measured)
        lead = f"{given.device.name}, PyTorch {given.device.torch}; {given.bench.rounds} rounds."
        write_page(given.folder / "report.html", "Benchmark", lead, charts, tables)
    info(f"Report: {given.folder / 'report.html'}")


def rate_bars(measured: Sequence[Measured]) -> list[Bar]:
    """Return the speed of each setting that a run measured."""
    return [
        Bar(one.setting.label, one.rates.samples, one.rates.spread)
        for one in measured
        if one.rates is not None
    ]
