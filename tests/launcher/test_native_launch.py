"""Native launches: real command lines up to the exec of `aam`, in real processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aam.contract.errors import UsageError, printable
from aam.contract.options import Role, specs
from aam.contract.options.commands import find, names
from launcher import commands
from launcher.engines import shell_line
from launcher.plan.assembly import Plan
from launcher.plan.environment import Variable
from launcher.plan.inputs import SHARED, Request
from launcher.plan.settings import LAUNCHER_OPTIONS, SETTING_SPECS
from launcher.slurm.script import SubmitOptions
from launcher.slurm.site import TYPES
from tests.support.launches import forked, parse, program

ROOT = Path(__file__).parents[2]
SIMULATE = ["example", "--output-dir", "out"]


def launch(*args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch` as a process of its own, from anywhere."""
    return forked(args, Path.cwd(), {**os.environ, **settings})


def paths(request: Request, role: Role) -> list[tuple[str, str]]:
    return [(spec.flag, str(path)) for spec, path in request.paths(role)]


# --- requests


def test_a_request_names_what_is_read_and_written() -> None:
    args = ["train", "--table", "a b.biom", "--metadata=m.tsv", "--metadata-column", "age"]
    request = parse([*args, "--output_dir", "out", "--no-stratify", "--epochs", "3"])
    assert request.command == "train"
    assert request.given == {
        "--table": Path("a b.biom"), "--metadata": Path("m.tsv"), "--metadata-column": "age",
        "--output-dir": Path("out"), "--stratify": False, "--epochs": 3,
    }  # fmt: skip
    assert request.arguments == (
        "--table", "a b.biom", "--metadata", "m.tsv", "--metadata-column", "age",
        "--output-dir", "out", "--no-stratify", "--epochs", "3",
    )  # fmt: skip
    assert paths(request, "input") == [("--table", "a b.biom"), ("--metadata", "m.tsv")]
    assert paths(request, "output") == [("--output-dir", "out")]
    assert request.value("--lr") == 3e-4  # the default
    assert not request.dry_run


def test_a_value_that_is_no_file() -> None:
    args = ["predict", "--model", "m", "--table", "t", "--output", "None", "--sequences", "None"]
    request = parse(args)
    assert [flag for flag, _ in paths(request, "input")] == ["--table", "--model"]
    assert paths(request, "output") == [("--output", "None")]
    request = parse(["pretrain", "--table", "t", "--output-dir", "o", "--resume-from", "auto"])
    assert [flag for flag, _ in paths(request, "input")] == ["--table"]


def test_negative_numbers_and_lists_are_values() -> None:
    args = ["--table", "t", "--metadata", "m", "--metadata-column", "y", "--output-dir", "o"]
    train = parse(["train", *args, "--quantiles", "0.1", "0.9", "--no-stratify"])
    assert train.value("--quantiles") == (0.1, 0.9)
    assert parse(train.argv) == train


