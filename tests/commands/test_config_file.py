"""Values of options from a file: `aam COMMAND --config run.yaml`, and the run.json of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aam.cli import main
from aam.contract.errors import AamError
from aam.contract.options import from_plain, to_plain
from aam.contract.options.commands import find
from aam.contract.options.commands.train import Train
from tests.support.launches import parse as parse_launch
from tests.support.parsing import built

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
    """Write the record of a run, as `aam.run_record` does."""
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
