"""`aam example`, `prepare` and `inspect`: the commands about a study, without a model."""

from __future__ import annotations

import json
import os
import shutil
import textwrap

from aam.console import info, working
from aam.contract.errors import CannotCreate, UsageError, printable
from aam.contract.files import refuse_existing
from aam.contract.options import build, values_of
from aam.contract.options.commands.studies import Example, Inspect, Prepare
from aam.contract.options.groups import TableOptions
from aam.contract.options.help_page import WIDEST
from aam.data.identity import Abundances
from aam.data.prepare import prepare
from aam.data.simulation import require_free, simulate, study_folders, write_study
from aam.data.store import Store, is_part, is_store
from aam.data.study_inspection import Inspection, StudyFinding, inspect
from aam.evaluation.subjects import find_subjects
from aam.serialization.folders import atomic_folder

MAX_COLUMNS = 60  # columns of the metadata up to which `inspect` prints those without a warning
LONGEST_TEXT = 5000  # characters of a finding; the middle of a longer one is left out
MARKS = {"fact": "", "warning": "warning", "error": "ERROR"}


def run_example(options: Example) -> None:
    """Simulate the study and write all of its files, or none."""
    require_free(options)
    study = simulate(options)
    places = write_study(study, options)
    title = f"{options.studies} simulated studies" if options.studies else "Simulated study"
    info(
        f"{title}: {len(study.sample_ids)} samples x {len(study.feature_ids)} ASVs, "
        f"{study.richness.mean():.0f} ASVs and {study.reads.mean():.0f} reads a sample on average: "
        f"{', '.join(str(path.relative_to(options.output_dir)) for path in places)} in "
        f"{options.output_dir}"
    )
    folders = study_folders(options)
    if options.studies:
        tables = " ".join(f"--table {folder / 'table.biom'}" for folder in folders)
        metadata = " ".join(f"--metadata {folder / 'metadata.tsv'}" for folder in folders)
        names = ",".join(folder.name for folder in folders)
        info(
            f"Next: aam prepare {tables} {metadata} --studies {names} "
            f"--output {options.output_dir / 'joined.aam'}"
        )
    else:
        info(f"Next: aam inspect {folders[0] / 'table.biom'} {folders[0] / 'metadata.tsv'} ph")


def run_prepare(options: Prepare) -> None:
    """Write a store, or verify the checksums of one."""
    output = options.output
    if options.verify:
        for folder in options.table:
            info(f"'{folder}' is intact: the checksums of {Store(folder).verify()} files match.")
        return
    if output is None:
        raise UsageError("Nowhere to write", "--output was not given", "name a folder")
    if stores := [str(table) for table in options.table if is_store(table)]:
        remedy = "use it as it is, or name the files from which it was made"
        raise UsageError("The table is already a prepared study", f"'{stores[0]}'", remedy)
    # Before the slow reading of the tables. --overwrite replaces a prepared study only.
    if not os.path.isdir(output):  # pathlib's raises for a name that is too long
        refuse_existing(output, overwrite=False)
    elif not options.overwrite:
        raise CannotCreate("The output exists", f"'{output}'", "add --overwrite to replace it")
    elif not is_store(output) and any(output.iterdir()):
        raise CannotCreate(
            "The output is a folder that `aam prepare` did not write",
            f"'{output}'",
            "--overwrite replaces a prepared study only; name another folder",
        )
    elif foreign := [path.name for path in output.iterdir() if not is_part(path)]:
        raise CannotCreate(
            "The prepared study has files that `aam prepare` did not write",
            f"'{output}' has {', '.join(sorted(foreign))}",
            "move them, or name another folder",
        )
    with atomic_folder(output, options.overwrite) as folder:
        samples, asvs, entries = prepare(options, folder)
    info(
        f"{samples} samples x {asvs} ASVs, {entries} counts: '{output}'. "
        f"Give it as --table{', and as --metadata' if options.metadata else ''}."
    )


def run_inspect(options: Inspect) -> int:
    """Print the findings as a table or as JSON, and write the page."""
    if options.report is not None:
        from aam.report.page import require_page

        require_page(options.report)
    input = build(TableOptions, values_of(options))
    with working("Reading the study"):
        inspection, target = inspect(input, options.tree, options.metadata), None
    if options.metadata_column is not None and inspection.metadata is not None:
        # scikit-learn takes 0.5 CPU-seconds to import; the findings about files need none of it.
        from aam.pipeline.preview import inspect_target

        with working("Looking for columns that predict the target"):
            target = inspect_target(inspection, options)
    elif (study := inspection.study) is not None:
        ids = study.table.sample_ids
        inspection.read(
            "reads", lambda: find_subjects(None, "auto", None, ids, Abundances.of(study))
        )
    if options.json:
        findings = [vars(finding) for finding in inspection.findings]
        print(json.dumps({"status": inspection.status, "findings": findings}, indent=2))
    else:
        _print(inspection)
    if options.report is not None:
        # matplotlib and jinja2 take 0.4 CPU-seconds to import.
        from aam.report.inspection import write_inspection

        with working("Drawing the report"):
            write_inspection(inspection, target, options.table.name, options.report)
        info(f"Report: {options.report}")
    return inspection.status


def _print(inspection: Inspection) -> None:
    visible, columns = (
        inspection.findings,
        () if inspection.metadata is None else inspection.metadata.columns,
    )
    if len(columns) > MAX_COLUMNS:
        # With so many columns, only columns with a warning.
        visible = [
            finding
            for finding in visible
            if finding.severity != "fact" or finding.subject not in columns
        ]
        visible.append(StudyFinding("fact", "columns", f"--json lists all {len(columns)}"))
    subjects = max((len(finding.subject) for finding in visible), default=0)
    first = min(max(subjects, 8), 22) + 2
    indent, width = first + 9, min(WIDEST, shutil.get_terminal_size().columns)
    previous = ""
    for result in visible:
        subject = printable(result.subject)
        subject = subject if len(subject) < first else f"{subject[: first - 5]}..."
        name = "" if result.subject == previous else subject
        previous = result.subject
        text = printable(result.text, LONGEST_TEXT)
        lines = textwrap.wrap(text, max(20, width - indent), break_on_hyphens=False) or [""]
        print(f"{name:<{first}}{MARKS[result.severity]:<9}{lines[0]}".rstrip())
        for line in lines[1:]:
            print(" " * indent + line)