def test_a_dry_run_may_be_asked_for_anywhere() -> None:
    for args in (["--dry-run", *SIMULATE], [*SIMULATE, "--dry-run"]):
        request = parse(args)
        assert request.dry_run
        assert request.argv == ("example", "--output-dir", "out")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["trian"], "No such command: 'trian'; did you mean 'train'?"),
        (["qqqq"], "No such command: 'qqqq'; see `aam-launch --help`."),
        (["report", "--run-dir", "r", "--image"],
         "An option without its value: --image; write the value after it."),
        ([*SIMULATE, "--runtme", "native"],
         "`example` has no such option: '--runtme'; did you mean '--runtime'?"),
        ([*SIMULATE, "--container", "cpu"],
         "`example` has no such option: '--container'; write --image."),
        ([*SIMULATE, "--reproducible"],
         "`example` has no such option: '--reproducible'; see `aam-launch example --help`."),
        (["predict", "--table", "t"],
         "`predict` lacks required options: --model, --output; "
         "give a value for each."),
    ],
)  # fmt: skip
def test_a_typo_is_answered_with_the_nearest_name(args: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(args)
    assert str(caught.value) == sentence
    assert caught.value.status == 64


def test_each_command_and_option_belongs_to_one_program() -> None:
    assert not set(names()) & set(commands.NAMES)
    assert not set(TYPES) & set(SETTING_SPECS)  # keys of a site, and settings
    of_submit = {spec.flag for spec in specs(SubmitOptions)}
    # It means the same with and without a queue: so many ranks on a machine.
    assert of_submit & set(LAUNCHER_OPTIONS) == {"--gpus"}
    for name in names():
        flags = {spec.flag for spec in specs(find(name) or object)}
        assert not flags & of_submit, name
        assert flags & set(LAUNCHER_OPTIONS) <= set(SHARED), name


def test_a_shared_option_is_of_the_command_that_has_it() -> None:
    assert parse(["--json", "check", "--quick"]).argv == ("check", "--quick", "--json")
    assert "--json" in parse(["check", "--json"], incomplete=True).launcher_options
    assert "--json" in parse([*SIMULATE, "--json"]).launcher_options
    predict = ["predict", "--table", "/t", "--model", "/m", "--output", "/o/p.tsv", "--force"]
    assert (parse(predict).argv[-1], parse(predict).force) == ("--force", False)
    assert parse([*SIMULATE, "--force"]).force


# --- what will run


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_a_command_line_can_be_pasted(args: list[str]) -> None:
    made = Plan(
        "native", "/usr/bin/python3", tuple(args), (Variable("A", "b c", ""),), unset=("B",)
    )
    line = shell_line(made)
    assert printable(line, 10 * len(line)) == line
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    words = os.fsdecode(done.stdout).split("\0")[:-1]
    assert words == ["env", "-u", "B", "A=b c", "/usr/bin/python3", "-m", "aam", *args]


# --- the program itself


@pytest.mark.medium
def test_the_launcher_becomes_aam(tmp_path: Path) -> None:
    out = tmp_path / "with space, comma: 'quote' ü"
    (out / "x").mkdir(parents=True)
    (out / "table.biom").touch()
    done = launch("example", "--output-dir", str(out), "--samples", "20", "--asvs", "30")
    assert done.returncode == 73  # of `aam`, which does not replace a study
    assert done.stderr.startswith("aam: ")


def test_a_dry_run_does_what_it_says_when_it_is_pasted(tmp_path: Path) -> None:
    out = tmp_path / "with space, comma: 'quote' ü"
    args = ["example", "--output-dir", str(out), "--samples", "9", "--asvs", "30"]
    done = launch("--dry-run", *args, "--richness", "8", "--subjects", "3", "--depth", "100")
    assert done.returncode == 0, done.stderr
    assert not out.exists()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", done.stdout], env=environment, check=True, capture_output=True)
    assert (out / "table.biom").exists()


@pytest.mark.parametrize(
    ("engine", "args"),
    [(None, SIMULATE), ("apptainer", SIMULATE), (None, ["explain", *SIMULATE]), (None, ["doctor"])],
)
def test_without_the_libraries_the_remedy_is_named(
    tmp_path: Path, engine: str | None, args: list[str]
) -> None:
    """An interpreter without site packages stands for a plain install."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for module in (yaml, msgspec):
        place = Path(str(module.__file__)).parent
        (plain / place.name).symlink_to(place)
    if engine:
        program(tmp_path / engine)
    code = "import sys; from launcher.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *args], capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{plain}", "PATH": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )  # fmt: skip
    assert done.returncode == 69
    shown = done.stdout + done.stderr
    assert ("Image cpu is not built" if engine else "No engine can start a container") in shown
    if args is SIMULATE:
        assert f"pip install '{ROOT}[study]'" in shown or f"pip install {ROOT}" in shown


def test_a_reader_may_stop_early() -> None:
    line = f"{shlex.quote(sys.executable)} -m launcher.cli train --help | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "argv", [["--help"], ["--dry-run", *SIMULATE], ["explain", *SIMULATE], ["report"]]
)
def test_nothing_heavy_is_imported(argv: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from launcher.cli import main\n"
        "main(sys.argv[1:])\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, cwd=ROOT, check=True
    )
    modules = json.loads(done.stdout.splitlines()[-1])
    loaded = {name.partition(".")[0] for name in modules}
    expected = {"aam", "launcher", "yaml", "msgspec", "typing_extensions", "cython_runtime",
                "__main__"}  # fmt: skip
    foreign = loaded - set(sys.stdlib_module_names) - expected
    # An environment may load a little of itself at start-up, such as a finder of editable installs.
    assert not {
        name for name in foreign if not name.startswith(("_", "__editable__", "sitecustom"))
    }
    if "example" in argv:  # a start runs no program, computes no digest and reads nothing of Slurm
        assert not loaded & {"hashlib", "shutil", "subprocess", "tarfile"}
        assert not [name for name in modules if name.startswith("launcher.slurm.")]


def test_libraries_of_pythonpath_do_not_replace_those_of_the_environment(tmp_path: Path) -> None:
    """As a module of a cluster sets it; the folder of `aam` itself stays where it is there."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "msgspec.py").write_text("raise SystemExit('another msgspec')\n")
    argv = ["--dry-run", "--runtime", "native", "example", "--output-dir", str(tmp_path / "out")]
    for path in (f"{ROOT}{os.pathsep}{other}", f"{ROOT}"):
        line = launch(*argv, PYTHONPATH=path).stdout
        assert str(other) not in line, line
        done = subprocess.run(["sh", "-c", line.replace(" example ", " example --help ")],
                              env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                              text=True)  # fmt: skip
        assert done.returncode == 0, done.stderr
    kept = launch(*argv, "--env", f"PYTHONPATH={other}", PYTHONPATH=str(ROOT)).stdout
    assert "PYTHONPATH=..." in kept
    explained = launch("explain", *argv[1:], PYTHONPATH=f"{ROOT}{os.pathsep}{other}").stdout
    assert "kept out      PYTHONPATH" in explained
