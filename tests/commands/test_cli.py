"""Command line of `aam`: help pages, refused arguments, and modules that it must not import."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import typing
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from aam.cli import main
from aam.contract.errors import UsageError
from aam.contract.options import OptionSpec, specs
from aam.contract.options.command_line import parse_command
from aam.contract.options.commands import COMMANDS, EVERYDAY, find, names
from aam.contract.options.conditions import of_member
from aam.contract.options.help_page import requirements
from aam.contract.version import __version__
from launcher import commands
from launcher.cli import main as launch
from tests.support.launches import parse as parse_launch
from tests.support.parsing import built

ROOT = Path(__file__).parents[2]
PROGRAMS = {"aam": main, "aam-launch": launch}
HEAVY = {"torch", "numpy", "tyro", "rich", "safetensors", "biom", "skbio", "sklearn", "pandas"}


def help_of(program: str, *args: str, columns: int = 80) -> str:
    """Return the page that a program prints in a terminal of some width."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as page:
        patch.setenv("COLUMNS", str(columns))
        assert PROGRAMS[program](args) == 0
    return page.getvalue()


def shown_default(spec: OptionSpec) -> str:
    """How a help page shows the default of an option."""
    if spec.default is True:
        return f"(default: on; --no-{spec.flag[2:]} turns it off)"
    if spec.required or spec.default in (None, False, "", ()):
        return ""
    shown = spec.default if isinstance(spec.default, tuple) else (spec.default,)
    return f"(default: {' '.join(map(str, shown))})"


@pytest.mark.parametrize("command", names())
def test_help_lists_every_option(command: str) -> None:
    page = " ".join(help_of("aam", *command.split(), "--help-all").split())
    for spec in specs(typing.cast(type, find(command))):
        # The words after the flag: its value, its help, its default, and so on to the next option.
        text = re.escape(spec.help + requirements(spec))
        pattern = rf"(?<!\S){spec.flag} (?:\S+ )?{text}( Choices: [^.]*\.)?(.*)"
        found = re.search(pattern, page)
        assert found, spec.flag
        assert found[2].strip().startswith(shown_default(spec)), spec.flag
        assert all(str(choice) in found[0] for choice in spec.choices), spec.flag


@pytest.mark.parametrize("command", names())
def test_help_shows_required_options_then_basic_ones(command: str) -> None:
    kind = typing.cast(type, find(command))
    page = help_of("aam", *command.split(), "--help")
    shown = re.findall(r"^  (--[a-z0-9-]+)", page.partition("\nExamples\n")[0], re.MULTILINE)
    required = [spec.flag for spec in specs(kind) if spec.required]
    basic = [spec for spec in specs(kind) if spec.basic and not spec.required]
    own = [spec.flag for spec in basic if hasattr(kind, "chosen_members") and of_member(spec)]
    others = [spec.flag for spec in basic if spec.flag not in own]
    assert shown == [*required, *others, "--config", *own]
    assert ("Transformer only" in page.splitlines()) == bool(own)
    assert len(shown) <= (32 if command == "search" else 29)  # with the options of `train` too
    examples = page.partition("\nExamples\n")[2]
    assert examples.count(f"aam {command}") == 2


@pytest.mark.parametrize("command", ["pretrain", "train"])
def test_the_launcher_shows_the_options_of_a_command_too(command: str) -> None:
    of_aam = help_of("aam", command, "--help-all").partition("\nRequired options\n")[2]
    sections = of_aam.partition("\nExamples\n")[0].strip()
    for args in ([], ["submit"], ["explain"]):
        page = help_of("aam-launch", *args, command, "--help-all")
        assert sections in page
        assert "--image NAME" in page
        assert f"aam-launch {' '.join([*args, command])} " in page.partition("\nExamples\n")[2]
        assert ("--time TIME" in page) == (args == ["submit"])


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", [*names(), ""])
def test_help_is_wrapped_at_the_width_of_the_terminal(command: str, columns: int) -> None:
    every = ["--help-all"] if command else ["--help"]
    for program in PROGRAMS:
        page = help_of(program, *command.split(), *every, columns=columns)
        text = page.partition("\nExamples\n")[0] if columns < 80 else page
        assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("command", commands.NAMES)
