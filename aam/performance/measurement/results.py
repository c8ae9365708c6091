"""Results of `aam tune`: JSON, cells of tables, and the settings file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from aam.memory import shown_size
from aam.number_format import significant
from aam.performance.measurement.bench import BenchResult
from aam.performance.measurement.tune import Trial, Tuned

Cells = tuple[list[str], list[list[str]]]
"""Heads and rows of a table."""


def rate_cells(measured: Sequence[BenchResult]) -> Cells:
    """Return the rates of settings as cells; columns of a GPU only where one was used."""
    gpu = any(one.rates is not None and one.rates.reserved for one in measured)
    heads = ["setting", "samples/s", "ASVs/s", "CPU ms", "wait", "gain"]
    heads += ["allocated", "reserved"] if gpu else ["RSS"]
    rows = []
    for one in measured:
        found = one.rates
        if found is None:
            rows.append([_short(one.setting.label), *["-"] * (len(heads) - 1)])
            continue
        # A single block of steps has no spread.
        spread = f" ± {significant(found.spread)}" if found.spread else ""
        memory = [found.allocated, found.reserved] if gpu else [found.rss]
        rows.append(
            [
                _short(one.setting.label),
                f"{significant(found.samples)}{spread}",
                significant(found.asvs),
                significant(1e3 * found.cpu_seconds),
                f"{found.wait:.0%}",
                f"{one.gain:.2f}",
                *map(shown_size, memory),
            ]
        )
    return heads, rows


RATE_NOTE = (
    "Medians over blocks of steps; ±: half the interquartile range; CPU ms: CPU time per sample; "
    "wait: share of the time without a batch; gain: times as fast as the first line."
)


def _short(label: str) -> str:
    """Return the value in `--option value`; the table's title has the subject."""
    return label.partition(" ")[2] if label.startswith("--") and " " in label else label


def failures(measured: Sequence[BenchResult]) -> list[str]:
    """List a sentence for each setting with a run that failed."""
    return [f"{one.setting.label}: {one.failure}." for one in measured if one.failure]


def trial_cells(trials: Sequence[Trial]) -> Cells:
    """Return the decision about each setting as cells."""
    rows = [
        [
            trial.subject,
            trial.measured.setting.label,
            "-" if trial.measured.rates is None else f"{trial.measured.gain:.2f}",
            trial.verdict,
        ]
        for trial in trials
    ]
    return ["subject", "setting", "gain", "decision"], rows


def measured_json(measured: BenchResult) -> dict[str, Any]:
    """Return a measurement as JSON."""
    return {
        "setting": measured.setting.label,
        "values": {name: _plain(value) for name, value in measured.setting.values.items()},
        "parity": measured.setting.parity.value,
        "gain": measured.gain,
        "rounds": list(measured.rounds),
        "failure": measured.failure,
        "rates": None if measured.rates is None else asdict(measured.rates),
    }


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """Return the result of a search as JSON."""
    return {
        "trials": [
            {
                "subject": trial.subject,
                "decision": trial.verdict,
                "evidence": list(trial.evidence),
                **measured_json(trial.measured),
            }
            for trial in tuned.trials
        ],
        "noise": tuned.noise,
        "default": measured_json(tuned.default),
        "chosen": measured_json(tuned.final),
    }


def settings_file(tuned: Tuned, command: str, tuned_for: str | None) -> str:
    """Return the settings file: YAML for --config, with reason, gain and evidence of each value.

    Args:
        command: name of the command that was tuned.
        tuned_for: value of the option of this name; None for a program that is not `aam`.
    """
    chosen = tuned.chosen
    lines = [f"Settings of `{command}`, {date.today()}."]
    if chosen:
        lines.append(f"Together {tuned.final.gain:.2f} times as fast as the default.")
    else:
        lines.append("No setting that was tried is faster and trains the same network.")
    content = [_comment(" ".join(lines))]
    if tuned_for is not None and chosen:
        content += [_comment("Refused for another study, device or version:")]
        content += [f"tuned_for: {json.dumps(tuned_for)}"]
    for subject, trial in chosen.items():
        setting = trial.measured.setting
        reason = f"{setting.reason}; " if setting.reason else ""
        content += ["", _comment(f"{subject}: {reason}{'; '.join(trial.evidence)}.")]
        content += [
            f"{name.removeprefix('--').replace('-', '_')}: {json.dumps(_plain(value))}"
            for name, value in trial.values.items()
        ]
    return "\n".join(content) + "\n"


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, 96))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
