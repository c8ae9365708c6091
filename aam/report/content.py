"""Text and numbers of the report page: heading, key figures, files, provenance."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import numpy as np

from aam.contract.options import find, specs
from aam.contract.options.field import flat
from aam.memory import shown_size
from aam.number_format import metric_text, significant
from aam.report.base import ReportInput
from aam.report.models import OWN
from aam.report.run import Run
from aam.report.terminal import TITLES, digits_of

Rows = list[list[str]]

NETWORK = "transformer"
"""Member whose epoch the validation samples choose."""

FILES = {
    "predictions.tsv": "true and predicted values of the held-out samples",
    "splits.tsv": "training, validation and test samples",
    "scores.json": "metrics of the model and its members, with intervals",
    "importance.tsv": "ASVs by their importance for the predictions",
    "embeddings.tsv": "embedding of each sample",
    "ordination.txt": "principal coordinates of the samples by the kernel of the sequences",
    "unifrac.tsv": "UniFrac distances",
    "metrics.csv": "losses and metrics of each epoch",
    "run.json": "options, versions, host, SHA-256 of the inputs",
}
"""Files of a run folder to which the page links."""


@dataclass(frozen=True)
class Tile:
    """Key figure: value, label, a note for comparison, and the unit of the value."""

    value: str
    label: str
    note: str = ""
    unit: str = ""


def heading(run: Run) -> tuple[str, str]:
    """Return the title of the page and the sentence under it."""
    facts = run.facts
    title = f"Prediction of {run.target}" if run.target else "Pretrained encoder"
    table = run.option("input", "table")
    parts = [f"aam {facts.get('command', 'run')}"]
    if table:
        parts.append(f"on {PurePath(str(table)).name}")
    samples = _samples(run)
    if samples:
        parts.append(f"with {samples:,} samples")
    if facts.get("asvs"):
        parts.append(f"of {facts['asvs']:,} ASVs")
    depth = facts.get("rarefy_depth")
    if depth:
        parts.append(f"at {depth:,} reads each")
    sentence = " ".join(parts)
    folds = len(run.curves)
    if folds > 1:
        sentence += f"; {folds}-fold cross-validation"
    return title, sentence + "."


def tiles(given: ReportInput) -> list[Tile]:
    """Return the key figures: metrics, then size and duration."""
    run = given.run
    figures = _scored_tiles(given) or _curve_tiles(run)
    facts = run.facts
    if _samples(run):
        figures.append(Tile(f"{_samples(run):,}", "samples", _split_note(run)))
    if facts.get("parameters"):
        width = run.option("model", "embedding_dim")
        note = f"embeddings of {width}" if width and not run.option("pretrained_encoder") else ""
        figures.append(Tile(_abbreviated(facts["parameters"]), "parameters", note))
    if isinstance(facts.get("seconds"), (int, float)):
        epochs = facts.get("epochs")
        number, _, unit = duration(facts["seconds"]).partition(" ")
        figures.append(Tile(number, "time", f"{epochs} epochs" if epochs else "", unit))
    return figures


def _split_note(run: Run) -> str:
    """Return the samples of each part of the first split; "" if they are not recorded."""
    parts = run.facts.get("samples")
    if not isinstance(parts, dict):
        return ""
    estimators, more = [name for name in _members(run) if name != NETWORK], ""
    if estimators and parts.get("test"):  # they have no epoch that validation samples could choose
        train = int(parts.get("train", 0)) + int(parts.get("validation", 0))
        if NETWORK in _members(run):
            more = f" ({' and '.join(estimators)}: {train} train)"
        else:
            parts = {"train": train, "test": parts["test"]}
    note = ", ".join(f"{number} {part}" for part, number in parts.items() if number) + more
    folds = len(set(run.scored.folds)) if run.scored else len(run.curves)
    return note + (" in fold 1" if note and folds > 1 else "")


def _members(run: Run) -> tuple[str, ...]:
    return tuple(run.facts.get("members") or (NETWORK,))


def measured_on(run: Run) -> str:
    """Return sentences on which samples the headline was measured, and what that is worth."""
    if run.scored is None:
        return ""
    samples, folds = len(run.scored.actual), len(set(run.scored.folds))
    group = run.option("split", "group_column")
    apart = f" All samples of a {group} are on one side of a split." if group else ""
    if run.part == "test":
        if folds:
            how = f"of {folds} folds: each was predicted by a model that it did not train"
        else:
            how = "that took no part in training"
        return f"{samples} test samples {how}.{apart}"
    if run.part == "validation" and NETWORK not in _members(run):
        return f"{samples} validation samples that took no part in training.{apart}"
    if run.part == "validation":
        return (
            f"{samples} validation samples, which did not train the model but chose its epoch: "
            "new samples may be predicted a little worse. A cross-validation (--folds) has test "
            f"samples.{apart}"
        )
    return f"{samples} samples; which split they are from is not recorded."


def input_rows(run: Run) -> Rows:
    """Return option, path, size and SHA-256 of every input."""
    inputs = run.facts.get("inputs") or {}
    return [
        [
            flag,
            str(file.get("path", "")),
            shown_size(file["bytes"]) if isinstance(file.get("bytes"), int) else "",
            str(file.get("sha256", "")),
        ]
        for flag, file in inputs.items()
    ]


def fact_rows(run: Run) -> Rows:
    """Return times, host and versions of the run."""
    facts = run.facts
    rows = [["aam", str(facts.get("aam", "unknown"))]]
    rows += [[name, _timestamp(facts[name])] for name in ("started", "finished") if facts.get(name)]
    rows += [[f"host {name}", _text(value)] for name, value in (facts.get("host") or {}).items()]
    rows += [[name, _text(value)] for name, value in (facts.get("versions") or {}).items()]
    return [row for row in rows if row[1]]


def option_rows(run: Run) -> list[tuple[str, str, bool]]:
    """Return flag, value and whether it differs from the default, of every option."""
    command = find(str(run.facts.get("command", "")))
    defaults = {} if command is None else {spec.field: spec.default for spec in specs(command)}
    rows = []
    for name, value in flat(run.facts.get("options") or {}).items():
        default = defaults.get(name)
        default = list(default) if isinstance(default, tuple) else default
        rows.append(("--" + name.replace("_", "-"), _text(value), value != default))
    return rows


def finished(run: Run) -> str:
    """Return when the run finished; "" if it has not."""
    return _timestamp(run.facts["finished"]) if run.facts.get("finished") else ""


def command_line(run: Run) -> str:
    """Return the command line, quoted for a shell."""
    argv = [str(argument) for argument in run.facts.get("argv") or []]
    return shlex.join(["aam", *argv[1:]]) if argv else ""


def file_links(run: Run, page: Path) -> list[tuple[str, str, str]]:
    """Return address relative to the page, name and content of each file of the run folder."""
    others = {
        f"{one.folder}/predictions.tsv": f"the same of the {one.model}" for one in run.baselines
    }
    files = {**FILES, **others}
    return [
        (quote(os.path.relpath(run.folder / name, page.parent)), name, what)
        for name, what in files.items()
        if (run.folder / name).is_file()
    ]


def duration(seconds: float) -> str:
    """Format a time span in its largest unit, with three digits.

    >>> duration(5400)
    '1.5 h'
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def _scored_tiles(given: ReportInput) -> list[Tile]:
    """Return the headline metrics, with their intervals."""
    if given.models is None:
        return []
    metrics = given.models.metrics[OWN]
    names = ("r2", "mae", "rmse", "spearman")
    if "weighted_kappa" in metrics:
        names = ("weighted_kappa", "mae_ranks", "accuracy", "balanced_accuracy")
    elif "accuracy" in metrics:
        names = ("accuracy", "balanced_accuracy", "auc", "macro_f1")
    tiles = []
    for name in names:
        if name not in metrics or metrics[name].value is None:
            continue
        lower, upper = metrics[name].lower, metrics[name].upper
        digits = digits_of(lower, upper)
        limits = (metric_text(name, limit, digits) for limit in (lower, upper))
        note = "" if lower is None else " to ".join(limits)
        unit = given.unit if name in ("mae", "rmse") else ""
        tiles.append(Tile(metric_text(name, metrics[name].value, digits), TITLES[name], note, unit))
    return tiles


