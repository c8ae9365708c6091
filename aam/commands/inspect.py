"""`aam inspect`: what is wrong or noteworthy with the data of a study."""

from __future__ import annotations

import shutil
import textwrap

from aam.contract.files import refuse_existing, write_json
from aam.contract.options.commands.inspect import Inspect
from aam.contract.options.study import TableOptions
from aam.data.inspection import Inspection, inspect

WIDEST = 100
MARKS = {"fact": "", "warning": "warning", "error": "ERROR"}


def run(options: Inspect) -> int:
    """Print the findings as a table, and write them as JSON; return the status of the first error.

    Raises:
        CannotCreate: the JSON file exists, or cannot be written.
    """
    if options.output is not None:
        refuse_existing(options.output, options.overwrite)
    input = TableOptions(table=options.table, sequences=options.sequences, drop_empty_samples=True)
    found = inspect(input, options.tree, options.metadata, options.metadata_column)
    _print(found)
    if options.output is not None:
        content = {"status": found.status, "findings": [vars(one) for one in found.findings]}
        write_json(options.output, content)
    return found.status


def _print(found: Inspection) -> None:
    """Print a line for each finding: its subject, its severity, its text."""
    subjects = max((len(one.subject) for one in found.findings), default=0)
    first = min(max(subjects, 8), 24) + 2
    indent, width = first + 9, min(WIDEST, shutil.get_terminal_size().columns)
    before = ""
    for one in found.findings:
        shown = one.subject if len(one.subject) < first else f"{one.subject[: first - 4]}..."
        name = "" if one.subject == before else shown
        before = one.subject
        text = textwrap.wrap(one.text, max(20, width - indent), break_on_hyphens=False) or [""]
        print(f"{name:<{first}}{MARKS[one.severity]:<9}{text[0]}".rstrip())
        for line in text[1:]:
            print(" " * indent + line)
