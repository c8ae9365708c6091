"""One self-contained page about a run: no script, nothing fetched, readable light and dark."""

from __future__ import annotations

from importlib.resources import files

from aam import __version__
from aam.report import content
from aam.report.colours import Colour
from aam.report.pictures import curve_pictures, embedding_picture, judged_pictures
from aam.report.run import Run


def page(run: Run, colour: Colour | None = None, without_colour: str = "") -> str:
    """Return the HTML of a run's page.

    Args:
        run: the run.
        colour: what colours the samples of its embedding.
        without_colour: why nothing does.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("aam.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((here / "page.html.j2").read_text(encoding="utf-8"))
    title, sentence = content.heading(run)
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
        curves=curve_pictures(run),
        judged=judged_pictures(run),
        heads=heads,
        rows=rows,
        baseline_note=content.baseline_note(run),
        embedding=embedding_picture(run, colour, without_colour),
        inputs=content.input_rows(run),
        facts=content.fact_rows(run),
        options=content.option_rows(run),
        command=content.command_line(run),
    )
