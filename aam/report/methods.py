"""Methods paragraph and references of a run; tables of options, inputs, versions, host."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib.resources import files
from typing import Any

import numpy as np

from aam.contract.options import flat, specs
from aam.contract.options.commands import find
from aam.contract.options.groups import MEMBERS, TRANSFORMER
from aam.contract.version import RELEASED, URL
from aam.evaluation.association import ADJUSTED, ASSOCIATED, CONDITIONAL
from aam.evaluation.intervals import LEVEL, SCORED, TITLES
from aam.memory import shown_size
from aam.report.run import Run

TableRows = list[list[str]]

LIBRARIES = ("python", "numpy", "scipy", "scikit-learn", "biom-format", "scikit-bio", "torch")


def paragraph(run: Run) -> str:
    """Return the methods paragraph of a run; "" for a pretraining."""
    return " ".join(text for text, *_ in _sentences(run))


def bibtex(run: Run) -> str:
    """Return the references of a run in BibTeX: aam, BIOM, models, citations of the methods."""
    keys = {key for name in _members(run) for key in MEMBERS[name].references} | {"mcdonald2012"}
    keys |= {key for _, *cited in _sentences(run) for key in cited}
    aam_entry = (
        "@software{aam,\n  author = {{AAM developers}}, title = {{AAM}: Attention All Microbes},\n"
        f"  version = {{{run.facts.get('aam', '')}}}, year = {{{RELEASED[:4]}}},\n"
        f"  url = {{{URL}}}\n}}"
    )
    entries = (files("aam.report") / "references.bib").read_text(encoding="utf-8").split("\n\n")
    entry_of = {entry.partition("{")[2].partition(",")[0]: entry.strip() for entry in entries}
    return "\n".join([aam_entry, *(entry_of[key] for key in sorted(keys))])


Sentences = tuple[str, ...]
"""Sentences on a subject ("" for none), and keys of cited references."""


def _sentences(run: Run) -> list[Sentences]:
    written = [] if run.target is None else [write(run) for write in SUBJECTS]
    return [sentences for sentences in written if sentences[0]]


def _data(run: Run) -> Sentences:
    facts, where = run.facts, run.option("where")
    text = f"{run.target} was predicted from the counts of "
    text += f"{facts['asvs']:,} ASVs" if facts.get("asvs") else "ASVs"
    if lengths := [f"{length}" for length in dict.fromkeys(facts.get("lengths") or ())]:
        text += f" ({' to '.join(lengths)} nt)"
    kinds = ("categorical_columns", "numeric_columns")
    if columns := [str(n) for kind in kinds for n in run.option(kind) or ()]:
        text += f" and {', '.join(columns)}"
    numbers = facts.get("samples")
    samples = (sum(numbers.values()) if isinstance(numbers, dict) else numbers) or 0
    # Studies of one category are in no training set, and the first split lacks them.
    samples = max(samples, scored := 0 if run.scored is None else len(run.scored.actual))
    text += f" in {samples:,} samples" if samples else ""
    text += f" where {where}" if where else ""
    held_out = run.scored
    # A single split scores some of the samples: the counts of their classes would mislead.
    if held_out is not None and scored == samples and held_out.type == "classification":
        times = np.bincount(held_out.actual, minlength=len(held_out.classes)).tolist()
        times_of = zip(held_out.classes, times, strict=True)
        text += f" ({', '.join(f'{name}: {number}' for name, number in times_of)})"
    depth = facts.get("rarefy_depth") if TRANSFORMER in _members(run) else None
    rarefied = f" For the transformer, samples were rarefied to {depth:,} reads." if depth else ""
    return (f"{text} with aam {facts.get('aam', '')}.{rarefied}",)


def _model(run: Run) -> Sentences:
    members, settings = _members(run), dict(run.facts.get("settings") or {})
    if TRANSFORMER in members and (parameters := run.facts.get("parameters")):
        settings[TRANSFORMER] = f"{parameters:,} parameters, at most {run.option('epochs')} epochs"
    stored = None if run.scores is None else run.scores.weights
    weights = {} if stored is None else stored.model
    chosen = len(set(weights.values())) > 1
    titles = []
    for name in members:
        details = [settings[name]] if settings.get(name) else []
        # Members of weight 0 are named too: they were tried.
        details += [f"weight {weights.get(name, 0.0):.2f}"] * (len(members) > 1 and bool(weights))
        title = MEMBERS[name].method or f"a {MEMBERS[name].title}"
        titles.append(f"{title} ({'; '.join(details)})" if details else title)
    mean = "the weighted mean of " if chosen else "the mean of "
    text = f"The model is {mean if len(titles) > 1 else ''}{' and '.join(titles)}."
    if chosen:
        text += " Weights were chosen on left-out training groups."
    if TRANSFORMER in members and run.option("pretrained_encoder"):
        frozen = ", and its weights were frozen" if run.option("freeze_base") else ""
        text += f" The encoder of the transformer was pretrained without labels{frozen}."
    return (text,)


def _design(run: Run) -> Sentences:
    scored, group = run.scored, run.option("group_column")
    if scored is None:
        return ("",)
    number, folds = len(scored.actual), len(set(scored.folds))
    studies = 0 if run.scores is None or run.scores.studies is None else len(set(scored.studies))
    if run.is_external:
        # An external validation has no folds, whatever the training had.
        where = f"{studies} other studies" if studies else "another study"
        return (f"The model of '{run.option('model')}' was scored on {number} samples of {where}.",)
    design = f"in {folds}-fold cross-validation" if folds else "of a single split"
    if studies:
        design = f"of {studies} studies ({run.option('study_column')}), each left out in turn"
    text = f"It was scored on {number} {run.split} samples {design}".replace("  ", " ")
    if run.partitions is not None and run.partitions.repeats:
        text += f", repeated {len(run.partitions.partitions)} times (mean scores)"
    if group:
        groups = "" if run.scores is None else f" ({run.scores.groups} groups)"
        text += f"; each {group}{groups} is entirely in training or {run.split or 'test'}"
    return (f"{text}.",)


def _scores(run: Run) -> Sentences:
    scores, scored = run.scores, run.scored
    if scored is None:
        return ("",)
    keys = ["efron1981"]
    units = "groups" if run.option("group_column") else "samples"
    measured, level = "Scores", LEVEL
    if scores is not None and (model := scores.models.get("ensemble")) is not None:
        level = scores.level
        titles = [TITLES[name] for name in SCORED[scored.type] if name in model.metrics]
        *earlier_titles, last = titles or [measured]
        measured = f"{', '.join(earlier_titles)} and {last}" if earlier_titles else last
    text = f"{measured} have {level:.0%} jackknife t intervals over {units} (Efron and Stein 1981)."
    if scores is not None and scores.studies is not None and scores.studies.summaries:
        # As `AUC_SPREAD` and `SQUARES_SPREAD` of `aam.evaluation.meta_analysis`.
        prior, cited = "a weakly informative prior (Röver et al. 2021)", ["rover2021"]
        if scores.verdict.metric == "auc":
            prior = "published microbiome models (Duvallet et al. 2017; Wirbel et al. 2019)"
            cited = ["duvallet2017", "wirbel2019"]
        keys += ["hartung2001", *cited]
        text += (
            " Means over the studies are random-effects means (Hartung and Knapp 2001); the "
            f"variance between studies is shrunk towards {prior}."
        )
    elif scored.folds and scored.classes:
        keys.append("parker2007")
        text += " The AUC compares samples within folds (Parker et al. 2007)."
    if scores is not None and scores.verdict.p is not None:
        keys.append("phipson2010")
        within = " within studies" if scored.studies else ""
        text += (
            f" The baseline is {scores.baseline}; {scores.verdict.shufflings} permutations of the "
            f"held-out labels{within} gave p = {scores.verdict.p:.2g} (Phipson and Smyth 2010)."
        )
    return (text, *keys)


def _uncertainty(run: Run) -> Sentences:
    scores, units = run.scores, "groups" if run.option("group_column") else "samples"
    if scores is not None and (interval := scores.interval) is not None:
        units = "studies" if scores.studies is not None else units
        text = (
            f"{interval.coverage:.0%} prediction intervals are conformal over {units} (Lee et al. "
            f"2023) and cover {interval.covered:.0%} of the held-out samples."
        )
        return (text, "lee2023")
    if scores is None or scores.calibration is None:
        return ("",)
    temperature, text = scores.calibration.temperature, "did not improve the probabilities"
    if temperature != 1:
        text = f"by {temperature:.2f} calibrated the probabilities"
    return (f"Temperature scaling (Guo et al. 2017) {text}.", "guo2017")


def _threshold(run: Run) -> Sentences:
    thresholds = [] if run.scores is None else run.scores.thresholds[1:]  # the first is 0.5
    if run.scores is None or not thresholds or thresholds[0].threshold is None:
        return ("",)
    chosen = thresholds[0]
    named_values = [
        f"{name} {value:.2f}"
        for name in ("sensitivity", "specificity")
        if (value := chosen.metrics[name].value) is not None
    ]
    is_youden = chosen.rule.startswith("Youden")
    text = (
        f"The threshold of {run.scores.classes[1]}, {chosen.threshold:.2f} ({chosen.rule}"
        f"{'; Youden 1950' * is_youden}), was chosen on left-out training predictions"
    )
    text += f" (held-out {', '.join(named_values)})." if named_values else "."
    return (text, *["youden1950"] * is_youden)


def _associations(run: Run) -> Sentences:
    tested = run.facts.get("tested") or {}
    tests, keys = [], ["benjamini1995"]
    if tested.get(ASSOCIATED) is not None:
        tests.append(f"by rank ({tested[ASSOCIATED]:,} tests; Landis et al. 1978)")
        keys.append("landis1978")
    if tested.get(CONDITIONAL) is not None:
        details = f"{tested[CONDITIONAL]:,} tests, {tested['permutations']} permutations"
        tests.append(f"given the rest of the community ({details}; Kang et al. 2010)")
        keys.append("kang2010")
    if not tests:
        return ("",)
    text = (
        f"ASVs in at least {tested['samples']} samples or groups were tested for association "
        f"{' and '.join(tests)}, at a false discovery rate of {tested['rate']:g} each "
        "(Benjamini and Hochberg 1995)."
    )
    columns = run.option("adjust_for")
    if columns and run.importance and ADJUSTED in run.importance[0]:
        associated = sum(float(row[ADJUSTED] or "nan") < tested["rate"] for row in run.importance)
        text += f" Adjusted for {' and '.join(columns)}, {associated:,} ASVs were associated."
    return (text, *keys)


_STATED = {"metadata_column", "where", "group_column", "study_column", "members", "overwrite",
         "categorical_columns", "numeric_columns", "classifier", "device",
         "adjust_for", "sensitivity"}  # fmt: skip
"""Options that other sentences state, or that change no result."""


def _options(run: Run) -> Sentences:
    command = find(str(run.facts.get("command", "")))
    values = () if command is None else specs(command)
    stated = {spec.flag for spec in values if spec.role == "value" and spec.field not in _STATED}
    changed = [
        f"{flag} {text}" for flag, text, is_set in option_rows(run) if is_set and flag in stated
    ]
    return (f"Options that differ from the defaults: {', '.join(changed)}." if changed else "",)


def _software(run: Run) -> Sentences:
    versions = run.facts.get("versions") or {}
    # Only the transformer computes with PyTorch, the last.
    used = LIBRARIES if TRANSFORMER in _members(run) else LIBRARIES[:-1]
    stated = [f"{name} {versions[name]}" for name in used if versions.get(name)]
    return (f"Software: {', '.join(stated)}." if stated else "",)


SUBJECTS: tuple[Callable[[Run], Sentences], ...] = (
    _data, _model, _design, _scores, _uncertainty, _threshold, _associations, _options, _software
)  # fmt: skip
"""Subjects of the paragraph, in order."""


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
    """Return flag and value of every option, and whether it differs from the default."""
    command = find(str(run.facts.get("command", "")))
    defaults = {} if command is None else {spec.field: spec.default for spec in specs(command)}
    rows = []
    for name, value in flat(run.facts.get("options") or {}).items():
        default = defaults.get(name)
        default = list(default) if isinstance(default, tuple) else default
        rows.append(("--" + name.replace("_", "-"), _text(value), value != default))
    return rows


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
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
