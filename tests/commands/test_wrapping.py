"""Commands that take another command as it is: their own options, its options, mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aam.contract.errors import UsageError
from aam.contract.options.command_line import parse
from tests.support.commands import aam

PRETRAIN = ("pretrain", "--table", "t.biom", "--output-dir", "run", "--overwrite")


def test_each_side_has_its_own_options() -> None:
    found = parse(["tune", "--subjects", "workers", "threads", "--output-dir=tuned",
                   *PRETRAIN, "--epochs", "3"])  # fmt: skip
    assert (found.command, found.wrapped, found.program) == ("tune", "pretrain", ())
    own, measured = found.build(), found.build_wrapped()
    assert (own.subjects, own.output_dir, own.overwrite) == (
        ("workers", "threads"),
        Path("tuned"),
        False,
    )
    assert (measured.loop.epochs, measured.input.table) == (3, Path("t.biom"))
    # Nothing is written where the command would write, and no run is replaced.
    assert str(measured.run.output_dir) == "/dev/null" and not measured.run.overwrite
    assert parse(found.argv) == found
    assert found.uses_network


def test_a_value_may_be_the_name_of_a_command() -> None:
    found = parse(["tune", "--output-dir", "train", "train", "--table", "train", "--metadata", "m",
                   "--metadata-column", "pretrain"])  # fmt: skip
    assert (found.wrapped, found.build().output_dir) == ("train", Path("train"))
    assert found.build_wrapped().target.metadata_column == "pretrain"
    assert parse(["profile", "train.csv"]).build().profile == Path("train.csv")


def test_the_words_of_a_program_are_left_alone() -> None:
    words = ("python", "train.py", "--help", "--output_dir", "x", "pretrain", "--", "-1")
    found = parse(["tune", "--output-dir", "o", "--values", "a=1,2", "--", *words])
    assert found.build_wrapped() == words
    assert parse(found.argv) == found


def test_a_file_gives_the_options_of_either_side(tmp_path: Path) -> None:
    (tmp_path / "tune.yaml").write_text("rounds: 7\n")
    (tmp_path / "run.yaml").write_text("table: t.biom\nepochs: 9\n")
    files = [str(tmp_path / name) for name in ("tune.yaml", "run.yaml")]
    found = parse(["tune", "--config", files[0], "--output-dir", "o", "pretrain",
                   "--config", files[1]])  # fmt: skip
    assert (found.build().rounds, found.build_wrapped().loop.epochs) == (7, 9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "tune pretrain --table t --output-dir o",
            "`tune` lacks its own required options: --output-dir",
        ),
        ("tune pretrain --table t --output-dir o", "`aam tune [OPTIONS] pretrain ...`"),
        ("tune --output-dir o pretrain --table t --rounds 3", "takes: --rounds; write `aam tune ["),
        ("memory pretrain --table t --device_memory=16", "takes: --device-memory; write `aam mem"),
        (
            "tune workload 'x {a}' --output-dir o",
            "'workload'; `tune` takes pretrain, train, or `--",
        ),
        ("memory trian --table t", "'trian'; did you mean 'train'?"),
        ("memory", "`memory` lacks the command that it takes"),
        ("tune --output-dir o --", "`tune` lacks the command that it takes"),
        ("memory -- python x.py", "`memory` runs no other program"),
        ("memory --output-dir o pretrain --table t", "no such option: '--output-dir'"),
        ("memory pretrain", "`pretrain` lacks required options: --table"),
        ("memory pretrain --table t --tabel u", "'--tabel'; did you mean '--table'"),
        ("memory train --table t --metadata m --metadata-column c --freeze-base", "--freeze-base"),
        ("profile --compare c pretrain --table t", "--compare c without --profile"),
    ],
)
def test_mistakes_are_answered_with_the_right_form(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert message in str(caught.value)


def test_a_command_is_refused_as_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("memory", "pretrain", "--table", "none.biom") == 66
    assert "No file for --table: 'none.biom' does not exist" in capsys.readouterr().err
    assert aam("profile", "--output-dir", "p", "pretrain", "--table", "none.biom") == 66
    assert aam("profile") == 64
    assert "`profile` lacks what it reads" in capsys.readouterr().err
    assert aam("profile", "pretrain", "--table", __file__) == 64
    assert "aam profile --output-dir FOLDER pretrain" in capsys.readouterr().err


def test_help_has_the_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("help", "tune") == 0
    shown = capsys.readouterr().out
    assert "usage: aam tune --output-dir FOLDER [OPTIONS] pretrain|train ..." in shown
    assert "`aam pretrain --help`" in shown
    assert aam("tune", "pretrain", "--help") == 0
    assert capsys.readouterr().out == shown
    assert aam("-V") == 0
    version = capsys.readouterr().out
    assert version.startswith("aam ")
    launched = [sys.executable, "-m", "launcher"]
    for args in (["help", "tune"], ["-V"]):
        done = subprocess.run([*launched, *args], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(("usage: aam-launch tune --output-dir", "aam-launch "))
