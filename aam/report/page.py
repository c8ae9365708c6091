"""HTML page of the report: self-contained, without scripts, with a light and a dark scheme."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from aam import __version__
from aam.report import content
from aam.report.base import ReportInput
from aam.report.missing import missing
from aam.report.pictures import draw_section
from aam.report.tables import tabulate, verdict


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
        finished=run.facts.get("finished"),
        pretraining=run.target is None,
        verdict=verdict(given),
        measured_on=content.measured_on(run),
        tiles=content.tiles(given),
        tables=tabulate(given),
        curves=draw_section("learning", given),
        scored=draw_section("predictions", given),
        embeds="transformer" in run.facts.get("members", ("transformer",)),
        embedding=draw_section("embedding", given),
        colours=given.colours if run.embeddings is not None else (),
        missing=missing(given),
        links=content.file_links(run, place),
        inputs=content.input_rows(run),
        facts=content.fact_rows(run),
        options=content.option_rows(run),
        command=content.command_line(run),
    )


def render(template: str, **values: Any) -> str:
    """Render a template of this package, with the style sheet."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("aam.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (files("aam.report") / "style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(
        svg=Markup, style=Markup(style), version=__version__, **values
    )
