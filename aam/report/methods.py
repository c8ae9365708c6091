"""Methods of a run: paragraph and citations for a manuscript, options, inputs, versions, host."""

from __future__ import annotations

import shlex
from datetime import datetime
from importlib.resources import files
from typing import Any

from aam.contract.options import flat, specs
from aam.contract.options.commands import find
from aam.contract.options.groups import MEMBERS, TRANSFORMER
from aam.evaluation.intervals import LEVEL
from aam.memory import shown_size
from aam.report.run import Run

TableRows = list[list[str]]

LIBRARIES = ("python", "numpy", "scipy", "scikit-learn", "biom-format", "scikit-bio", "torch")


def paragraph(run: Run) -> str:
    """Return the methods of a run; "" for a pretraining, whose result is no prediction."""
    if run.target is None:
        return ""
    facts, group = run.facts, run.option("group_column")
    where = run.option("where")
    sentence = f"{run.target} was predicted from the counts of "
    sentence += f"{facts['asvs']:,} ASVs" if facts.get("asvs") else "ASVs"
    kinds = ("categorical_columns", "numeric_columns")
    if columns := [str(n) for kind in kinds for n in run.option(kind) or ()]:
        sentence += f" and {', '.join(columns)}"
    parts = facts.get("samples")
    if samples := sum(parts.values()) if isinstance(parts, dict) else parts:
        sentence += f" in {samples:,} samples"
        sentence += f" that meet the condition {where}" if where else ""
    sentences = [f"{sentence} with aam {facts.get('aam', '')}."]
    members = _members(run)
    trained = [MEMBERS[name].method or f"a {MEMBERS[name].title}" for name in members]
    known = None if run.scores is None else run.scores.weights
    weights = {} if known is None else known.model
    mean = "the mean of "
    if len(set(weights.values())) > 1:
        # Named with every member: those of weight 0 were tried.
        shares = zip(trained, (weights.get(name, 0.0) for name in members), strict=True)
        trained = [f"{title} (weight {weight:.2f})" for title, weight in shares]
        mean = (
            "a mean, with weights that were chosen by leaving out groups of the training samples, "
            "of "
        )
    sentences.append(f"The model is {mean if len(trained) > 1 else ''}{' and '.join(trained)}.")
    if TRANSFORMER in members and (depth := facts.get("rarefy_depth")):
        sentences.append(f"For the transformer the samples were rarefied to {depth:,} reads.")
    if TRANSFORMER in members and run.option("pretrained_encoder"):
        frozen = ", and its weights were frozen" if run.option("freeze_base") else ""
        sentences.append(f"The encoder of the transformer was pretrained without labels{frozen}.")
    if run.scored is not None:
        folds = len(set(run.scored.folds))
        scored = f"{len(run.scored.actual)} {run.part} samples".replace("  ", " ")
        if run.is_external:
            scored = f"{len(run.scored.actual)} samples"
        design = f"{folds}-fold cross-validation" if folds else "a single split"
        studies = None if run.scores is None else run.scores.studies
        if studies is not None:
            design = f"{len(studies.studies)} studies, of which one at a time was left out"
        # A validation elsewhere has no folds of its own, whatever its model was trained with.
        if run.is_external:
            design = "another study" if studies is None else f"{len(studies.studies)} other studies"
            design += f" than that of its training, '{run.option('model')}'"
        if run.partitions is not None and run.partitions.repeats:
            design += f", repeated {len(run.partitions.partitions)} times with mean scores"
        apart = f", in which all samples of a {group} are on one side" if group else ""
        apart = "" if run.is_external else apart
        sentences.append(f"It was scored on {scored} of {design}{apart}.")
        sentences.append(
            f"Intervals are {100 * LEVEL:.0f} % t intervals of the jackknife over "
            f"{'groups' if group else 'samples'} (Efron and Stein 1981)."
        )
        if studies is not None and studies.summaries:
            sentences.append(
                "Scores are random-effects means over the studies by Hartung and Knapp (2001), "
                "whose variance and spread between studies are weighed with those of published "
                "models (van Leeuwen et al. 2025)."
            )
        elif folds and run.scored.classes:
            sentences.append("The AUC compares samples of the same fold (Parker et al. 2007).")
    versions = facts.get("versions") or {}
    # PyTorch, the last, computes nothing of a kernel or forest.
    used = LIBRARIES if TRANSFORMER in members else LIBRARIES[:-1]
    if named := [f"{name} {versions[name]}" for name in used if versions.get(name)]:
        sentences.append(f"Software: {', '.join(named)}.")
    return " ".join(sentences)


def bibtex(run: Run) -> str:
    """Return the references of a run: aam, its members, the intervals and the table."""
    keys = {key for name in _members(run) for key in MEMBERS[name].references} | {"mcdonald2012"}
    if run.scored is not None:
        keys |= {"efron1981"}
        keys |= {"parker2007"} if run.scored.folds and run.scored.classes else set()
        keys |= {"hartung2001", "vanleeuwen2025"} if run.scored.studies else set()
    aam_entry = (
        "@software{aam,\n  author = {{AAM developers}}, title = {{AAM}: Attention All Microbes},\n"
        f"  version = {{{run.facts.get('aam', '')}}}\n}}"
    )
    entries = (files("aam.report") / "references.bib").read_text(encoding="utf-8").split("\n\n")
    known = {entry.partition("{")[2].partition(",")[0]: entry.strip() for entry in entries}
    return "\n".join([aam_entry, *(known[key] for key in sorted(keys))])


def _members(run: Run) -> list[str]:
    return [name for name in run.members if name in MEMBERS]


def input_rows(run: Run) -> TableRows:
    """Return option, path, size and SHA-256 of every input."""
    inputs = run.facts.get("inputs") or {}
    return [
        [flag, file["path"], shown_size(file["bytes"]) if "bytes" in file else "", file["sha256"]]
        for flag, file in inputs.items()
    ]


def fact_rows(run: Run) -> TableRows:
    """Return times, host and versions of the run."""
    facts = run.facts
    rows = [["aam", str(facts.get("aam", "unknown"))]]
    rows += [[name, timestamp(facts[name])] for name in ("started", "finished") if facts.get(name)]
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


def command_line(run: Run) -> str:
    """Return the command line, quoted for a shell."""
    argv = [str(argument) for argument in run.facts.get("argv") or []]
    return shlex.join(["aam", *argv[1:]]) if argv else ""


def timestamp(text: Any) -> str:
    """Return a time of a run record to the minute."""
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
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return (
        "" if value is None else "yes" if value is True else "no" if value is False else str(value)
    )
