"""HTML page of the report: self-contained, without scripts, with a light and a dark scheme."""

from __future__ import annotations

from importlib.resources import files

from aam import __version__
from aam.report import content
from aam.report.colours import Colour
from aam.report.pictures import PictureInput, draw_section
from aam.report.run import Run


def page(run: Run, colour: Colour | None = None, without_colour: str = "") -> str:
    """Return the HTML page of a run.

    Args:
        run: the run.
        colour: metadata that colours the samples of the embedding; None for no colours.
        without_colour: sentence that explains why there are none.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("aam.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((here / "page.html.j2").read_text(encoding="utf-8"))
    title, sentence = content.heading(run)
    given = PictureInput(run, colour, without_colour)
    heads, rows = content.figure_rows(run)
    return template.render(
        svg=Markup,
        style=Markup((here / "style.css").read_text(encoding="utf-8")),
        version=__version__,
        title=title,
        sentence=sentence,
        name=run.folder.resolve().name,
        finished=run.facts.get("finished"),
        pretraining=run.target is None,
        tiles=content.tiles(run),
        curves=draw_section("learning", given),
        scored=draw_section("predictions", given),
        heads=heads,
        rows=rows,
        baseline_note=content.baseline_note(run),
        embedding=draw_section("embedding", given),
        inputs=content.input_rows(run),
        facts=content.fact_rows(run),
        options=content.option_rows(run),
        command=content.command_line(run),
    )