def test_help_of_the_launchers_own_commands(command: str) -> None:
    page = help_of("aam-launch", *command.split(), "--help")
    assert max(map(len, page.splitlines())) <= 80
    assert page.partition("\nExamples\n")[2].count("aam-launch ") >= 2
    assert all(spec.flag in page for spec in specs(commands.find(command)))


@pytest.mark.parametrize("args", [[], ["--help"], ["--version"], ["trian"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from aam.cli import main\n"
        "main(sys.argv[1:])\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert not HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def test_a_refused_training_imports_no_library_of_the_models(tmp_path: Path) -> None:
    """Wrong paths, columns and options, and a folder with a run: half a CPU-second each."""
    (tmp_path / "metadata.tsv").write_text("#Sample ID\tph\tsubject\n\ns1\t7\ta\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    train = ["train", "--table", "metadata.tsv", "--metadata", "metadata.tsv"]
    train += ["--output-dir", "new"]
    refused = [
        ([*train, "--metadata-column", "ph", "--table", "none"], 66, "No file for --table"),
        ([*train, "--metadata-column", "ph", "--output-dir", "run"], 73, "already holds a run"),
        ([*train, "--metadata-column", "pH"], 65, "no column 'pH'"),
        ([*train, "--metadata-column", "ph,pH"], 65, "no column 'pH'"),
        ([*train, "--metadata-column", "ph", "--group-column", "host"], 65, "no column 'host'"),
        ([*train, "--metadata-column", "ph", "--group-column", "ph"], 64, "groups are the target"),
        (
            [*train, "--metadata-column", "ph", "--freeze-base"],
            64,
            "--freeze-base without --pretrained-encoder",
        ),
        ([*train, "--metadata-column", "ph,ph"], 64, "Duplicate target"),
        (["pretrain", "--table", "metadata.tsv", "--output-dir", "run"], 73, "already holds a run"),
        (["predict", "--table", "none", "--model", "run", "--output", "o"], 66, "--table: 'none'"),
    ]
    code = (
        "import json, sys\n"
        "from aam.cli import main\n"
        "print(json.dumps([main(args) for args in json.loads(sys.argv[1])]))\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    calls = json.dumps([args for args, _, _ in refused])
    done = subprocess.run(
        [sys.executable, "-c", code, calls], capture_output=True, text=True, cwd=tmp_path
    )
    statuses, modules = map(json.loads, done.stdout.splitlines())
    messages = [line for line in done.stderr.splitlines() if line.startswith("aam: ")]
    assert statuses == [status for _, status, _ in refused]
    assert [
        part for (_, _, part), line in zip(refused, messages, strict=True) if part not in line
    ] == []
    assert not (HEAVY - {"numpy", "rich"}) & set(modules)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_overview_describes_everyday_commands_and_names_the_others(program: str) -> None:
    short, full = (help_of(program, flag) for flag in ("--help", "--help-all"))
    assert len(full.splitlines()) > len(short.splitlines())
    commands, _, more = short.partition("\nMore\n")
    for name in names():
        summary = (typing.cast(type, find(name)).__doc__ or "").splitlines()[0]
        described = f" {name} {summary} "
        assert described in " ".join(full.split()) + " "
        everyday = name in COMMANDS[EVERYDAY]
        assert (described in " ".join(commands.split()) + " ") == everyday
        assert (name in re.split(r"  +|, |\n", more)) != everyday


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_and_version_have_their_usual_forms(program: str) -> None:
    assert help_of(program, "help", "train") == help_of(program, "train", "--help")
    assert help_of(program, "help") == help_of(program, "-h") == help_of(program, "--help")
    assert help_of(program, "-V") == help_of(program, "--version") == f"{program} {__version__}\n"


@pytest.mark.parametrize("command", ["train", "check", "golden compare", "unifrac"])
def test_gpu_is_another_word_for_cuda(command: str) -> None:
    given = (option for option in specs(typing.cast(type, find(command))) if option.required)
    paths = [part for option in given for part in (option.flag, "x")]
    assert parse_command(command, [*paths, "--device", "gpu"])["--device"] == "cuda"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("trian --table t", "No such command: 'trian'; did you mean 'train'?"),
        ("example --output-dir out --sampels 3",
         "`example` has no such option: '--sampels'; did you mean '--samples'?"),
    ],
)  # fmt: skip
def test_an_unknown_word_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str], args: str, sentence: str
) -> None:
    assert main(args.split()) == 64
    assert capsys.readouterr().err == f"aam: {sentence}\n"


@pytest.mark.parametrize(
    ("command", "flag", "remedy"),
    [
        ("train", "--quiet", "2>/dev/null"),
        ("train", "-v", "all messages are printed"),
        ("train", "--m-metadata-file=map.tsv", "write --metadata"),
        ("train", "-o", "write --output-dir"),
        ("predict", "-o", "write --output"),
        ("train", "--random_state", "write --seed"),
        ("train", "--n-jobs", "write --cpu-threads"),
        # Neither near in spelling nor in meaning: no option is proposed.
        ("inspect", "--jobs", "see `aam inspect --help`"),
        ("train", "--equality", "see `aam train --help`"),
        ("train", "--size", "see `aam train --help`"),
        ("train", "--weights-of-classes", "see `aam train --help`"),
        ("search", "--group", "write --group-column"),
    ],
)
def test_an_option_of_another_program_is_answered_with_the_same_one_here(
    capsys: pytest.CaptureFixture[str], command: str, flag: str, remedy: str
) -> None:
    assert main([*command.split(), flag, "x"]) == 64
    shown = capsys.readouterr().err
    assert remedy in shown
    assert "did you mean" not in shown


@pytest.mark.parametrize(
    "args",
    [
        ["example"],
        ["example", "--output-dir", "out", "--samples", "many"],
        ["example", "--output-dir", "out", "--samples"],
        ["unifrac", "--table", "t", "--tree", "n", "--output", "o", "--unifrac-metric", "wieghted"],
    ],
)
def test_a_wrong_value_is_a_usage_error(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 64
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "off"),
        (["--compile-model"], "auto"),
        (["--compile-model", "--device", "cpu"], "auto"),
        (["--compile_model", "force"], "force"),
        (["--compile-model=force"], "force"),
        (["--compile-model", "off"], "off"),
    ],
)
def test_an_option_may_stand_alone_in_both_programs(args: list[str], expected: str) -> None:
    line = ["--table", "t.biom", "--output-dir", "out", *args]
    assert built("pretrain", line).speed.compile_model == expected
    launched = parse_launch(["pretrain", *line])
    assert launched.value("--compile-model") == expected
    assert built("pretrain", launched.arguments).speed.compile_model == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_terminal_of_ascii_shows_every_page(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", page)
    PROGRAMS[program](["--version"])
    print("R² of fil\udcff")
    page.flush()
    assert page.buffer.getvalue().endswith(b"R\\xb2 of fil\\udcff\n")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("chosen", "policy"),
    [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")],
)
def test_threads_sleep_while_they_wait_unless_the_user_chose(
    tmp_path: Path, chosen: dict[str, str], policy: str
) -> None:
    """OpenMP prints its settings when a library imports it, before the model is read."""
    for name in ("table.tsv", "model.ckpt"):
        (tmp_path / name).write_text("no content")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    args = ["predict", "--table", "table.tsv", "--model", "model.ckpt", "--output", "out.tsv"]
    done = subprocess.run(
        [sys.executable, "-m", "aam.cli", *args],
        env=variables | {"OMP_DISPLAY_ENV": "true"} | chosen,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 66
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


@pytest.mark.medium
def test_train_takes_table_metadata_and_column_without_flags(
    study_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder of the run is named after the column; a fourth word has no option."""
    monkeypatch.chdir(tmp_path)
    files = (str(study_dir / "table.biom"), str(study_dir / "metadata.tsv"))
    assert main(["train", *files, "ph", "--members", "kernel", "--folds", "2"]) == 0
    assert (tmp_path / "ph" / "scores.json").exists()
    assert main(["train", *files, "ph", "more"]) == UsageError.status
    assert main(["train", *files]) == UsageError.status
    lacking = capsys.readouterr().err.splitlines()[-1]
    assert "--metadata-column" in lacking and "--output-dir" not in lacking
