"""HTML page of the report: self-contained, with a light and a dark scheme."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from aam import run_record
from aam.console import later_step
from aam.contract import run_files
from aam.contract.errors import CannotCreate
from aam.contract.files import make_parent, refuse_existing, write_text
from aam.contract.options.groups import TRANSFORMER
from aam.contract.run_files import FILES, RECORD
from aam.contract.version import __version__
from aam.data.table import FeatureTable
from aam.evaluation.metrics import metric_text
from aam.evaluation.scores import ModelFinding
from aam.number_format import significant
from aam.report import methods
from aam.report.asvs import read_abundances
from aam.report.figures import data_link
from aam.report.run import ReportInput, Run, read_run
from aam.report.sections import SECTIONS, draw_section, tabulate
from aam.report.terminal import HEADINGS, Table, next_cell

_START = b"<!doctype html>"  # first bytes of a page, in lower case
_FIRST = ("studies", "agreement", "roc", "confusion", "curve-loss")
"""Pictures for the place beside the verdict: the page shows the first one that the run has."""

_UNBROKEN = 30  # most characters of a value with its interval; longer cells are texts


def write_report(report: ReportInput, path: Path) -> None:
    """Write the HTML report of a run or of one target; replace an existing one."""
    write_page(path, page(report, path))
    run_files.add(path.parent, path.name)


def require_page(path: Path, remedy: str = "choose another file for the page") -> None:
    """Refuse a path that `write_page` cannot write to, before the page is made."""
    refuse_existing(path, overwrite=True)
    make_parent(path, remedy)
    if path.is_file():
        with path.open("rb") as stream:
            start = stream.read(len(_START)).lower()
        if start != _START:
            evidence = f"'{path}' is no HTML page"
            raise CannotCreate("The output exists", evidence, remedy)


def write_page(path: Path, text: str) -> None:
    """Write an HTML page; only another page is replaced (`require_page`)."""
    require_page(path)
    write_text(path, text)


def write_report_of_run(folder: Path, table: FeatureTable) -> Path | None:
    """Write the report of a run that has just ended; an error leaves the run without one."""
    path = folder / "report.html"
    with later_step("report"):
        run = read_run(folder)
        write_report(ReportInput.of(run, abundances=read_abundances(run, table)), path)
        return path
    return None


def page(report: ReportInput, path: Path) -> str:
    """Return the HTML report of a run."""
    run, finished = report.run, report.run.facts.get("finished")
    options, heads = methods.option_rows(run), ["Option", "Value"]
    # Readers look for their own choices: the defaults are folded away.
    options_of_run, options_of_others = (
        Table(
            name,
            heads,
            [[flag, text or "-"] for flag, text, changed in options if changed is differs],
        )
        for name, differs in (("Options that are not the default", True), ("Other options", False))
    )
    findings = result_of(report)
    # Repeated subjects and confounders cast doubt on the verdict.
    results, doubts = (
        [finding.text for finding in findings[1:] if finding.is_warning == doubtful]
        for doubtful in (False, True)
    )
    drawings = {name: draw_section(name, report) for name in SECTIONS}
    picture_of = {picture.name: picture for pictures in drawings.values() for picture in pictures}
    first = next((picture_of[name] for name in _FIRST if name in picture_of), None)
    drawings = {
        name: [item for item in pictures if item is not first]
        for name, pictures in drawings.items()
    }
    title = "Pretrained encoder"
    if run.target is not None:
        title = f"Prediction of {run.target}" + " in another study" * run.is_external
    return render(
        "page.html.j2",
        title=title,
        sentence=heading(run),
        name=run.folder.resolve().name,
        finished=methods.timestamp(finished) if finished else "",
        pretraining=run.target is None,
        headline="" if run.scores is None else run.scores.verdict.headline,
        result=[finding.text for finding in findings[:1]],
        more_results=results,
        better=run.is_better,
        notices=doubts,
        warnings=run.facts.get("warnings", ()),
        next_step=_next_command(run),
        first=[] if first is None else [first],
        measured_on=measured_on(run),
        tiles=tiles(report),
        tables=tabulate("predictions", report),
        asv_tables=tabulate("asvs", report),
        study_tables=tabulate("studies", report),
        studies=drawings["studies"],
        curves=drawings["learning"],
        scored=drawings["predictions"],
        asvs=drawings["asvs"],
        embeds=TRANSFORMER in run.members,
        embedding=drawings["embedding"],
        colours=report.colours if run.embeddings is not None or run.ordination else (),
        missing=list(missing(report)),
        # Links are relative to the page, since page and folder are copied together. Only files that
        # the run lists are linked.
        links=[
            (quote(os.path.relpath(run.folder / name, path.parent)), name, description)
            for name, description in FILES.items()
            if name in (RECORD, *run.files) and (run.folder / name).is_file()
        ],
        methods=methods.paragraph(run),
        citations=methods.bibtex(run),
        inputs=Table("Inputs", ["Option", "File", "Size", "SHA-256"], methods.input_rows(run)),
        facts=methods.fact_rows(run),
        own_options=options_of_run,
        other_options=options_of_others,
        command=command_line(run),
    )


def heading(run: Run) -> str:
    """Return the sentence under the title of the page."""
    facts = run.facts
    sentence = [f"aam {facts.get('command', 'run')}"]
    if table := run.option("table"):
        sentence.append(f"on {PurePath(str(table)).name}")
    if samples := _samples(run):
        sentence.append(f"with {samples:,} samples")
    if facts.get("asvs"):
        sentence.append(f"and {facts['asvs']:,} ASVs")
    if depth := facts.get("rarefy_depth"):
        sentence.append(f"at {depth:,} reads each")
    folds = f"; {len(run.curves)}-fold cross-validation" if len(run.curves) > 1 else ""
    return f"{' '.join(sentence)}{folds}."


def _next_command(run: Run) -> tuple[str, str] | None:
    if run.scores is None or not run.scores.verdict.headline:
        return None
    model = run.option("model") or run.option("output_dir") or run.folder
    files = run_record.recorded_study_files(run.facts)
    training = run_record.joinable(Path(model), files) if run.is_external else {}
    purpose, argv = run.scores.next_step(str(model), files, training)
    return purpose, shlex.join(argv)


def result_of(report: ReportInput) -> list[ModelFinding]:
    """Return the findings of a run, the verdict against the baseline first."""
    if report.run.scored is None:
        return []
    # Scores and predictions are compared before either is shown.
    ensemble = next(iter(report.models.values()))
    if report.run.scores is not None:
        return report.run.scores.findings(report.unit)
    names = ("r2", "weighted_kappa", "auc", "accuracy", "mae")
    defined = [name for name in names if name in ensemble and ensemble[name].value is not None]
    texts = [f"{HEADINGS[name]} is {ensemble[name].text(name)}." for name in defined[:1]]
    return [ModelFinding("verdict", text) for text in texts]


class Tile(NamedTuple):
    """Key figure: value, label, a note for comparison, and the unit of the value."""

    value: str
    label: str
    note: str = ""
    unit: str = ""


def tiles(report: ReportInput) -> list[Tile]:
    """Return the key figures: two metrics with their intervals, or losses, then the size."""
    run, facts, figures = report.run, report.run.facts, []
    metrics = next(iter(report.models.values()), {})
    names: tuple[str, ...] = ("r2", "mae")
    if "weighted_kappa" in metrics:
        names = ("weighted_kappa", "mae_ranks")
    elif "accuracy" in metrics:
        names = ("auc", "balanced_accuracy")
    studies = None if run.scores is None else run.scores.studies
    if run.scores is not None and studies is not None:
        # The mean over the studies, then the prediction interval of the next study.
        first = run.scores.verdict.metric
        names = (first, *(name for name in ("mae", "mae_ranks") if name in metrics))
    repeated = None if run.scores is None else run.scores.repeated_samples
    if repeated is not None:
        # The split divides subjects: the score of new subjects comes first, the others are marked.
        value = metric_text(repeated.metric, repeated.grouped)
        note = f"kernel, each '{repeated.column}' in training or test only"
        figures.append(Tile(value, f"{HEADINGS[repeated.metric]} of new subjects", note))
    for name in names:
        if name in metrics and (score := metrics[name]).value is not None:
            unit = report.unit if name in ("mae", "rmse") else ""
            note = score.limits(name)
            if repeated is not None:
                note = f"{note}; subjects seen in training".removeprefix("; ")
            figures.append(Tile(score.estimate(name), HEADINGS[name], note, unit))
        if studies is not None and name in studies.summaries:
            following = next_cell(studies.summaries[name])
            unit = report.unit if name == "mae" else ""
            figures.append(Tile(following, f"{HEADINGS[name]} of the next study", "", unit))
    # Without predictions: the epoch with the lowest validation loss.
    curve = next(iter(run.curves.values())) if len(run.curves) == 1 else {}
    loss = curve.get("val_loss", np.array([]))
    if not figures and np.isfinite(loss).any():
        best = int(np.nanargmin(loss))
        epoch = f"epoch {curve['epoch'][best] + 1:.0f}"
        figures.append(Tile(significant(loss[best]), "validation loss", epoch))
        if "val_unifrac" in curve:
            figures.append(Tile(f"{curve['val_unifrac'][best]:.3g}", "UniFrac loss", "validation"))
        if "val_nucleotide_accuracy" in curve:
            accuracy = f"{curve['val_nucleotide_accuracy'][best]:.1%}"
            figures.append(Tile(accuracy, "masked nucleotides predicted", "validation"))
    if samples := _samples(run):
        figures.append(Tile(f"{samples:,}", "samples", _size_note(run)))
    if run.target is None and (number := facts.get("parameters")):
        width = run.option("embedding_dim")
        note = f"embeddings of {width}" if width and not run.option("pretrained_encoder") else ""
        sizes = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
        size, unit = next((pair for pair in sizes if number >= pair[0]), (0, ""))
        value = f"{number / size:.3g}{unit}" if size else str(number)
        figures.append(Tile(value, "parameters", note))
    return figures


def _size_note(run: Run) -> str:
    """Return the number of groups, or of the samples in each set of a single split."""
    numbers, group = run.facts.get("samples"), run.option("group_column")
    if run.scores is not None and run.scores.studies is not None:
        return f"of {len(run.scores.studies.studies)} studies"
    if group and run.scores is not None and run.scores.groups:
        return f"of {run.scores.groups} groups of {group}"
    if not isinstance(numbers, dict) or len(run.curves) > 1 or (run.scored and run.scored.folds):
        return ""
    estimators, more = [name for name in run.members if name != TRANSFORMER], ""
    # Estimators have no epoch that validation samples could choose.
    if estimators and numbers.get("test"):
        train = int(numbers.get("train", 0)) + int(numbers.get("validation", 0))
        if TRANSFORMER in run.members:
            more = f" ({' and '.join(estimators)}: {train} train)"
        else:
            numbers = {"train": train, "test": numbers["test"]}
    return ", ".join(f"{number} {split}" for split, number in numbers.items() if number) + more


def _samples(run: Run) -> int:
    numbers = run.facts.get("samples")
    return sum(map(int, numbers.values())) if isinstance(numbers, dict) else len(run.embedded_ids)


def measured_on(run: Run) -> str:
    """Return sentences about the samples on which the scores were measured."""
    if run.scored is None:
        return ""
    samples, folds = len(run.scored.actual), len(set(run.scored.folds))
    if run.is_external and not run.scored.studies:
        return f"The scores are from {samples} samples of another study than the training."
    if run.scored.studies:
        return (
            f"The model was tested on {samples} samples of {len(set(run.scored.studies))} studies, "
            "each left out of training in turn. Scores are means over the studies."
        )
    partitions = len(run.partitions.partitions) if run.partitions else 0
    group = run.option("group_column")
    apart = f" Each {group} is entirely in training or entirely in {run.split}." if group else ""
    if run.split and (run.split == "test" or TRANSFORMER not in run.members):
        origin = "no model was trained on them"
        if folds:
            origin = f"each was predicted by models of the other folds ({folds} folds)"
        if partitions:
            apart += (
                f" Scores are means over {partitions} repeats of the cross-validation; figures and "
                "tables of samples show the first repeat."
            )
        return f"The scores are from {samples} held-out samples: {origin}.{apart}"
    if run.split == "validation":
        return (
            f"The scores are from {samples} validation samples that also chose the best epoch: "
            "new samples may be predicted a little worse. Use --folds for separate test samples."
            f"{apart}"
        )
    return f"The scores are from {samples} samples; their split is not recorded."


def missing(report: ReportInput) -> Iterator[tuple[str, str]]:
    """Yield a sentence and a command line for each result that the run folder lacks."""
    run, folder = report.run, str(report.run.folder.resolve())
    table, metadata, sequences, tree = map(
        run.input_path, ("--table", "--metadata", "--sequences", "--tree")
    )
    inputs = ["--table", table or "TABLE", *(["--sequences", sequences] if sequences else [])]
    if not run.importance and run.target and not run.is_external:
        argv = ["importance", *inputs, "--model", folder, "--output", f"{folder}/importance.tsv"]
        yield "Importance of the ASVs (add --taxonomy for their names):", shlex.join(["aam", *argv])
    if run.embeddings is not None and run.unifrac is None:
        argv = ["unifrac", *inputs]
        if not table or not Path(table).is_dir():  # a store has its tree
            argv += ["--tree", tree or "TREE"]
        argv += ["--output", f"{folder}/unifrac.tsv"]
        yield "UniFrac distances, to compare with the embedding:", shlex.join(["aam", *argv])
    if run.embeddings is not None and not report.colours:
        argv = ["report", "--run-dir", folder, "--metadata", metadata or "METADATA"]
        argv += ["--color-by", run.target or "COLUMN"]
        yield "Embedding coloured by metadata columns:", shlex.join(["aam", *argv])


def render(template: str, **values: Any) -> str:
    """Render a Jinja template to a self-contained HTML page; texts among `values` are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("aam.report", ""),
        # Names of samples, columns and classes may hold markup.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (
        (files("aam.report") / name).read_text(encoding="utf-8")
        for name in ("style.css", "page.js")
    )
    # The Content-Security-Policy allows only this script, by its hash: a script in the name of a
    # sample does not run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    def unbroken(cell: str) -> str:
        # A value with its interval is broken only before the bracket.
        if len(cell) > _UNBROKEN or "(" not in cell:
            return cell
        return cell.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}(", " (")

    return environment.get_template(template).render(
        svg=Markup,
        style=Markup(style),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data_link=data_link,
        file_name=lambda title: re.sub(r"[^\w]+", "-", title.lower())[:60].strip("-"),
        unbroken=unbroken,
        date=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        version=__version__,
        **values,
    )


def command_line(run: Run) -> str:
    """Return the command line, quoted for a shell."""
    argv = [str(argument) for argument in run.facts.get("argv") or []]
    return shlex.join(["aam", *argv[1:]]) if argv else ""
