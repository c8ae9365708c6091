"""`aam tune`: settings that are faster and train the same network."""

from __future__ import annotations

from aam.commands.bench import rate_bars
from aam.console import info
from aam.contract.files import write_json, write_text
from aam.contract.options.commands.measure import TunePretrain, TuneTrain, TuneWorkload
from aam.performance.measurement.results import (
    RATE_NOTE,
    rate_cells,
    settings_file,
    trial_cells,
    tuned_json,
)
from aam.performance.measurement.settings import MYTHS
from aam.performance.measurement.setup import SetUp, set_up
from aam.performance.measurement.tune import Tuned, tune
from aam.report.speed_page import write_page
from aam.report.terminal import Table, print_table
from aam.training.runtime import tuned_for


def run(options: TunePretrain | TuneTrain | TuneWorkload) -> None:
    """Search, print the decisions, and write settings.yaml, tune.json and a page.

    Raises:
        AamError: see `set_up`.
        DataError: the workload fails as it is given.
    """
    with set_up(options) as given:
        tuned = tune(
            given.bench,
            options.measure.parity_steps,
            given.stages,
            given.defaults,
            given.no_dropout,
            given.device,
        )
        if isinstance(options, TuneWorkload):
            command, mark = options.program.workload, None
        else:
            command = f"aam {given.identity['command']}"
            table, device = options.input.table, given.device
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
        bars = {name: rate_bars(measured) for name, measured in charts.items()}
        lead = _lead(tuned, given)
        write_page(given.folder / "report.html", f"Settings of {command}", lead, bars, tables)
        info(lead)
    if tuned.chosen:
        info(f"Next: add --config {settings} to `{command}`.")


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
