"""Documents, scripts and examples: command lines parse, paths exist, defaults are the real ones."""

from __future__ import annotations

import doctest
import importlib
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from aam.contract.options import specs
from aam.contract.options.command_line import HELP, parse, parse_known, split_command
from aam.contract.options.commands import find, names
from launcher import commands
from launcher.commands import FORWARDING, NAMES, parse_own
from launcher.plan.inputs import request_of
from launcher.plan.settings import LAUNCHER_OPTIONS
from launcher.slurm.script import SubmitOptions
from tests.support.submissions import SHELLCHECK

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(?:bash|sh|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SCRIPTS = [
    path
    for folder in (".ci", ".github/workflows", "slurm")
    for path in sorted((ROOT / folder).iterdir())
] + [ROOT / "Makefile", ROOT / "demo.sh"]
PROGRAM = re.compile(
    r"""(?:^|\$\()\s*(?:-\ )?(?:run:\ )?(?:\#\ {2,})?(?:exec\ )?  # before a command
    "?(?:[^\s"]*/)?(?:(aam|aam-launch)"?|"?\S+\ -m\ launcher\.cli)\ ((?:[a-z]|--).*)""",
    re.VERBOSE,
)
JOB = re.compile(r"sbatch (?:--\S+ )*(slurm/\w+\.sh) (--.*)")


def command_lines(text: str) -> list[str]:
    """Return the shell lines of `text` that call one of the two programs, joined where broken."""
    return [line for block in FENCE.findall(text) for line in calls(block, "$ ")]


def calls(script: str, prompt: str = "") -> list[str]:
    """Return the lines of a script that call one of the two programs, directly or in a job."""
    lines = []
    for line in script.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix(prompt)
        if job := JOB.search(line):
            (start,) = re.findall(r"^exec (.*)$", (ROOT / job[1]).read_text(), re.MULTILINE)
            line = start.replace('"$@"', job[2])
        if call := PROGRAM.search(line):
            lines.append(f"{call[1] or 'aam-launch'} {call[2]}".replace("aam-launch job ", "aam "))
    return lines


def plain(line: str) -> tuple[list[str], bool]:
    """Return the words of a command line, and whether it is whole.

    A variable becomes its default, or 1; words that another program gives are left out.
    """
    line = re.sub(r" (\|\|?|&&|>|2>) .*$|\) *\|.*$", "", line)
    line = re.sub(r"\$\{\w+:\+[^}]*\}", "", re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", line))
    whole, more = re.subn(r'\.\.\.$|--config \S+|"\$@"|"?\$\{\w+\[@\]\}"?|"\$\{@:\d\}"', "", line)
    whole = re.sub(r"\$\{?[\w#%/*]+\}?|\$\([^)]*\)", "1", whole)
    return shlex.split(whole, comments=True), not more


SHOWN = [
    (f"{path.relative_to(ROOT)}: {line}", line)
    for path in [*DOCUMENTS, *SCRIPTS]
    for line in (command_lines if path.suffix == ".md" else calls)(path.read_text())
]


EXAMPLES = [
    (f"{program} {name} --help: {line.strip()}", line.strip())
    for program, known, class_of in (("aam", names(), find), ("aam-launch", NAMES, commands.find))
    for name in known
    for line in (class_of(name).__doc__ or "")
    .partition("Examples:\n")[2]
    .replace("\\\n", " ")
    .splitlines()
    if line.strip().startswith("aam")
]


@pytest.mark.parametrize(
    "line", [line for _, line in SHOWN + EXAMPLES], ids=[name for name, _ in SHOWN + EXAMPLES]
)
def test_command_lines_parse(line: str) -> None:
    (program, *argv), whole = plain(line)
    argv = [argument for argument in argv if argument not in HELP]
    if program == "aam" and argv[0] != "completion":
        parse(argv, incomplete=not whole)
        return
    launcher_options, rest = parse_known(LAUNCHER_OPTIONS.values(), argv)
    command, arguments = split_command(rest, NAMES)
    if command == "submit":
        _, arguments = parse_known(specs(SubmitOptions), arguments)
    if command in FORWARDING or command not in NAMES:
        incomplete = command == "explain" or not whole
        request_of(launcher_options, arguments if command in NAMES else rest, incomplete=incomplete)
    else:
        parse_own(commands.find(command), arguments, command)


@pytest.mark.parametrize(
    "document",
    ["README.md", "docs/tutorial_infant_age.md", "docs/tutorial_several_studies.md"],
)
def test_short_help_has_the_options_of_readme_and_tutorial(document: str) -> None:
    shown = []
    for line in command_lines((ROOT / document).read_text()):
        program, *argv = shlex.split(line, comments=True)
        if program == "aam" and argv[0] in names():
            parsed = parse([word for word in argv if word not in HELP], incomplete=True)
            shown += [(line, spec) for flag in parsed.given if (spec := parsed.option(flag))]
    assert len(shown) > 10
    hidden = [f"{spec.flag} in {line}" for line, spec in shown if not (spec.required or spec.basic)]
    assert hidden == []


def test_options_of_the_public_program_are_there_or_absent() -> None:
    commands = ("pretrain", "train", "predict", "evaluate")
    known = {spec.flag for name in commands for spec in specs(find(name) or object)}
    page = (ROOT / "docs" / "from_the_public_aam.md").read_text()
    _, kept, changed, absent = re.split(r"^## .*$", page, flags=re.MULTILINE)
    listed = re.findall(r"`(--[a-z0-9-]+)`", kept.partition("\n* ")[0])
    first = re.compile(r"^\| (`--[^|]*) \|", re.MULTILINE)
    rows = [re.findall(r"`(--[a-z0-9-]+)`", " ".join(first.findall(p))) for p in (changed, absent)]
    assert min(map(len, [listed, *rows])) > 20
    assert not {*listed, *rows[0]} - known
    assert not {*rows[1]} & known


def test_defaults_named_in_the_table_are_those_of_the_options() -> None:
    table = (ROOT / "docs" / "from_the_public_aam.md").read_text()
    row = re.compile(r"^\| `(--[a-z-]+)` \|.*\bDefault `?([\w.]+)`?[,;: ]", re.MULTILINE)
    options = [spec for name in names() for spec in specs(find(name) or object)]
    named = row.findall(table)
    assert named
    for flag, default in named:
        assert default in {str(spec.default) for spec in options if spec.flag == flag}, flag


def test_tests_named_on_a_command_line_exist() -> None:
    lines = re.findall(r"^(?:\w+=\S+ )?pytest (\S+)(?: -k (\w+))?", DOCUMENTS[1].read_text(), re.M)
    assert lines
    for file, key in lines:
        assert re.search(rf"def test_\w*{key}", (ROOT / file).read_text()), (file, key)


@pytest.mark.parametrize("page", ["README.md", "docs/cosmos_quickstart.md"])
def test_a_clone_has_no_name_of_a_package(page: str) -> None:
    """Python would import a folder `aam` beside a script as an empty namespace."""
    folders = re.findall(r"^git clone \S+ (\S+)", (ROOT / page).read_text(), re.MULTILINE)
    assert folders
    assert not {"aam", "launcher"}.intersection(folders)


def test_links_lead_to_files() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


PATH = re.compile(r"`((?:aam|launcher|containers|tests|docs|benchmarks|slurm|\.ci)/[\w./-]+[\w/])`")
NAME_IN_FILE = re.compile(r"`(\w+)` (?:in|of)\s+`((?:aam|launcher|tests)/[\w/]+\.(?:py|yaml))`")
DOTTED = re.compile(r"`((?:aam|launcher)(?:\.\w+)+)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_and_modules_named_in_documents_exist(document: Path) -> None:
    text = document.read_text()
    paths = [path for path in PATH.findall(text) if "NAME" not in path]
    assert not [path for path in paths if not (ROOT / path).exists()]
    assert not [name for name in DOTTED.findall(text) if not exists(name)]
    for name, path in NAME_IN_FILE.findall(text):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{name} is not in {path}"


def test_names_in_the_pages_for_contributors_exist() -> None:
    files = [
        path
        for folder in ("aam", "launcher", "tests", ".github", "containers")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".yml", ".yaml")
    ]
    words = set(re.findall(r"\w+", "".join(path.read_text() for path in files)))
    for page in sorted((ROOT / "docs" / "how_to").glob("*.md")):
        named = re.findall(r"`(\w*_\w*|[A-Z]\w+)`", page.read_text())
        assert {*named} <= words, page.name


PLACE = re.compile(
    r"(?<![\w/$}.-])((?:aam|launcher|containers|tests|docs|benchmarks|slurm|plugins|\.ci|\.github)"
    r"/[\w./*-]*[\w/*])"
)
STARTED = re.compile(r"-m ((?:aam|launcher)(?:\.\w+)+)")
MADE = re.compile(
    r"(?:`|^\s*(?:- )?(?:run: )?|step \w+ (?:env \S+ )?)make (?:\w+=\S+ )*([a-z][\w-]*)", re.M
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_paths_and_modules_of_scripts_exist(script: Path) -> None:
    text = script.read_text()
    written = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line]
    paths = [path for path in PLACE.findall(text) if path not in written and "NAME" not in path]
    assert not [path for path in paths if not any(ROOT.glob(path))]
    assert not [name for name in STARTED.findall(text) if not exists(name)]


def test_targets_of_make_exist() -> None:
    known = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {path.name: MADE.findall(path.read_text()) for path in [*DOCUMENTS, *SCRIPTS]}
    assert not [(name, t) for name, targets in named.items() for t in targets if t not in known]
    assert sum(map(len, named.values())) > 20


@pytest.mark.parametrize(
    "script", [p for p in SCRIPTS if p.suffix in ("", ".sh", ".yml") and p.name != "Makefile"],
    ids=lambda path: path.name,
)  # fmt: skip
def test_scripts_and_steps_of_workflows_are_valid_shell(script: Path) -> None:
    """Jobs of a workflow need others of the same workflow, and call files that exist."""
    jobs: dict[str, Any] = {}
    shells = [script.read_text()]
    if script.suffix == ".yml":
        jobs = yaml.safe_load(shells.pop()).get("jobs", {})
        runs = [
            step["run"] for job in jobs.values() for step in job.get("steps", ()) if "run" in step
        ]
        shells = ["#!/bin/bash -e\n" + re.sub(r"\$\{\{.*?\}\}", "1", run) for run in runs]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= jobs.keys()
        assert (ROOT / job.get("uses", "")).exists()
    for shell in shells:
        if re.match(r"#!.*\bbash", shell):
            argv = [str(SHELLCHECK), "--exclude=SC1091", "-"]
            done = subprocess.run(argv, input=shell, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or a name in the module or package above it."""
    place = ROOT.joinpath(*name.split("."))
    sources = [place.parent.with_suffix(".py"), place.parent / "__init__.py"]
    above = "".join(path.read_text() for path in sources if path.exists())
    module = place.is_dir() or place.with_suffix(".py").exists()
    return module or re.search(rf"\b{place.name}\b", above) is not None


def test_the_tables_and_the_picture_of_the_results_are_those_of_their_files() -> None:
    drawing = runpy.run_path(str(ROOT / "benchmarks" / "draw_results.py"))
    old = drawing["PAGE"].read_text(encoding="utf-8")
    assert all(table in old for table in drawing["tables"]().values())
    assert drawing["page"](old) == old
    assert drawing["PICTURE"].read_text(encoding="utf-8") == drawing["picture"](
        drawing["read_tasks"]()
    )


def test_messages_explained_in_troubleshooting_exist() -> None:
    page = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())
    ours = page.partition("## In the log of a job")[0]  # what follows is also of other programs
    quoted = re.findall(r"`([A-Z][a-z]+ [^`]*)`", ours)
    pieces = [piece.strip() for message in quoted for piece in message.split("...")]
    files = [path for folder in ("aam", "launcher") for path in (ROOT / folder).rglob("*.py")]
    source = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in files))
    assert len(pieces) > 8
    assert not [piece for piece in pieces if piece not in source]


# --- examples in docstrings


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("aam/**/*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert attempted
    assert not failed