def _curve_tiles(run: Run) -> list[Tile]:
    """Return the validation figures of the epoch with the lowest validation loss."""
    if len(run.curves) != 1:
        return []
    (curve,) = run.curves.values()
    loss = curve.get("val_loss", np.array([]))
    if not np.isfinite(loss).any():
        return []
    best = int(np.nanargmin(loss))
    tiles = [
        Tile(significant(loss[best]), "validation loss", f"epoch {curve['epoch'][best] + 1:.0f}")
    ]
    if "val_unifrac" in curve:
        tiles.append(Tile(f"{curve['val_unifrac'][best]:.3g}", "loss of UniFrac", "validation"))
    if "val_nucleotide_accuracy" in curve:
        accuracy = f"{curve['val_nucleotide_accuracy'][best]:.1%}"
        tiles.append(Tile(accuracy, "masked nucleotides right", "validation"))
    return tiles


def _samples(run: Run) -> int:
    parts = run.facts.get("samples")
    if isinstance(parts, dict):
        return sum(int(number) for number in parts.values())
    return len(run.embedded_ids)


def _abbreviated(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _timestamp(text: Any) -> str:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    zone = moment.tzname() or ""
    return f"{moment:%Y-%m-%d %H:%M} {zone}".strip()


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return (
        "" if value is None else "yes" if value is True else "no" if value is False else str(value)
    )
