"""Set-up of a measurement: the workload, its settings, the device and the journal, from options."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam import __version__
from aam.console import warn
from aam.contract.errors import UsageError
from aam.contract.options import specs
from aam.contract.options.commands import wrapped_options
from aam.contract.options.commands.measure import Tune
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.run_record import input_files, value_of
from aam.distributed.environment import read_environment
from aam.performance.measurement.bench import Bench
from aam.performance.measurement.device import DeviceFacts, device_facts
from aam.performance.measurement.journal import open_runs
from aam.performance.measurement.parity import Parity
from aam.performance.measurement.settings import SUBJECTS, Propose, Setting, Values
from aam.performance.measurement.workload import AamCommand, Program, Workload
from aam.training import run_folder

TunedCommand = Pretrain | Train | tuple[str, ...]
"""Options of an `aam` command, or the command line of another program."""


@dataclass(frozen=True)
class SetUp:
    """A measurement.

    Attributes:
        bench: measurement of settings, with the runs of the journal.
        stages: subject -> its settings.
        defaults: values of all options of the workload.
        no_dropout: values that switch dropout off.
        device: facts about the device of the workload.
        identity: description of the measurement, as JSON.
        folder: folder of the measurement.
    """

    bench: Bench
    stages: Mapping[str, Propose]
    defaults: Values
    no_dropout: Values
    device: DeviceFacts
    identity: Mapping[str, Any]
    folder: Path


@contextmanager
def set_up(measure: Tune, measured: TunedCommand) -> Iterator[SetUp]:
    """Yield the measurement that options describe; its folder is locked meanwhile.

    Args:
        measure: options of the measurement.
        measured: options of the `aam` command, or the command line of another program.

    Raises:
        UsageError: no step is measured, or this is one of several ranks.
        Unavailable: no GPU where one is requested.
        CannotCreate, DataError: see `open_runs` and `run_folder.locked`.
    """
    ranks = read_environment(os.environ)
    if ranks.world_size > 1:
        raise UsageError(
            "A measurement is one process, which starts the others",
            f"{ranks.world_size} processes of {ranks.launcher}",
            "start it once, and give --processes for the ranks of the workload",
        )
    if measure.warmup_steps >= measure.steps:
        raise UsageError(
            "No step is left to measure",
            f"--steps {measure.steps} --warmup-steps {measure.warmup_steps}",
            "give more --steps",
        )
    workload: Workload
    stages: Mapping[str, Propose]
    defaults: dict[str, Any]
    no_dropout: dict[str, Any] = {}
    folder = measure.output_dir
    if isinstance(measured, tuple):
        workload, stages = program_of(measured, measure)
        defaults, name = {}, "auto"
        parts = {"command": measured, "values": measure.values, "half": measure.half}
        identity: dict[str, Any] = {"program": {k: list(part) for k, part in parts.items()}}
        # Made once here: a command line with wrong names is refused before anything runs.
        workload.argv({}, folder)
    else:
        if measure.values:
            remedy = "give -- and a program, or --subjects"
            raise UsageError("--values are those of a program", " ".join(measure.values), remedy)
        workload = command_of(measured, "tune")
        defaults = {spec.flag: value_of(measured, spec.field) for spec in specs(type(measured))}
        dropouts = [flag for flag in ("--dropout", "--profile-dropout") if defaults.get(flag)]
        no_dropout = dict.fromkeys(dropouts, 0.0)
        chosen = measure.subjects or SUBJECTS
        stages = {name: propose for name, propose in SUBJECTS.items() if name in chosen}
        identity = {
            "command": workload.command,
            "options": {flag: str(value) for flag, value in workload.given.items()},
            "inputs": {flag: one["sha256"] for flag, one in input_files(measured).items()},
        }
        name = measured.device.device
    device = device_facts(name)
    if device.busy:
        warn(f"{device.busy}; the measured times are not those of a device of your own.")
    identity |= {"aam": __version__, "torch": device.torch, "device": device.name}
    with run_folder.locked(folder), interrupted_by_sigterm():
        runs = open_runs(workload, folder, measure.step_timeout, identity, measure.overwrite)
        bench = Bench(runs, measure.rounds, measure.steps, measure.warmup_steps, measure.compare_by)
        yield SetUp(bench, stages, defaults, no_dropout, device, identity, folder)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which ends a job, end the program in progress too, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command_of(measured: Pretrain | Train, wrapper: str) -> AamCommand:
    """Return the command that a wrapper measures, with the values that are not the defaults.

    Args:
        measured: options of `aam pretrain` or `aam train`.
        wrapper: name of the measuring command, such as "tune", whose options it takes.
    """
    command = "train" if isinstance(measured, Train) else "pretrain"
    values = {
        spec.flag: value
        for spec in wrapped_options(wrapper, command)
        if (value := value_of(measured, spec.field)) != spec.default
    }
    if command == "train":
        # Other members have no training steps, and would be fitted in every run for nothing.
        values["--members"] = ("transformer",)
    return AamCommand(command, type(measured), values)


def program_of(words: tuple[str, ...], options: Tune) -> tuple[Program, dict[str, Propose]]:
    """Return a program and the settings of each of its values.

    Raises:
        UsageError: values that are not NAME=VALUE,VALUE, or an unknown name after --half.
    """
    values: dict[str, list[str]] = {}
    for text in options.values:
        name, equals, listed = text.partition("=")
        values[name] = listed.split(",")
        if not (equals and name.isidentifier() and all(values[name])):
            raise UsageError(
                "Not the values of a name", f"--values {text}", "write NAME=VALUE,VALUE"
            )
    if unknown := [name for name in options.half if name not in values]:
        raise UsageError("A name without values", f"--half {' '.join(unknown)}", "see --values")

    def proposer(name: str) -> Propose:
        parity = Parity.HALF if name in options.half else Parity.ROUNDING

        def propose(now: Values, device: DeviceFacts) -> list[Setting]:
            others = [value for value in values[name][1:] if value != now.get(name)]
            return [Setting(f"{name}={value}", {name: value}, parity) for value in others]

        return propose

    program = Program(words, {name: listed[0] for name, listed in values.items()})
    return program, {name: proposer(name) for name in values}
