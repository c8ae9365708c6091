"""`aam tune`: settings that are faster and train the same network, or their speed alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from aam.console import info
from aam.contract.files import write_json, write_text
from aam.contract.options.commands.measure import Tune
from aam.performance.measurement.bench import BenchResult
from aam.performance.measurement.results import (
    RATE_NOTE,
    failures,
    measured_json,
    rate_cells,
    settings_file,
    trial_cells,
    tuned_json,
)
from aam.performance.measurement.settings import MYTHS, Setting
from aam.performance.measurement.setup import SetUp, TunedCommand, set_up
from aam.performance.measurement.tune import Tuned, tune
from aam.report.speed_page import Bar, write_page
from aam.report.terminal import Table, print_table
from aam.training.runtime import tuned_for


def run(options: Tune, measured: TunedCommand) -> None:
    """Search, print the decisions, and write settings.yaml, tune.json and a page; or measure only.

    Args:
        options: options of `aam tune`.
        measured: options of the command that is measured, or the arguments of a program.

    Raises:
        AamError: see `set_up`.
        DataError: the command or program fails with the given options.
    """
    with set_up(options, measured) as given:
        if options.measure_only:
            _measure(given)
            return
        tuned = tune(
            given.bench,
            options.parity_steps,
            given.stages,
            given.defaults,
            given.no_dropout,
            given.device,
        )
        if isinstance(measured, tuple):
            command, mark = shlex.join(measured), None
        else:
            command = f"aam {given.identity['command']}"
            table, device = measured.input.table, given.device
            mark = tuned_for(table, device.torch, device.name)
        settings = given.folder / "settings.yaml"
        write_text(settings, settings_file(tuned, command, mark))
        write_json(given.folder / "tune.json", {"measured": given.identity, **tuned_json(tuned)})
        tables = _tables(tuned, given)
        for one in tables:
            print_table(one)
        charts = {"as given and as chosen": [tuned.default, tuned.final]}
        for trial in tuned.trials:
            charts.setdefault(trial.subject, []).append(trial.measured)
        bars = {name: _rate_bars(measured) for name, measured in charts.items()}
        lead = _lead(tuned, given)
        write_page(given.folder / "report.html", f"Settings of {command}", lead, bars, tables)
        info(lead)
    if tuned.chosen:
        info(f"Next: add --config {settings} to `{command}`.")


def _measure(given: SetUp) -> None:
    """Measure each subject against the given options; print tables, write bench.json and a page."""
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
        charts[subject] = _rate_bars(measured)
    lead = f"{given.device.name}, PyTorch {given.device.torch}; {given.bench.rounds} rounds."
    write_page(given.folder / "report.html", "Benchmark", lead, charts, tables)
    info(f"Report: {given.folder / 'report.html'}")


def _rate_bars(measured: Sequence[BenchResult]) -> list[Bar]:
    """Return the speed of each setting that a run measured; the default has no values."""
    return [
        Bar(one.setting.label, one.rates.samples, one.rates.spread, not one.setting.values)
        for one in measured
        if one.rates is not None
    ]


def _lead(tuned: Tuned, given: SetUp) -> str:
    device = f"on {given.device.name} with PyTorch {given.device.torch}"
    if not tuned.chosen:
        return f"No setting that was tried is faster {device} and trains the same network."
    names = ", ".join(trial.measured.setting.label for trial in tuned.chosen.values())
    return f"{names}: {tuned.final.gain:.2f} times as fast as the default {device}."


def _tables(tuned: Tuned, given: SetUp) -> list[Table]:
    tables = [Table("Settings", *trial_cells(tuned.trials))]
    evidence = [
        [f"{trial.subject}: {trial.measured.setting.label}", "; ".join(trial.evidence)]
        for trial in tuned.trials
    ]
    if tuned.chosen:
        measured = [tuned.default, tuned.final]
        tables.append(Table("Result", *rate_cells(measured), RATE_NOTE))
    if evidence:
        tables.append(Table("Evidence", ["setting", "evidence"], evidence))
    if myths := MYTHS.get(given.device.arch):
        title = "Recommended elsewhere, and not set"
        tables.append(Table(title, ["setting", "fact"], list(myths.items())))
    return tables
