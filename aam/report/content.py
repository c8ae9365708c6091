"""Text and numbers of the report page: heading, key figures, tables of folds, provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any

import numpy as np

from aam.contract.options import find, specs
from aam.data.metrics import summary
from aam.report.run import Run
from aam.report.terminal import TITLES, shown, spread

Rows = list[list[str]]


@dataclass(frozen=True)
class Tile:
    """Key figure: value, label and a note for comparison."""

    value: str
    label: str
    note: str = ""


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
    group = run.option("split", "group_column")
    if group:
        sentence += f"; no {group} is on two sides of a split"
    return title, sentence + "."


def tiles(run: Run) -> list[Tile]:
    """Return the key figures: metrics, then size and duration."""
    found = _scored_tiles(run) or _curve_tiles(run)
    facts = run.facts
    if _samples(run):
        parts = facts.get("samples")
        split = [f"{n} {name}" for name, n in parts.items() if n] if isinstance(parts, dict) else []
        note = ", ".join(split) + (" in a fold" if split and len(run.curves) > 1 else "")
        found.append(Tile(f"{_samples(run):,}", "samples", note))
    if facts.get("parameters"):
        width = run.option("model", "embedding_dim")
        note = f"embeddings of {width}" if width and not run.option("pretrained_encoder") else ""
        found.append(Tile(_abbreviated(facts["parameters"]), "parameters", note))
    if isinstance(facts.get("seconds"), (int, float)):
        epochs = facts.get("epochs")
        found.append(Tile(duration(facts["seconds"]), "time", f"{epochs} epochs" if epochs else ""))
    return found


def metrics_summary(run: Run) -> dict[str, Any] | None:
    """Return the figures of the predictions, as `aam.data.metrics.summary` does."""
    return None if run.scored is None else summary(run.scored, run.target or "")


def figure_rows(run: Run) -> tuple[list[str], Rows]:
    """Return heading and rows of the table of figures: folds, their spread, all, the baseline."""
    found = metrics_summary(run)
    if found is None:
        return [], []
    names = [name for name in TITLES if name in found["overall"]]
    rows = [
        [f"fold {fold}", *(shown(name, one.get(name)) for name in names)]
        for fold, one in found["folds"].items()
    ]
    if found["folds"]:
        rows.append(["mean ± sd", *(spread(name, found["folds"]) for name in names)])
    rows.append(["all samples", *(shown(name, found["overall"][name]) for name in names)])
    rows += _baseline_rows(run, names)
    return ["", *(TITLES[name] for name in names)], rows


def baseline_note(run: Run) -> str:
    """Return a sentence on how comparable the baseline is, or on how to compute one."""
    if run.scored is None:
        return ""
    if run.baseline is None:
        return (
            "No baseline is in the run folder. To know what a random forest reaches on the same "
            f"samples: aam baseline --splits {run.folder.name}/splits.tsv --output-dir "
            f"{run.folder.name}/baseline, with the run's table and metadata."
        )
    if run.baseline.get("column") != run.target:
        return f"The baseline predicts another column ({run.baseline.get('column')})."
    if run.same_split is None:
        return "Whether the baseline was scored on the same samples is not known."
    if run.same_split:
        return "The random forest was scored on the same samples."
    return "The random forest was scored on other samples: compare with care."


def input_rows(run: Run) -> Rows:
    """Return option, path, size and SHA-256 of every input."""
    inputs = run.facts.get("inputs") or {}
    return [
        [flag, str(file.get("path", "")), _size(file.get("bytes")), str(file.get("sha256", ""))]
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
    found: list[tuple[str, str, bool]] = []

    def walk(options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if isinstance(value, dict):
                walk(value)
                continue
            default = defaults.get(name)
            default = list(default) if isinstance(default, tuple) else default
            found.append(("--" + name.replace("_", "-"), _text(value), value != default))

    walk(run.facts.get("options") or {})
    return found


def command_line(run: Run) -> str:
    """Return the command line, quoted for a shell."""
    argv = [str(argument) for argument in run.facts.get("argv") or []]
    return shlex.join(["aam", *argv[1:]]) if argv else ""


def duration(seconds: float) -> str:
    """Format a time span in its largest unit, with three digits.

    >>> duration(5400)
    '1.5 h'
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def _scored_tiles(run: Run) -> list[Tile]:
    found = metrics_summary(run)
    if found is None:
        return []
    names = ("accuracy", "balanced_accuracy", "auc", "macro_f1")
    if found["kind"] == "regression":
        names = ("r2", "mae", "rmse", "spearman")
    baseline = (run.baseline or {}).get("overall", {}) if _comparable(run) else {}
    tiles = []
    for name in names:
        if found["overall"].get(name) is None:
            continue
        forest = baseline.get(name)
        note = "" if forest is None else f"random forest {shown(name, forest)}"
        tiles.append(Tile(shown(name, found["overall"][name]), TITLES[name], note))
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
    found = [Tile(f"{loss[best]:.3g}", "validation loss", f"epoch {curve['epoch'][best] + 1:.0f}")]
    if "val_unifrac" in curve:
        found.append(Tile(f"{curve['val_unifrac'][best]:.3g}", "loss of UniFrac", "validation"))
    if "val_nucleotide_accuracy" in curve:
        accuracy = f"{curve['val_nucleotide_accuracy'][best]:.1%}"
        found.append(Tile(accuracy, "masked nucleotides right", "validation"))
    return found


def _baseline_rows(run: Run, names: list[str]) -> Rows:
    if run.baseline is None or not _comparable(run):
        return []
    overall, folds = run.baseline.get("overall", {}), run.baseline.get("folds", {})
    rows = [["random forest", *(shown(name, overall.get(name)) for name in names)]]
    if len(folds) > 1:
        rows.append(["forest, mean ± sd", *(spread(name, folds) for name in names)])
    return rows


def _comparable(run: Run) -> bool:
    return run.baseline is not None and run.baseline.get("column") == run.target


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


def _size(number: Any) -> str:
    if not isinstance(number, int):
        return ""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return (
        "" if value is None else "yes" if value is True else "no" if value is False else str(value)
    )
