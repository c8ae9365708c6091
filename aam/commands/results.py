"""`aam report`, `compare` and `evaluate`: the commands that read the results of runs."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from aam.console import info, print_text, warn, working
from aam.contract.errors import UsageError
from aam.contract.files import refuse_existing, write_json
from aam.contract.options.commands.use import Compare, Evaluate, Report
from aam.contract.options.groups import listed
from aam.contract.run_files import target_folders
from aam.data.joined_metadata import relabelled
from aam.data.metadata import ID_HEADER, read_metadata
from aam.data.targets import has_classes
from aam.evaluation.external_validation import one_class_score
from aam.evaluation.meta_analysis import StudyScores, resample
from aam.evaluation.metrics import rows_by, summary
from aam.evaluation.prediction_files import join_labels, other_labels, read_predictions
from aam.pipeline.run_crate import write_crate
from aam.report.asvs import read_abundances
from aam.report.comparison import compare_runs
from aam.report.methods import bibtex, paragraph
from aam.report.page import require_page, write_report
from aam.report.run import ReportInput, read_run
from aam.report.terminal import print_table, show, studies_table


def run_report(options: Report) -> None:
    """Write the page, or one for each target, and figures; existing ones are replaced."""
    targets = target_folders(options.run_dir)
    if targets and options.output is not None:
        evidence = f"--output {options.output}, {len(targets)} targets in '{options.run_dir}'"
        remedy = "leave it out, or name the folder of one target with --run-dir"
        raise UsageError("One page for several targets", evidence, remedy)
    for folder in targets or [options.run_dir]:
        page = options.output or folder / "report.html"
        with working("Reading the run"):
            run = read_run(folder)
        if options.methods:
            print_text(f"{paragraph(run)}\n\n{bibtex(run)}")
            if options.figures is None:
                continue
        require_page(page, "name another file for the page with --output")
        with working("Drawing the report"):
            report_input = ReportInput.of(
                run,
                options.metadata,
                options.color_by,
                options.categories,
                options.unit,
                read_abundances(run),
            )
            write_report(report_input, page)
        if options.output is None:
            write_crate(folder)
        info(f"Report: {page}")
        if options.figures is not None:
            # Matplotlib takes half a CPU-second to import; the other commands do not need it.
            from aam.report.figure_files import write_figures

            figures = options.figures / folder.name if targets else options.figures
            with working("Drawing the figures"):
                written = write_figures(report_input, figures, options.format, options.width)
            info(f"Figures: {len(written)} in '{figures}', each with its numbers as TSV")


def run_compare(options: Compare) -> None:
    """Print the tables, and write the page if --output is given; an existing one is replaced."""
    if len(options.run_dirs) < 2:
        raise UsageError("One run cannot be compared", str(*options.run_dirs), "name two or more")
    with working("Comparing the runs"):
        tables = compare_runs([read_run(folder) for folder in options.run_dirs], options.output)
    for table in tables:
        print_table(table)
    if options.output is not None:
        info(f"Comparison: {options.output}")


def run_evaluate(options: Evaluate) -> None:
    """Score a model in another study, or print the metrics of predictions; --output stores them."""
    if options.model is not None:
        # The members take a CPU-second to import; metrics of predictions do not need them.
        from aam.pipeline.validate import validate

        validate(options)
        return
    if options.predictions is None:
        evidence, remedy = "neither --model nor --predictions", "give one of the two"
        raise UsageError("Nothing to evaluate", evidence, remedy)
    if options.output is not None:
        refuse_existing(options.output, options.overwrite)
    frame = read_predictions(options.predictions, options.metadata_column)
    described = [read_metadata(options.metadata)]
    (metadata,) = relabelled(described, options.relabel, options.relabel_file)
    frame = frame.iloc[metadata.rows_where(options.where, frame[ID_HEADER].tolist())]
    levels, column = listed(options.ordinal), options.metadata_column
    has_words = not levels and has_classes(metadata, column)
    scored, ids = join_labels(frame, metadata, column, options.classifier or has_words, levels)
    # Metrics of a column that the model does not predict look like metrics of a bad model.
    if differing := other_labels(frame, scored, ids):
        warn(
            f"'{column}' differs from the true values in '{options.predictions}' in {differing} of "
            f"{len(ids)} samples: another column was predicted, or the metadata changed since."
        )
    scores = summary(scored, column)
    studies = None
    if scored.studies and (scored.type != "classification" or scored.probabilities is not None):
        # Files of predictions have no subjects: every sample is a unit.
        studies = StudyScores.of("study", resample(scored, np.array(ids)))
        scores["summaries"] = {name: asdict(summary) for name, summary in studies.summaries.items()}
    if options.by:
        scores["by"] = {
            column: {
                name: scored.take(rows).metrics()
                for name, rows in rows_by(metadata.values(column, ids).tolist()).items()
            }
            for column in metadata.listed(options.by)
        }
    if options.output is not None:
        write_json(options.output, scores)
    show(scores)
    if one_class := one_class_score(scored, len({*ids})):
        info(f"{': '.join(one_class)}.")
    if studies is not None:
        print_table(studies_table(studies, scored.classes))
    if options.output is not None:
        info(f"Metrics: {options.output}")
