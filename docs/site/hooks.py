"""MkDocs hooks: pages made from the options, README.md and CHANGELOG.md, and links out of docs/.

MkDocs reads `docs/` alone. The hooks add the documents of the repository's root, a page of options
for each command of `aam` and one for `aam-launch`, and a page with the report of a run, which the
variable AAM_SAMPLE_REPORT names (`make docs` makes it). Links to source files, which are not part
of the site, become paths.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from aam.contract.options import OptionSpec, specs, summary
from aam.contract.options.command_line import metavar
from aam.contract.options.commands import find, names
from aam.contract.options.help_page import requirements
from launcher.commands import NAMES as OWN_NAMES
from launcher.commands import find as own_command
from launcher.plan.settings import LAUNCHER_OPTIONS

ROOT = Path(__file__).parents[2]
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CITATION.cff": "citation.md",
}
CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
BOOST = {"troubleshooting.md": 5, "experiments": 0.2, "decisions": 0.2, "changelog.md": 0.2}
"""Weights of pages and folders in the search: an error message leads to its remedy."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


SAMPLE = """# A report

The report of the example study, as `aam train` writes it: one file, which needs no network.
[Reading the report](report.md) explains its parts.

```bash
aam example --output-dir study
aam train study/table.biom study/metadata.tsv ph --group-column subject \\
    --taxonomy study/taxonomy.tsv --output-dir ph
```

"""
FRAME = """<a href="report_of_the_example.html">In a window of its own</a>
<iframe src="report_of_the_example.html" title="Report of the example study"></iframe>
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the report of a run if there is one."""
    for uri, text in _generated():
        files.append(File.generated(config, uri, content=text))
    frame = "Here is the report in the site of `make docs`.\n"
    if report := os.environ.get("AAM_SAMPLE_REPORT"):
        page = Path(report).read_text(encoding="utf-8")
        files.append(File.generated(config, "report_of_the_example.html", content=page))
        frame = FRAME
    files.append(File.generated(config, "sample_report.md", content=SAMPLE + frame))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site; links to other files of the repository become paths."""
    folder = posixpath.dirname(page.file.src_uri)
    page.meta["search"] = {"boost": BOOST.get(folder or page.file.src_uri, 1)}
    sources = {target: source for source, target in FROM_ROOT.items()}
    origin = posixpath.dirname(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def replaced(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match.group()
        path = posixpath.normpath(posixpath.join(origin, target))
        uri = FROM_ROOT.get(path, path.removeprefix("docs/"))
        if (ROOT / path).is_dir():
            uri = f"{uri}/index.md"
        if files.get_file_from_path(uri) is None:
            return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"
        return f"{image}[{text}]({posixpath.relpath(uri, folder)}{anchor or ''})"

    return LINK.sub(replaced, markdown)


def on_page_content(html: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Mark the options in code blocks: browsers break lines behind the dashes of unmarked ones."""
    return CODE.sub(lambda code: FLAG.sub(r'<span class="flag">\g<0></span>', code.group()), html)


def _generated() -> Iterator[tuple[str, str]]:
    """Yield path and Markdown text of each generated page."""
    for source, target in FROM_ROOT.items():
        text = (ROOT / source).read_text()
        fenced = f"# Citation\n\n`CITATION.cff`:\n\n```yaml\n{text}```\n"
        yield target, fenced if source.endswith(".cff") else text
    for folder, title in (
        ("how_to", "How to extend AAM"),
        ("decisions", "Decisions"),
        ("experiments", "Experiments"),
    ):
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        lines = [
            f"* [{page.read_text().splitlines()[0].lstrip('# ')}]({page.name})" for page in pages
        ]
        yield f"{folder}/index.md", f"# {title}\n\n" + "\n".join(lines) + "\n"
    rows = []
    for name in names():
        command = find(name)
        assert command is not None
        page = "-".join(name.split())
        rows.append(f"| [`aam {name}`]({page}.md) | {summary(command)} |")
        yield f"reference/{page}.md", _described(f"# aam {name}", command, "##")
    own = [_described(f"## aam-launch {name}", own_command(name), "") for name in OWN_NAMES]
    everywhere = "Options of the launcher, anywhere on the command line:"
    table = _table(LAUNCHER_OPTIONS.values())
    yield "reference/aam-launch.md", "\n\n".join(["# aam-launch", everywhere, table, *own])
    rows.append("| [`aam-launch`](aam-launch.md) | Options of the launcher and its own commands. |")
    head = "# Options of every command\n\n| command | |\n|---|---|\n"
    yield "reference/index.md", head + "\n".join(rows) + "\n"


def _described(title: str, command: type, heading: str) -> str:
    """Return title, description, options and examples of a command.

    With a `heading` such as "##" each group of options has one.
    """
    text, _, examples = (command.__doc__ or "").partition("Examples:\n")
    parts = [title, inspect.cleandoc(text).rstrip()]
    options = specs(command)
    for group in dict.fromkeys(spec.group for spec in options):
        if heading:
            name = "Options" if group == summary(command) else group.rstrip(".")
            parts.append(f"{heading} {name}")
        parts.append(_table(spec for spec in options if spec.group == group))
    lines = [
        " \\\n    ".join(textwrap.wrap(" ".join(line.split()), 72, break_on_hyphens=False))
        for line in examples.strip().splitlines()
    ]
    if lines:
        parts.append("\n".join(["```sh", *lines, "```"]))
    return "\n\n".join(parts)


def _table(options: Iterable[OptionSpec]) -> str:
    """Return a table of options, required ones first."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for spec in sorted(options, key=lambda spec: not spec.required):
        flag = (f"`{metavar(spec)}` or " if spec.first else "") + f"`{spec.flag}`"
        default = "required" if spec.required else _shown(spec.default)
        meaning = re.sub(r" \[(input|output)\]$", "", spec.help) + requirements(spec)
        if len(spec.choices) > 1:
            meaning += f" Values: {', '.join(map(str, spec.choices))}."
        meaning = meaning.replace("|", r"\|")
        rows.append(f"| {flag} | {default} | {meaning} |")
    return "\n".join(rows)


def _shown(default: object) -> str:
    if default is True:
        return "on"
    if default in (None, False, ()):
        return ""
    value = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"`{value}`" if value else ""
