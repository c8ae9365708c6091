"""HTML page of the report: self-contained, with a light and a dark scheme."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

from aam import __version__
from aam.console import info, warn
from aam.contract.errors import AamError, CannotCreate
from aam.contract.files import write_text
from aam.data.table import FeatureTable
from aam.report import content, methods
from aam.report.asvs import read_abundances
from aam.report.base import ReportInput
from aam.report.colours import choose_colours
from aam.report.figures.canvas import data_link
from aam.report.missing import missing
from aam.report.models import compare_models
from aam.report.pictures import draw_section
from aam.report.run import read_run
from aam.report.tables import tabulate, verdict

_START = b"<!doctype html>"
"""First bytes of a page, in lower case."""

_UNBROKEN = 30
"""Characters of a value with its interval at most; longer cells are texts."""


def write_report(
    folder: Path,
    output: Path | None = None,
    metadata: Path | None = None,
    color_by: Sequence[str] = (),
    categories: Sequence[str] = (),
    unit: str = "",
    table: FeatureTable | None = None,
) -> Path:
    """Write the page of a run or of one target; an existing one is replaced.

    Args:
        folder: run folder, or the folder of one target in it.
        output: path of the page; None for report.html in the folder.
        metadata, color_by, categories: see `choose_colours`.
        unit: unit of a numeric target, such as months; "" if unknown.
        table: samples of the run; None to read them from the recorded path.

    Returns:
        The path of the page.

    Raises:
        MissingInput, DataError, UsageError: see `read_run` and `choose_colours`.
        CannotCreate: it cannot be written.
    """
    run, place = read_run(folder), output or folder / "report.html"
    colours = choose_colours(run, metadata, color_by, categories)
    given = ReportInput(run, colours, unit, compare_models(run), read_abundances(run, table))
    text = page(given, place)
    write_page(place, text)
    info(f"Report: {place}")
    return place


def write_page(place: Path, text: str) -> None:
    """Write an HTML page; an existing page is replaced, and no other file.

    Raises:
        CannotCreate: the file is no page, or cannot be written.
    """
    if place.is_file():
        with place.open("rb") as stream:
            start = stream.read(len(_START)).lower()
        if start != _START:
            evidence = f"'{place}' is no HTML page"
            raise CannotCreate("The output exists", evidence, "choose another --output")
    write_text(place, text)


def write_report_of_run(folder: Path, table: FeatureTable) -> None:
    """Write the page of a run that has just ended; a fault of a page leaves the run as it is.

    Args:
        folder: run folder.
        table: its samples, which are not read again.
    """
    try:
        write_report(folder, table=table)
    except AamError as error:
        warn(f"No report: {error}")
    except Exception as error:  # the run is complete, whatever a picture meets in it
        warn(f"No report, the run is complete: {type(error).__name__}, {error}")


def page(given: ReportInput, place: Path) -> str:
    """Return the HTML page of a run.

    Args:
        given: the run, its colours and unit.
        place: the file to write, for the addresses of tables.
    """
    run = given.run
    title, sentence = content.heading(run)
    return render(
        "page.html.j2",
        title=title,
        sentence=sentence,
        name=run.folder.resolve().name,
        finished=content.finished(run),
        pretraining=run.target is None,
        verdict=verdict(given),
        measured_on=content.measured_on(run),
        tiles=content.tiles(given),
        tables=tabulate("predictions", given),
        asv_tables=tabulate("asvs", given),
        curves=draw_section("learning", given),
        scored=draw_section("predictions", given),
        asvs=draw_section("asvs", given),
        embeds="transformer" in run.facts.get("members", ("transformer",)),
        embedding=draw_section("embedding", given),
        colours=given.colours if run.has_ordination else (),
        missing=missing(given),
        links=content.file_links(run, place),
        methods=methods.paragraph(run),
        citations=methods.bibtex(run),
        inputs=content.input_rows(run),
        facts=content.fact_rows(run),
        options=content.option_rows(run),
        command=content.command_line(run),
    )


def render(template: str, **values: Any) -> str:
    """Render a template of this package, with the style sheet and the script.

    Args:
        template: file name of a Jinja template of `aam.report`.
        values: variables of the template; texts are escaped, and a missing variable is an error.

    Returns:
        The HTML page, which needs no other file.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("aam.report", ""),
        # Names of samples, columns and classes come from files of others, and a page runs in a
        # browser.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (
        (files("aam.report") / name).read_text(encoding="utf-8")
        for name in ("style.css", "copy.js")
    )
    # The Content-Security-Policy of the page allows this script alone, by its hash: a script in the
    # name of a sample does not run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        svg=Markup,
        style=Markup(style),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data_link=data_link,
        file_name=_file_name,
        unbroken=_unbroken,
        date=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        version=__version__,
        **values,
    )


def _unbroken(cell: str) -> str:
    """Return a value with its interval or deviation that breaks before the bracket alone."""
    if len(cell) > _UNBROKEN or not {"(", "±"} & set(cell):
        return cell
    return cell.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}(", " (")


def _file_name(title: str) -> str:
    """Return a title as the name of a file, in lower case with dashes."""
    return re.sub(r"[^\w]+", "-", title.lower())[:60].strip("-")
