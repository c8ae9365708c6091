"""MkDocs hooks: pages made from the options, README.md and CHANGELOG.md, and links out of docs/.

MkDocs reads `docs/` alone. The hooks add the documents of the repository's root and a page of
options for each command of `aam`. Links to source files, which are not part of the site, become
paths.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from aam.contract.options import OptionSpec, find, names, specs

ROOT = Path(__file__).parents[2]
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CITATION.cff": "citation.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for uri, text in _generated():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site; links to other files of the repository become paths."""
    folder = posixpath.dirname(page.file.src_uri)
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
    commands = []
    for name in names():
        command = find(name)
        assert command is not None
        page = "-".join(name.split())
        summary = (command.__doc__ or "").strip().splitlines()[0]
        commands.append(f"| [`aam {name}`]({page}.md) | {summary} |")
        yield f"reference/{page}.md", f"# aam {name}\n\n{summary}\n\n{_options(specs(command))}"
    head = "# Options of every command\n\n| command | |\n|---|---|\n"
    yield "reference/index.md", head + "\n".join(commands) + "\n"


def _options(options: tuple[OptionSpec, ...]) -> str:
    """Return a table of options for each group of a command, required options first."""
    text = []
    for group in dict.fromkeys(spec.group for spec in options):
        title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", group.removesuffix("Options")).capitalize()
        rows = sorted((s for s in options if s.group == group), key=lambda spec: not spec.required)
        text += [f"## {title}", "", "| option | default | meaning |", "|---|---|---|"]
        for spec in rows:
            default = "required" if spec.required else _shown(spec.default)
            meaning = re.sub(r" \[(input|output)\]$", "", spec.help).replace("|", r"\|")
            text.append(f"| `{spec.flag}` | {default} | {meaning} |")
        text.append("")
    return "\n".join(text)


def _shown(default: object) -> str:
    if default in (None, False, ()):
        return ""
    value = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"`{value}`"
