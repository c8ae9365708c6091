"""Arguments: positions, commands that take another one, values from a file or a run record."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from aam.cli import main
from aam.contract.errors import AamError, UsageError
from aam.contract.options import from_plain, to_plain
from aam.contract.options.command_line import parse
from aam.contract.options.commands import find
from aam.contract.options.commands.train import Train
from aam.data.formats.tables import open_blocks
from tests.support.bench import DATA, USAGE, Bench
from tests.support.commands import aam
from tests.support.launches import parse as parse_launch
from tests.support.parsing import built

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        ("predict m t --output o", {"--model": "m", "--table": "t"}),
        ("importance m --table t --output o", {"--model": "m", "--table": "t"}),
        (
            "evaluate m t d ph --output o",
            {"--model": "m", "--table": "t", "--metadata": "d", "--metadata-column": "ph"},
        ),
        (
            "evaluate --predictions p d ph",
            {"--predictions": "p", "--metadata": "d", "--metadata-column": "ph"},
        ),
        ("inspect t d ph --study-column s", {"--metadata-column": "ph", "--study-column": "s"}),
    ],
)
def test_positions(argv: str, given: dict[str, str]) -> None:
    parsed = parse(argv.split())
    assert {flag: str(parsed.given[flag]) for flag in given} == given
    assert "--model" in given or "--model" not in parsed.given


def test_inspect_takes_the_studies_that_it_recommends(bench: Bench, capsys: Capture) -> None:
    args = (bench.good / "table.biom", bench.good / "metadata.tsv", "ph")
    assert aam("inspect", *args, "--study-column", "site") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "leave one study out ('site', 3 studies), 12 samples held out" in shown


@pytest.mark.parametrize("command", ["train", "inspect"])
def test_exchanged_table_and_metadata(bench: Bench, capsys: Capture, command: str) -> None:
    metadata = bench.good / "metadata.tsv"
    for table in (bench.good / "table.biom", bench.table(bench.counts)):
        assert aam(command, metadata, table, "ph") == USAGE
        shown = capsys.readouterr().err
        assert "swapped" in shown and str(table) in shown and str(metadata) in shown


@pytest.mark.parametrize("name", ["..", ".", "~", "~root", "a/b", "-x", " ph"])
def test_columns_that_no_folder_can_be_named_after(
    bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (bench.work / "inner").mkdir()
    monkeypatch.chdir(bench.work / "inner")
    metadata = bench.metadata([["sample-id", name], *([row[0], row[1]] for row in bench.rows[1:])])
    before = sorted(bench.work.rglob("*"))
    files = ("--table", bench.good / "table.biom", "--metadata", metadata)
    assert aam("train", *files, f"--metadata-column={name}", "--members", "kernel") == USAGE
    assert "--output-dir" in capsys.readouterr().err
    assert sorted(bench.work.rglob("*")) == before


def test_the_folder_has_the_name_of_the_column(
    bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.work)
    _, *rows = bench.rows
    metadata = bench.metadata([["sample-id", "Height(cm)", "Weight"], *(row[:3] for row in rows)])
    files = (bench.good / "table.biom", metadata)
    # A name of which the column is the first word is nearer than one with other letters.
    assert aam("train", *files, "Height") == DATA
    assert "did you mean 'Height(cm)'?" in capsys.readouterr().err
    (bench.work / "Height(cm)").mkdir()
    (bench.work / "Height(cm)" / "mine.txt").write_text("mine")
    options = ("--members", "kernel", "--folds", 2)
    assert aam("train", *files, "Height(cm)", *options) == USAGE
    assert "mine.txt" in capsys.readouterr().err
    assert [path.name for path in (bench.work / "Height(cm)").iterdir()] == ["mine.txt"]
    (bench.work / "Height(cm)" / "mine.txt").unlink()
    assert aam("train", *files, "Height(cm)", *options) == 0
    assert (bench.work / "Height(cm)" / "scores.json").exists()


def test_files_that_are_no_text_are_named(bench: Bench, capsys: Capture) -> None:
    lines = bench.table(bench.counts).read_text()
    with zipfile.ZipFile(bench.work / "table.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    (bench.work / "plain.rds").write_bytes(b"X\n\0\0\0\3")
    (bench.work / "utf16.tsv").write_bytes(lines.encode("utf-16"))
    for name, named in (
        ("table.xlsx", "a spreadsheet"),
        ("plain.rds", ".rds"),
        ("utf16.tsv", "16"),
    ):
        assert aam("inspect", bench.work / name, bench.good / "metadata.tsv") == DATA
        of_table = capsys.readouterr().out
        assert aam("inspect", bench.good / "table.biom", bench.work / name) == DATA
        of_metadata = capsys.readouterr().out
        for shown in (of_table, of_metadata):
            assert named in " ".join(shown.split())


def test_a_column_of_sums_is_no_sample(bench: Bench, capsys: Capture) -> None:
    counts = bench.counts.copy()
    plain = open_blocks(bench.table(counts))
    counts["Total"] = counts.sum(axis=1)
    summed = open_blocks(bench.table(counts))
    assert "'Total' is the sum of the others" in capsys.readouterr().err
    assert summed.sample_ids == plain.sample_ids
    both = [next(table.blocks()).toarray() for table in (summed, plain)]
    assert np.array_equal(*both)
    # A sample of that name with reads of its own stays.
    counts.iloc[0, -1] += 1
    assert "Total" in open_blocks(bench.table(counts)).sample_ids


# --- commands that take another command


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


# --- values from a file or from the record of a run


YAML = """\
table: t.biom
metadata: m.tsv
metadata_column: age
output-dir: out   # both spellings
lr: 1e-4
epochs: 3
quantiles: [0.25, 0.75]
stratify: false
compile-model: force
tree:
"""
REQUIRED = ["--table", "t.biom", "--metadata", "m.tsv", "--metadata-column", "age"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(YAML)
    return tmp_path / "run.yaml"


def test_a_file_gives_values_and_the_command_line_replaces_them(config: Path) -> None:
    options = built("train", ["--epochs", "7", "--config", str(config), "--stratify"])
    assert (options.loop.lr, options.loop.epochs, options.split.stratify) == (1e-4, 7, True)
    assert (options.quantiles, options.speed.compile_model) == ((0.25, 0.75), "force")
    assert (options.run.output_dir, options.phylogeny.tree) == (Path("out"), None)


def test_the_launcher_reads_the_same_file_and_knows_its_paths(config: Path) -> None:
    request = parse_launch(["train", "--config", str(config), "--output-dir", "new"])
    assert [str(path) for _, path in request.paths("input")] == ["t.biom", "m.tsv"]
    assert [str(path) for _, path in request.paths("output")] == ["new"]
    assert "--config" not in request.argv
    assert built("train", request.arguments) == built(
        "train", ["--config", str(config), "--output-dir", "new"]
    )


@pytest.mark.parametrize(
    ("line", "status", "sentence"),
    [
        ("epohcs: 3", 78, "An unknown key: 'epohcs' in {file}:1; did you mean 'epochs'?"),
        ("epochs: 0", 64, "Value out of range: --epochs 0 in {file}:1; give 1 or more"),
        (
            "epochs: many",
            64,
            "Invalid value for --epochs: 'many' in {file}:1; give a whole number.",
        ),
        ("epochs: [1, 2]", 64, "Several values for an option that takes one: --epochs [1, 2] in"),
        ("splits: yes", 78, "Not a value of an option: --splits 'True' in {file}:1; write it in"),
        ("lr: 2026-01-01", 78, "Not a value of an option: --lr '2026-01-01' in {file}:1"),
        ("table: s3://t.biom", 64, "An address instead of a path: --table s3://t.biom in"),
        ("- lr", 78, "Not a mapping: {file}:1"),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_line(
    config: Path, line: str, status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(line)
    assert main(["train", *REQUIRED, "--output-dir", "o", "--config", str(config)]) == status
    assert sentence.format(file=config) in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "none.yaml"]) == 66
    assert "No file for --config: 'none.yaml' does not exist" in capsys.readouterr().err


def recorded(folder: Path, command: str, *args: str) -> Path:
    options = built(command, list(args))
    inputs = {"--table": {"path": "/data/t.biom", "sha256": "0"}}
    content = {"aam": "0", "command": command, "options": to_plain(options), "inputs": inputs}
    (folder / "run.json").write_text(json.dumps(content))
    return folder


def test_a_run_record_gives_the_options_of_its_run(tmp_path: Path) -> None:
    args = [*REQUIRED, "--output-dir", "old", "--overwrite", "--resume-from", "auto"]
    folder = recorded(tmp_path, "train", *args, "--lr", "0.01", "--quantiles", "0.2")
    options = built("train", ["--config", str(folder), "--output-dir", "new"])
    assert (options.loop.lr, options.quantiles) == (0.01, (0.2,))
    assert options.input.table == Path("/data/t.biom")  # where the run found it
    # The run itself is neither replaced nor continued.
    assert (options.run.output_dir, options.run.overwrite) == (Path("new"), False)
    assert options.run.resume_from is None
    request = parse_launch(["train", "--config", str(folder / "run.json"), "--output-dir", "new"])
    assert "--attn-implementation" not in request.given  # a default is not a choice of the user
    column = options.target.metadata_column
    assert built("train", ["--config", str(folder)]).run.output_dir == Path(column)


def test_a_record_that_does_not_suit_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "train", *REQUIRED, "--output-dir", "o")
    with pytest.raises(AamError, match="is from `aam train`; give one of `aam pretrain`"):
        built("pretrain", ["--config", str(folder)])
    record = json.loads((folder / "run.json").read_text())
    record["options"]["input"]["tabel"] = "x"
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(AamError, match="no such option: 'tabel' in .*; did you mean 'table'"):
        built("train", ["--config", str(folder)])
    (folder / "run.json").write_text("[]")
    with pytest.raises(AamError, match="The run record is damaged"):
        built("train", ["--config", str(folder)])


def test_options_are_the_same_after_a_record(tmp_path: Path) -> None:
    args = [*REQUIRED, "--output-dir", "o", "--embedding-dim", "64", "--folds", "3"]
    before = built("train", args)
    after = built("train", ["--config", str(recorded(tmp_path, "train", *args)),
                            "--output-dir", "o", "--table", "t.biom"])  # fmt: skip
    assert after == before
    assert find("train") is Train
    assert from_plain(Train, to_plain(before)) == after
