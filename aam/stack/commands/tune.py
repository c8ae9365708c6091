"""`aam tune`: faster settings of a command, measured."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from typing import Any

from aam.console import info, warn
from aam.contract.errors import CannotCreate, UsageError
from aam.contract.files import refuse_existing, write_json, write_text
from aam.contract.options import values_of
from aam.contract.options.commands.measure import Tune
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.version import __version__
from aam.environment import read_environment
from aam.memory import shown_size
from aam.network.training.runtime import tuned_for
from aam.number_format import significant
from aam.report.terminal import Table, print_table
from aam.stack.tune import (
    SUBJECTS,
    Trial,
    device_facts,
    program_subjects,
    tune,
)
from aam.stack.workload import aam_workload, program_workload

MYTHS: dict[str, dict[str, str]] = {
    "gfx906": {
        "MIOPEN_FIND_ENFORCE=1": "1 is NONE, the default (3 is SEARCH), and it is about "
        "convolutions, which a transformer does not have (ROCm/MIOpen, docs/conceptual/perfdb.rst)",
        "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True": "warns and does nothing below ROCm 7.0 "
        "with PyTorch 2.12",
        "HSA_ENABLE_SDMA=0 for fp16": "moves copies from the DMA engines to the compute units, a "
        "cure for hanging copies; it has nothing to do with fp16",
    },
}
"""Architecture -> settings that are recommended elsewhere and not tried, and what they do.

gfx906 is the MI50."""


def run_tune(options: Tune, measured: Pretrain | Train | tuple[str, ...]) -> None:
    """Search, print what was measured, and write settings.yaml and tune.json."""
    ranks = read_environment(os.environ)
    if ranks.world_size > 1:
        raise UsageError(
            "A measurement is one process, which starts the others",
            f"{ranks.world_size} processes of {ranks.launcher}",
            "start it once, and give --processes for the ranks of the workload",
        )
    if options.warmup_steps >= options.steps:
        raise UsageError(
            "No step is left to measure",
            f"--steps {options.steps} --warmup-steps {options.warmup_steps}",
            "give more --steps",
        )
    if isinstance(measured, tuple):
        command, device_name = shlex.join(measured), "auto"
        first, subjects = program_subjects(options.values, options.half)
        workload = program_workload(measured, first)
        defaults: dict[str, Any] = {}
    else:
        if options.values:
            remedy = "give -- and a program, or --subjects"
            raise UsageError("--values are those of a program", " ".join(options.values), remedy)
        command = f"aam {'train' if isinstance(measured, Train) else 'pretrain'}"
        workload = aam_workload(measured, "tune")
        defaults = values_of(measured)
        subjects = {
            name: subject
            for name, subject in SUBJECTS.items()
            if name in (options.subjects or SUBJECTS)
        }
        device_name = measured.device.device
    result = options.output_dir / "tune.json"
    refuse_existing(result, options.overwrite)
    try:
        options.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        evidence = f"'{options.output_dir}', {error.strerror}"
        raise CannotCreate("The folder cannot be written to", evidence, "choose another") from error
    device = device_facts(device_name)
    if device.busy:
        warn(f"{device.busy}; the measured times are not those of a device of your own.")
    search, default, final = tune(workload, options, subjects, defaults, device)

    faster = f"{final.gain:.2f} times as fast as the default" if search.chosen else ""
    notes = [f"Settings of `{command}`, {date.today()}."]
    notes += [f"Together {faster}."] if faster else [f"{_NOTHING}."]
    # settings.yaml, which --config reads: each value below the evidence for it.
    lines = list(_comment(" ".join(notes)))
    if search.chosen and not isinstance(measured, tuple):
        mark = tuned_for(measured.input.table, device.torch, device.name)
        lines += [*_comment("Refused for another study, device or version:")]
        lines += [f"tuned_for: {json.dumps(mark)}"]
    for trial in (trial for trial in search.trials if trial.decision == "kept"):
        reason = f"{trial.reason}; " if trial.reason else ""
        lines += ["", *_comment(f"{trial.subject}: {reason}{'; '.join(trial.evidence)}.")]
        for name, value in trial.values.items():
            lines += [f"{name.removeprefix('--').replace('-', '_')}: {json.dumps(value)}"]
    write_text(options.output_dir / "settings.yaml", "\n".join(lines) + "\n")
    identity = {"command": command, "aam": __version__, "torch": device.torch}
    content = {
        "measured": {**identity, "device": device.name},
        "trials": [asdict(trial) for trial in search.trials],
        "default": asdict(default),
        "chosen": asdict(final),
    }
    # Last: the file whose existence refuses a second search is there once all is measured.
    write_json(result, content)

    for subject in subjects:
        if trials := [trial for trial in search.trials if trial.subject == subject]:
            print_table(_table(subject, trials))
    if search.chosen:
        print_table(_table("result", [default, final]))
    elif not search.trials:
        print_table(_table("result", [default]))
    if myths := MYTHS.get(device.arch):
        title = "Recommended elsewhere, and not set"
        print_table(Table(title, ["setting", "fact"], list(myths.items())))
    names = ", ".join(setting.label for setting in search.chosen.values())
    sentence = f"{names}: {faster}" if names else _NOTHING
    info(f"{sentence} (on {device.name} with PyTorch {device.torch}).")
    if search.chosen:
        info(f"Next: add --config {options.output_dir / 'settings.yaml'} to `{command}`.")


_NOTHING = "No setting that was tried is faster and trains the same network"
_NOTE = (
    "Medians over blocks of steps; ±: half the interquartile range; CPU ms: CPU time per sample; "
    "wait: share of the time without a batch; gain: times as fast as the first line."
)


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, 96))


def _table(subject: str, trials: list[Trial]) -> Table:
    """Return speed, memory and decision of settings; GPU memory where one was used."""
    gpu = any(trial.rates is not None and trial.rates.reserved for trial in trials)
    decided = any(trial.decision for trial in trials)
    heads = ["setting", "samples/s", "CPU ms", "wait", "reserved" if gpu else "RSS", "gain"]
    rows = []
    for trial in trials:
        label = trial.setting
        # The title has the subject.
        short = label.partition(" ")[2] if label.startswith("--") and " " in label else label
        cells = ["-"] * (len(heads) - 1)
        if (measured := trial.rates) is not None:
            # A single block of steps has no spread.
            spread = f" ± {significant(measured.spread)}" if measured.spread else ""
            cells = [
                f"{significant(measured.samples)}{spread}",
                significant(1e3 * measured.cpu_seconds),
                f"{measured.wait:.0%}",
                shown_size(measured.reserved if gpu else measured.rss),
                f"{trial.gain:.2f}",
            ]
        rows.append([short, *cells, *([trial.decision or ""] if decided else [])])
    failures = [f"{trial.setting}: {trial.failure}." for trial in trials if trial.failure]
    heads += ["decision"] if decided else []
    return Table(subject, heads, rows, " ".join([_NOTE, *failures]))
